"""Runs a stage of the DVC graph, also where DVC is not installed.

A stage runs inside `running`, which gives it a scratch folder to resume from, keyed by a digest of
all its inputs, and refuses a result whose inputs changed meanwhile: DVC itself hashes dependencies
after the command, and would record an edit made in the meantime as an input of the result.
"""

import hashlib
import json
import os
import platform
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from pipeline import checked
from pipeline.runtime import code, without_dvc
from pipeline.runtime.without_dvc import MISSING
from rrcm.core import pool
from rrcm.core.ending import hook, reported
from rrcm.core.errors import StageError
from rrcm.core.files import write_json
from rrcm.core.locks import alone

SCRATCH = Path(".rrcm/resume")
DATA = Path(".rrcm/data")  # a file for each dataset: the folder of its pictures on this machine
RWLOCK = Path(".dvc/tmp/rwlock")  # DVC's record of which process reads or writes which path
PATIENCE = 30.0  # seconds; a stage whose DVC was killed takes less to end
STARTED, ROOT = "DVC_STAGE", "DVC_ROOT"  # what DVC says in the environment of a stage
PACKAGES = ("torch", "timm", "numpy", "scipy", "numba", "webdataset")
PACKAGES += ("onnxruntime", "onnxruntime-gpu")  # one of the two


@dataclass(kw_only=True)
class Stage:
    """A running stage: its scratch folder to resume from, and notes for its provenance."""

    name: str
    scratch: Path
    notes: dict[str, Any]


def digest(stage_name: str) -> str:
    """SHA-256 of all current inputs of a stage: its command, files and parameters.

    Files enter by DVC's hashes, the same with DVC and where it is not installed.

    Raises:
        StageError: There is no such stage, a file that it needs is missing, or the code is no
            longer that which ``code/`` describes.
    """
    read = (_dvc() or without_dvc).inputs(stage_name)
    for path, found in read["files"].items():
        code.require_current(path)
        if found == MISSING:
            raise StageError(f"{path}: stage {stage_name} needs it, and it is missing; `dvc repro`")
    return hashlib.sha256(json.dumps(read, sort_keys=True).encode()).hexdigest()


def _dvc() -> ModuleType | None:
    """What DVC knows, if it is installed, and this is a repository of it."""
    if find_spec("dvc") is None or not Path(".dvc").is_dir():
        return None
    from pipeline.runtime import with_dvc

    return with_dvc


def _versions() -> dict[str, str]:
    """The versions of `PACKAGES` that are installed here."""
    found = {}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def recorded(stage_name: str, output: str) -> list[Path]:
    """`with_dvc.recorded`; nothing without DVC."""
    return dvc.recorded(stage_name, output) if (dvc := _dvc()) else []


@contextmanager
def running(stage_name: str) -> Iterator[Stage]:
    """Run a stage: check parameters before, write provenance after, and refuse mixed inputs.

    ``stage_name`` is that of dvc.yaml, e.g. ``train@tiny-rrcm-s025``. A stage must read all its
    inputs, including its parameters, within the block.

    Guarantee: state in ``scratch`` was left by this stage with the same inputs, and no other
    process runs this stage here; when the block succeeds, the inputs at its end are those at its
    beginning. Then ``provenance/<stage>.json`` is written: the digest of the inputs, versions,
    machine, seconds, and ``notes``; and where DVC is not installed, `without_dvc.record`. If the
    DVC process that started the stage ends before it, even by SIGKILL, the stage gets SIGTERM, and
    its saved state is kept.

    Raises:
        ConfigError: Something in params.yaml is wrong, whether this stage reads it or not.
        StageError: The inputs changed meanwhile (the scratch folder of the old ones is kept), or
            another process runs this stage.
    """
    lock, say = SCRATCH / f"{stage_name}.lock", partial(print, flush=True)
    with alone(lock, stage_name, say=say, patience=PATIENCE):
        began, family = time.time(), SCRATCH / stage_name
        with unchanged(stage_name) as before:
            stage = Stage(name=stage_name, scratch=family / before[:16], notes={})
            stage.scratch.mkdir(parents=True, exist_ok=True)
            yield stage
        about = {
            "stage": stage_name,
            "inputs": before,
            "seconds": round(time.time() - began, 1),
            "python": platform.python_version(),
            "packages": _versions(),
            "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        }
        write_json(Path("provenance", f"{stage_name}.json"), about | stage.notes)
        if not _dvc():
            without_dvc.record(stage_name)
        done = family.with_name(f"{family.name}.done")
        shutil.rmtree(done, ignore_errors=True)  # left by a process that was killed
        family.rename(done)  # atomic: nothing can resume from a partly removed folder
        shutil.rmtree(done)


@contextmanager
def unchanged(stage_name: str) -> Iterator[str]:
    """Give the digest of a stage's inputs; refuse what the block made if they change meanwhile.

    Raises:
        ConfigError: Something in params.yaml is wrong.
        StageError: They changed, or cannot be read.
    """
    checked.load()  # not a dependency of the stage: a check can refuse a result, but not change it
    before = digest(stage_name)
    yield before
    if digest(stage_name) != before:
        raise StageError(
            f"{stage_name}: code, parameters or data changed while it ran, so its result belongs "
            "to neither version; run it again"
        )


def main(run: Callable[..., None]) -> None:
    """Call ``run`` for the stage that DVC started, within `reported`.

    The item of a ``foreach`` comes from DVC's environment variables: on a command line, a name from
    params.yaml would pass through a shell. Set ``DVC_STAGE=train@NAME`` to run a stage by hand.
    """
    with reported(stage=True):
        if not (stage := os.environ.get(STARTED)):
            script = Path(sys.argv[0]).stem
            raise StageError(f"{script}: stages are run by DVC, as in `dvc repro {script}`")
        name = stage.partition("@")[2]
        run(name) if name else run()


def _begin() -> None:
    """In a stage that DVC started, report lack of memory, and end when that DVC process ends.

    That is the ancestor that holds DVC's lock on the outputs of a stage. Our parent process may
    instead be a shell, or the process that adopted us.
    """
    script = os.environ.get(STARTED, "").partition("@")[0]
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if ROOT not in os.environ or spec is None or spec.name != f"pipeline.stages.{script}":
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
