"""What a stage needs to know of the DVC graph: the only file that talks to DVC.

A stage runs inside `running`, which gives it a scratch folder to resume from, keyed by all that the
stage depends on, and refuses a result whose inputs changed while it was made: DVC itself hashes
dependencies after the command, and would record an edit made in the meantime as the source of it.
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
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dvc.dependency import Dependency
from dvc.dependency.param import ParamsDependency
from dvc.env import DVC_ROOT, DVC_STAGE
from dvc.exceptions import DvcException
from dvc.repo import Repo

from rrcm.cli import checked
from rrcm.core import pool
from rrcm.core.ending import reported
from rrcm.core.errors import DataError, StageError, one_line
from rrcm.core.files import write_json
from rrcm.core.locks import alone

SCRATCH = Path(".rrcm/resume")
DATA = Path(".rrcm/data")  # where raw pictures are on this machine, a file for each dataset
RWLOCK = Path(".dvc/tmp/rwlock")  # DVC's own: which of its processes writes or reads which path
PATIENCE = 30.0  # seconds; a stage whose DVC was killed ends in less
PACKAGES = ("torch", "timm", "numpy", "scipy", "numba", "onnxruntime-gpu", "webdataset")


@dataclass(kw_only=True)
class Stage:
    """A stage at work: where it keeps what it would resume from, and what it tells of itself."""

    name: str
    scratch: Path
    notes: dict[str, Any]


def digest(stage_name: str) -> str:
    """SHA-256 of all that a stage depends on: its command, files and parameters, as they are now.

    Files count by DVC's own hashes. DVC reads a file again only if its inode, size or time of
    change is another than when it was last hashed, so that large data cost nothing here.

    Raises:
        StageError: There is no such stage, or a file that it needs is missing.
    """
    try:
        with Repo(".") as repo:
            stages = {stage.addressing: stage for stage in repo.index.stages}
            if stage_name not in stages:
                raise StageError(f"dvc.yaml has no stage {stage_name}; `dvc stage list` shows them")
            stage = stages[stage_name]
            read: dict[str, Any] = {"cmd": stage.cmd, "files": {}, "params": {}}
            for dependency in stage.deps:
                if isinstance(dependency, ParamsDependency):
                    read["params"] |= dependency.read_params()
                else:
                    read["files"][dependency.def_path] = _hash(dependency, stage_name)
    except DvcException as error:
        raise StageError(f"dvc.yaml: {one_line(error)}") from None
    except sqlite3.Error as error:  # of the hashes that DVC remembers
        raise StageError(f"DVC's database: {one_line(error)}; is there room on the disk?") from None
    return hashlib.sha256(json.dumps(read, sort_keys=True).encode()).hexdigest()


def _hash(dependency: Dependency, stage_name: str) -> str:
    path = dependency.def_path
    if not dependency.exists:
        raise StageError(f"{path}: stage {stage_name} needs it, and it is missing; `dvc repro`")
    return dependency.get_hash().value


def track(folder: Path) -> bool:
    """Have DVC keep ``folder`` as it is now; whether its pointer, ``<folder>.dvc``, changed.

    A pointer that describes these very bytes already keeps its own.

    Raises:
        DataError: DVC could not read the folder, or not keep it.
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
    """Run a stage: checked parameters before, provenance after, and no result of mixed inputs.

    Everything that the stage reads, its parameters too, it reads within the block.

    Guarantee: state in ``scratch`` was left by this stage with the very same inputs, and no other
    process is at this stage here; when the block succeeds, the inputs at its end are those at its
    beginning. Then ``provenance/<stage>.json`` is written: the digest of the inputs, versions,
    machine, seconds, and ``notes``. If the DVC process that started the stage ends before it, even
    by SIGKILL, the stage gets SIGTERM, and what it saved is kept.

    Args:
        stage_name: As in dvc.yaml, e.g. ``train@tiny-rrcm-s025``.

    Raises:
        ConfigError: Something in params.yaml is wrong, whether this stage reads it or not.
        StageError: The inputs changed meanwhile; the scratch folder of the old ones is kept. Or
            another process is at this stage.
    """
    checked.load()  # no dependency of the stage: a check can refuse a result, but not change it
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
            "packages": {name: version(name) for name in PACKAGES},
            "machine": f"{platform.machine()}, {os.cpu_count()} cores",
            **stage.notes,
        },
    )
    done = family.with_name(f"{family.name}.done")
    shutil.rmtree(done, ignore_errors=True)  # of one that was killed
    family.rename(done)  # at once: nothing goes on from a part of it
    shutil.rmtree(done)


def main(run: Callable[..., None]) -> None:
    """Call ``run`` of the stage that DVC started; it ends as `reported` says.

    Which one of a ``foreach`` it is, DVC says in the environment: a command line would pass through
    a shell, and a name that somebody wrote into params.yaml with it.
    """
    with reported():
        name = _started().partition("@")[2]
        run(name) if name else run()


def _started() -> str:
    """The stage, as in dvc.yaml; what is run by hand says it itself: ``DVC_STAGE=train@NAME``."""
    if not (stage := os.environ.get(DVC_STAGE)):
        script = Path(sys.argv[0]).stem
        raise StageError(f"{script}: stages are run by DVC, as in `dvc repro {script}@NAME`")
    return stage


def _end_with_dvc() -> None:
    """End this process, if it is a stage that DVC started, when that DVC process ends.

    Of the processes that started us, it is the one that has DVC's lock on what a stage writes. With
    a shell between it and us, or adopted already, our parent says nothing.
    """
    script = os.environ.get(DVC_STAGE, "").partition("@")[0]
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if DVC_ROOT not in os.environ or spec is None or spec.name != f"pipeline.stages.{script}":
        return
    try:
        writing = json.loads(RWLOCK.read_text())["write"].values()
    except (OSError, ValueError, KeyError):  # a plain DVC may just be rewriting it, in place
        return
    if not (dvc := [one["pid"] for one in writing if pool.ours(one["pid"])]):
        sys.exit("error: the `dvc` that started this stage is gone; `dvc repro` goes on")
    pool.follow(dvc[0])


_end_with_dvc()  # not in `running`: before it, other imports of a stage take seconds
