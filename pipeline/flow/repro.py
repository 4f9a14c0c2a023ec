"""`dvc`, called so that a stop at any moment loses nothing: ``python -m pipeline.flow.repro``.

The command line is DVC's own, and so is what it does, but for two things. Its files are written in
one piece, so that neither a signal nor a reader ever meets half a dvc.lock. And SIGTERM to all of
us is for the command of the stage: DVC waits for it, saves what it made, or cleans up, and leaves
only then; otherwise a result of hours would lie there unknown, to be deleted by the next run.
"""

import io
import logging
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dvc import rwlock
from dvc.cli import main
from dvc.stage import run
from dvc.utils.serialize import _common

from pipeline.flow import lockfile

cmd_run, edit_rwlock = run.cmd_run, rwlock._edit_rwlock


class _Leaving:
    """SIGTERM: it ends this process at once, but not between a stage's command and dvc.lock."""

    def __init__(self) -> None:
        self.asked, self.at_stake = 0, False

    def __call__(self, number: int, _: object) -> None:
        self.asked = number
        self.if_asked()

    def if_asked(self) -> None:
        if self.asked and not self.at_stake:
            sys.exit(128 + self.asked)


_leaving = _Leaving()


def _dump_whole(
    path: str, data: Any, dumper: Callable[[Any, io.StringIO], Any], fs: object = None
) -> None:
    stream = io.StringIO()
    dumper(data, stream)
    lockfile.write(stream.getvalue(), to=Path(path))
    if Path(path).name == lockfile.LOCKFILE.name:
        _leaving.at_stake = False
        _leaving.if_asked()


@contextmanager
def _edit_undisturbed(*arguments: Any) -> Iterator[Any]:
    """Half a file of DVC's path locks would stop every DVC command from then on."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        with edit_rwlock(*arguments) as lock:
            yield lock
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _wait_for_command(stage: Any, *, dry: bool, run_env: dict[str, str] | None) -> None:
    _leaving.at_stake = True
    try:
        cmd_run(stage, dry=dry, run_env=run_env)
    except BaseException:
        _leaving.at_stake = False  # nothing was made
        raise


def prepare() -> None:
    """Make this process such a `dvc`."""
    _common._dump_data = _dump_whole
    rwlock._edit_rwlock = _edit_undisturbed
    run.cmd_run = _wait_for_command
    signal.signal(signal.SIGTERM, _leaving)  # a handler: to ignore it would be inherited
    logging.getLogger("dvc.repo.scm_context").setLevel(
        logging.WARNING
    )  # what to give git, each time


if __name__ == "__main__":
    prepare()
    sys.exit(main(sys.argv[1:]))
