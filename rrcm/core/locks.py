"""File locks, which the kernel releases when their process ends for any reason."""

import fcntl
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rrcm.core.errors import StageError

POLL = 0.1  # seconds


def lock(file: int) -> bool:
    """Lock an open file; returns False, without waiting, if another open file holds the lock.

    This process and its forks hold the lock until the last of them has closed the file or ended,
    for any reason.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def alone(
    path: Path, work: str, *, say: Callable[[str], None], patience: float = math.inf
) -> Iterator[None]:
    """Run the block in one process at a time; others wait until it is done or its process ended.

    Args:
        path: The lock file, which exists while the block runs.
        work: Name of the work in messages.
        say: Called once with a message if this process has to wait.
        patience: Longest wait in seconds.

    Raises:
        StageError: Another process is still at the same work; names it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    file = _wait(path, work, say, patience)
    try:
        os.ftruncate(file, 0)
        os.pwrite(file, b"%d" % os.getpid(), 0)
        yield
    finally:
        if _is(file, path):
            path.unlink()  # while locked, so as not to remove another process's file
        os.close(file)


def _wait(path: Path, work: str, say: Callable[[str], None], patience: float) -> int:
    began, told = time.monotonic(), False
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        if lock(file) and _is(file, path):  # else its holder removed it after we had opened it
            return file
        pid = os.pread(file, 20, 0).decode(errors="replace") or "?"  # not written yet
        os.close(file)
        if time.monotonic() - began > patience:
            raise StageError(
                f"{work}: process {pid} is at the same work here; wait for it, or `kill {pid}`: "
                "the same command goes on from what it saved",
                retryable=True,
            )
        if not told:
            told = True
            say(f"{work}: waiting for process {pid}, which is at the same work")
        time.sleep(POLL)


def _is(file: int, path: Path) -> bool:
    """Whether an open file is the one at ``path``."""
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False
