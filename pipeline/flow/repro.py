"""`dvc`, called so that a stop at any moment loses nothing: ``python -m pipeline.flow.repro``.

The command line is DVC's own, and so is what it does, but for two things. Its files are written in
one piece, so that neither a kill nor a reader ever meets half of one. And SIGTERM to all of us is
for the command of the stage: DVC waits for it, saves what it made, or cleans up, and leaves then;
otherwise a result of hours would lie there unknown, to be deleted by the next run.
"""

import io
import json
import logging
import os
import signal
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from dvc import rwlock
from dvc.cli import main
from dvc.lock import make_lock
from dvc.stage import Stage, run
from dvc.utils.serialize import _common

from pipeline.flow import lockfile

PATIENCE = 5  # seconds until the next stage, where there is no other good place to leave

cmd_run, reproduce = run.cmd_run, Stage.reproduce


class _Leaving:
    """What SIGTERM asks for; not done between a stage's command and its entry in dvc.lock."""

    def __init__(self) -> None:
        self.asked = 0
        self.at_stake = False

    def ask(self, number: int, frame: FrameType | None) -> None:
        self.asked = number
        signal.alarm(PATIENCE)

    def in_order(self) -> None:
        if self.asked:
            sys.exit(128 + self.asked)

    def anyhow(self, number: int, frame: FrameType | None) -> None:
        if not self.at_stake:  # an exception would be lost in some callbacks, and DVC go on
            os._exit(128 + self.asked)


_leaving = _Leaving()


def _dump_whole(
    path: str, data: Any, dumper: Callable[[Any, io.StringIO], Any], fs: object = None
) -> None:
    stream = io.StringIO()
    dumper(data, stream)
    lockfile.write(stream.getvalue(), to=Path(path))
    if Path(path).name == lockfile.LOCKFILE.name:
        _leaving.at_stake = False


@contextmanager
def _edit_whole(folder: str, fs: object, hardlink: bool) -> Iterator[dict[str, Any]]:
    """DVC's path locks; half a file, as a kill of another DVC leaves, would stop every command."""
    path = Path(folder, rwlock.RWLOCK_FILE)
    guard = str(Path(folder, rwlock.RWLOCK_LOCK))
    with make_lock(guard, tmp_dir=folder, hardlink_lock=hardlink):
        found: dict[str, Any] = {}
        with suppress(FileNotFoundError, ValueError):  # of processes that are gone
            found = json.loads(path.read_text(encoding="utf-8"))
        locks = rwlock.SCHEMA(found)
        locks = {
            "read": defaultdict(list, locks["read"]),
            "write": defaultdict(dict, locks["write"]),
        }
        yield locks
        lockfile.write(json.dumps(locks), to=path)


def _run_command(stage: Stage, *, dry: bool, run_env: dict[str, str] | None) -> None:
    _leaving.at_stake = True
    try:
        cmd_run(stage, dry=dry, run_env=run_env)
    except BaseException:
        _leaving.at_stake = False  # nothing was made
        raise


def _reproduce_unless_leaving(stage: Stage, *arguments: Any, **more: Any) -> Stage | None:
    _leaving.in_order()
    return reproduce(stage, *arguments, **more)


def prepare() -> None:
    """Make this process such a `dvc`."""
    _common._dump_data = _dump_whole
    rwlock._edit_rwlock = _edit_whole
    run.cmd_run = _run_command
    Stage.reproduce = _reproduce_unless_leaving
    signal.signal(signal.SIGTERM, _leaving.ask)  # a handler: to ignore it would be inherited
    signal.signal(signal.SIGALRM, _leaving.anyhow)
    logging.getLogger("dvc.repo.scm_context").setLevel(
        logging.WARNING
    )  # what to give git, each time


if __name__ == "__main__":
    prepare()
    sys.exit(main(sys.argv[1:]))
