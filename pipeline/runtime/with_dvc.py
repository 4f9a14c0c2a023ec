"""What DVC knows of the stages: their inputs and recorded outputs. Stages call DVC only here."""

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from dvc.dependency.param import ParamsDependency
from dvc.exceptions import DvcException
from dvc.repo import Repo
from dvc.stage import PipelineStage
from dvc.stage.exceptions import StageNotFound

from pipeline.runtime.without_dvc import MISSING
from rrcm.core.errors import DataError, StageError, one_line


@contextmanager
def opened(folder: str = ".") -> Iterator[Repo]:
    """DVC's repository; what it refuses in the block is an error of one line.

    Raises:
        StageError: DVC refuses something, or its database, as on a full disk.
    """
    try:
        with Repo(folder) as repo:
            yield repo
    except DvcException as error:
        raise StageError(f"dvc.yaml: {one_line(error)}") from None
    except sqlite3.Error as error:  # DVC's database of hashes
        raise StageError(f"DVC's database: {one_line(error)}; is there room on the disk?") from None


def inputs(stage_name: str) -> dict[str, Any]:
    """The command, files and parameters that a stage depends on, as `without_dvc.inputs`.

    DVC rereads a file only if its inode, size or modification time has changed since it was last
    hashed, so that large data cost nothing here.

    Raises:
        StageError: There is no such stage.
    """
    with opened() as repo:
        stage = _found(repo, stage_name)
        read: dict[str, Any] = {"cmd": stage.cmd, "files": {}, "params": {}}
        for dependency in stage.deps:
            if isinstance(dependency, ParamsDependency):
                read["params"] |= dependency.read_params()
            else:
                found = dependency.get_hash().value if dependency.exists else MISSING
                read["files"][dependency.def_path] = found
    return read


def _found(repo: Repo, stage_name: str) -> PipelineStage:
    """A stage of dvc.yaml; the others are not loaded, as `repo.index` would do."""
    with suppress(StageNotFound):
        stage, *more = repo.stage.collect(stage_name)
        if not more:  # it is not the name of a group
            return stage
    raise StageError(f"dvc.yaml has no stage {stage_name}; `dvc stage list` shows them")


def recorded(stage_name: str, output: str) -> list[Path]:
    """Where DVC's cache has an output of a stage as it was last made; nothing if it has not.

    DVC removes the outputs of a stage before it runs it.
    """
    with opened() as repo:
        stage = _found(repo, stage_name)
        known = [out for out in stage.outs if out.def_path == output and out.hash_info]
        found = [Path(out.cache.oid_to_path(out.hash_info.value)) for out in known]
    return [path for path in found if path.is_file()]


def track(folder: Path) -> bool:
    """Have DVC track ``folder`` as it is now; return whether ``<folder>.dvc`` changed.

    A ``.dvc`` file that already describes these bytes is not rewritten.

    Raises:
        DataError: DVC could not read the folder, or not store it.
    """
    pointer = folder.with_name(f"{folder.name}.dvc")
    before = pointer.read_bytes() if pointer.exists() else None
    command = [sys.executable, "-m", "dvc", "add", "--quiet", str(folder)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        raise DataError(f"{folder}/: DVC cannot keep it ({' '.join(done.stderr.split())})")
    return pointer.read_bytes() != before
