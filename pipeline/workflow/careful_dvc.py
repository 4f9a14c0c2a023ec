"""`dvc repro` so that a stop or a kill at any moment loses nothing.

``python -m pipeline.workflow.careful_dvc`` is `dvc` with two differences. It replaces dvc.lock at
once, where DVC would write it in place. And outputs that git keeps, the metrics, stay until they
are replaced: DVC removes the outputs of a stage before it runs it, but the stage itself replaces
these file by file, and removes those that are left over. So whatever fails or is killed, each file
is whole: as it was, or as it will be.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any

from dvc import dvcfile
from dvc.output import Output
from dvc.utils.serialize import modify_yaml

from pipeline.workflow import lockfile, processes
from pipeline.workflow.lockfile import GUARD
from rrcm.core.files import atomic
from rrcm.core.locks import lock

RUNS = Path(".dvc/cache/runs")  # DVC's run cache: a folder of files for each set of inputs
PATH_LOCKS, PATH_GUARD = Path(".dvc/tmp/rwlock"), Path(".dvc/tmp/rwlock.lock")
SAVING = 3600.0  # seconds that DVC may take to record the outputs of a stopped stage

_remove, _checkout = Output.remove, Output.checkout
_kept: set[str] = set()


def repro(arguments: Sequence[str], **how: Any) -> subprocess.Popen[bytes]:
    """Start `dvc repro` so that a stop at any moment loses nothing.

    Guarantee: SIGTERM to the process, or our own end, stops the command of the running stage. DVC
    itself, in a session of its own, gets no signal: it records the outputs, or cleans up, and ends.
    It is killed only after SAVING seconds. See `processes.start` for the options.
    """
    mend()
    command = [sys.executable, "-m", __name__, "--wait-for-lock", "repro", *arguments]
    return processes.start(command, spare=SAVING, **how)


def mend() -> None:
    """Remove partial files of a killed DVC, at which the next one would fail.

    These are a truncated file of path locks (its processes are gone, or find their locks free) and,
    unless another DVC is running, truncated entries and empty folders of the run cache.
    """
    if PATH_LOCKS.exists():
        with PATH_GUARD.open("ab") as guard:
            processes.take(guard.fileno(), stop=Event(), why="DVC's path locks")
            try:
                json.loads(PATH_LOCKS.read_text(encoding="utf-8"))
            except ValueError:
                PATH_LOCKS.unlink()
    lockfile.require_lock()
    GUARD.parent.mkdir(parents=True, exist_ok=True)
    with GUARD.open("ab") as guard:
        if lock(guard.fileno()):
            for part in RUNS.glob("*/*/.*.tmp"):
                part.unlink()
            for folder in RUNS.glob("*/*"):
                if not any(folder.iterdir()):
                    folder.rmdir()


@contextmanager
def modified(path: str, fs: Any = None) -> Iterator[Any]:
    """The contents of a file of YAML, to change in place; the file is then replaced."""
    with atomic(Path(path)) as part:
        if Path(path).exists():
            shutil.copyfile(path, part)
        with modify_yaml(part) as contents:
            yield contents


def remove(out: Output, *arguments: Any, **more: Any) -> None:
    """Remove an output before its stage runs, unless it is in git."""
    if out.use_cache:
        _remove(out, *arguments, **more)
    else:
        _kept.add(out.fs_path)


def checkout(out: Output, *arguments: Any, force: bool = False, **more: Any) -> Any:
    """Check out an output; one that would have been removed is replaced without a question."""
    return _checkout(out, *arguments, force=force or out.fs_path in _kept, **more)


def become_careful() -> None:
    """Change DVC in this process."""
    Output.remove, Output.checkout, dvcfile.modify_yaml = remove, checkout, modified


if __name__ == "__main__":
    from dvc.cli import main

    become_careful()
    sys.exit(main(sys.argv[1:]))
