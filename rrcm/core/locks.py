"""Files that are locks, which the kernel frees when their process ends, however it does."""

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
    """Lock an open file, unless another one has it locked.

    Its process and those forked from it hold the lock until the last of them has closed the file or
    ended, however that comes about.
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
    """Be the only process at some work; the others wait until it is done, or its process ended.

    Args:
        path: The lock, a file that is there meanwhile.
        work: What it is, for messages.
        say: Called once with a line, if another process has to be waited for.
        patience: Seconds to wait at most.

    Raises:
        StageError: Another process is still at work; names it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    file = _wait(path, work, say, patience)
    try:
        os.ftruncate(file, 0)
        os.pwrite(file, b"%d" % os.getpid(), 0)
        yield
    finally:
        if _is(file, path):
            path.unlink()  # while it is locked, so that nobody else's is removed
        os.close(file)


def _wait(path: Path, work: str, say: Callable[[str], None], patience: float) -> int:
    began, told = time.monotonic(), False
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        if lock(file) and _is(file, path):  # else its holder removed it after we had opened it
            return file
        pid = os.pread(file, 20, 0).decode(errors="replace") or "?"  # it is just about to say
        os.close(file)
        if time.monotonic() - began > patience:
            raise StageError(
                f"{work}: process {pid} is at the same work here; wait for it, or `kill {pid}`: "
                "the same command goes on from what it saved"
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
