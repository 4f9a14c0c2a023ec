"""Connects a stage with the DVC graph; the only file of the stages that calls DVC.

A stage runs inside `running`, which gives it a scratch folder to resume from, keyed by a digest of
all its inputs, and refuses a result whose inputs changed meanwhile: DVC itself hashes dependencies
after the command, and would record an edit made in the meantime as an input of the result.
"""

import hashlib
import json
import os
import platform
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from dvc.dependency import Dependency
from dvc.dependency.param import ParamsDependency
from dvc.env import DVC_ROOT, DVC_STAGE
from dvc.exceptions import DvcException
from dvc.repo import Repo
from dvc.stage import PipelineStage
from dvc.stage.exceptions import StageNotFound

from pipeline import checked
from pipeline.runtime import code
from rrcm.core import pool
from rrcm.core.ending import hook, reported
from rrcm.core.errors import DataError, StageError, one_line
from rrcm.core.files import write_json
from rrcm.core.locks import alone

SCRATCH = Path(".rrcm/resume")
DATA = Path(".rrcm/data")  # a file for each dataset: the folder of its pictures on this machine
RWLOCK = Path(".dvc/tmp/rwlock")  # DVC's record of which process reads or writes which path
PATIENCE = 30.0  # seconds; a stage whose DVC was killed takes less to end
PACKAGES = ("torch", "timm", "numpy", "scipy", "numba", "webdataset")
PACKAGES += ("onnxruntime", "onnxruntime-gpu")  # one of the two


@dataclass(kw_only=True)
class Stage:
    """A running stage: its scratch folder to resume from, and notes for its provenance."""

    name: str
    scratch: Path
    notes: dict[str, Any]


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


def digest(stage_name: str) -> str:
    """SHA-256 of all current inputs of a stage: its command, files and parameters.

    Files enter by DVC's hashes. DVC rereads a file only if its inode, size or modification time
    has changed since it was last hashed, so that large data cost nothing here.

    Raises:
        StageError: There is no such stage, a file that it needs is missing, or the code is no
            longer that which ``code/`` describes.
    """
    with opened() as repo:
        stage = _found(repo, stage_name)
        read: dict[str, Any] = {"cmd": stage.cmd, "files": {}, "params": {}}
        for dependency in stage.deps:
            if isinstance(dependency, ParamsDependency):
                read["params"] |= dependency.read_params()
            else:
                code.require_current(dependency.def_path)
                read["files"][dependency.def_path] = _hash(dependency, stage_name)
    return hashlib.sha256(json.dumps(read, sort_keys=True).encode()).hexdigest()


def _versions() -> dict[str, str]:
    """The versions of `PACKAGES` that are installed here."""
    found = {}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def _found(repo: Repo, stage_name: str) -> PipelineStage:
    """A stage of dvc.yaml; the others are not loaded, as `repo.index` would do."""
    with suppress(StageNotFound):
        stage, *more = repo.stage.collect(stage_name)
        if not more:  # it is not the name of a group
            return stage
    raise StageError(f"dvc.yaml has no stage {stage_name}; `dvc stage list` shows them")


def _hash(dependency: Dependency, stage_name: str) -> str:
    path = dependency.def_path
    if not dependency.exists:
        raise StageError(f"{path}: stage {stage_name} needs it, and it is missing; `dvc repro`")
    return dependency.get_hash().value


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


@contextmanager
def running(stage_name: str) -> Iterator[Stage]:
    """Run a stage: check parameters before, write provenance after, and refuse mixed inputs.

    A stage must read all its inputs, including its parameters, within the block.

    Guarantee: state in ``scratch`` was left by this stage with the same inputs, and no other
    process runs this stage here; when the block succeeds, the inputs at its end are those at its
    beginning. Then ``provenance/<stage>.json`` is written: the digest of the inputs, versions,
    machine, seconds, and ``notes``. If the DVC process that started the stage ends before it, even
    by SIGKILL, the stage gets SIGTERM, and its saved state is kept.

    Args:
        stage_name: Name of the stage in dvc.yaml, e.g. ``train@tiny-rrcm-s025``.

    Raises:
        ConfigError: Something in params.yaml is wrong, whether this stage reads it or not.
        StageError: The inputs changed meanwhile (the scratch folder of the old ones is kept), or
            another process runs this stage.
    """
    checked.load()  # not a dependency of the stage: a check can refuse a result, but not change it
    before = digest(stage_name)
    lock, say = SCRATCH / f"{stage_name}.lock", partial(print, flush=True)
    with alone(lock, stage_name, say=say, patience=PATIENCE):
        yield from _run(stage_name, before)


def _run(stage_name: str, before: str) -> Iterator[Stage]:
    began, family = time.time(), SCRATCH / stage_name
    stage = Stage(name=stage_name, scratch=family / before[:16], notes={})
    stage.scratch.mkdir(parents=True, exist_ok=True)
    yield stage
    if digest(stage_name) != before:
        raise StageError(
            f"{stage_name}: code, parameters or data changed while it ran, so its result belongs "
            "to neither version; run `dvc repro` again"
        )
    write_json(
        Path("provenance", f"{stage_name}.json"),
        {
            "stage": stage_name,
            "inputs": before,
            "seconds": round(time.time() - began, 1),
            "python": platform.python_version(),
            "packages": _versions(),
            "machine": f"{platform.machine()}, {os.cpu_count()} cores",
            **stage.notes,
        },
    )
    done = family.with_name(f"{family.name}.done")
    shutil.rmtree(done, ignore_errors=True)  # left by a process that was killed
    family.rename(done)  # atomic: nothing can resume from a partly removed folder
    shutil.rmtree(done)


def main(run: Callable[..., None]) -> None:
    """Call ``run`` for the stage that DVC started, within `reported`.

    The item of a ``foreach`` comes from DVC's environment variables: on a command line, a name from
    params.yaml would pass through a shell.
    """
    with reported(stage=True):
        name = _started().partition("@")[2]
        run(name) if name else run()


def _started() -> str:
    """The name of the stage in dvc.yaml; set ``DVC_STAGE=train@NAME`` to run one by hand."""
    if not (stage := os.environ.get(DVC_STAGE)):
        script = Path(sys.argv[0]).stem
        raise StageError(f"{script}: stages are run by DVC, as in `dvc repro {script}`")
    return stage


def _begin() -> None:
    """In a stage that DVC started, report lack of memory, and end when that DVC process ends.

    That is the ancestor that holds DVC's lock on the outputs of a stage. Our parent process may
    instead be a shell, or the process that adopted us.
    """
    script = os.environ.get(DVC_STAGE, "").partition("@")[0]
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if DVC_ROOT not in os.environ or spec is None or spec.name != f"pipeline.stages.{script}":
        return
    sys.excepthook = hook
    try:
        writing = json.loads(RWLOCK.read_text())["write"].values()
    except (OSError, ValueError, KeyError):  # a plain DVC may be rewriting the file in place
        return
    if not (dvc := [one["pid"] for one in writing if pool.ours(one["pid"])]):
        sys.exit("error: the `dvc` that started this stage is gone; `dvc repro` goes on")
    pool.follow(dvc[0])


_begin()  # here and not in `running`, because a stage's imports take seconds, and memory
