"""File locks, which the kernel releases when their process ends for any reason.

A lock may lie in a folder where others can write, such as one of shared results. So nothing of it
is trusted before it was looked at.
"""

import errno
import fcntl
import math
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rrcm.core.errors import StageError
from rrcm.core.files import make_folder

POLL = 0.1  # seconds


def opened(path: Path, flags: int) -> int:
    """Open a lock file; what else another user may have put there is neither waited for nor used.

    Raises:
        StageError: ``path`` is a link, a pipe, another name of a file, or anything but a file.
        OSError: It cannot be opened.
    """
    try:
        file = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):  # a link, a socket, a folder
            raise _refused(path) from None
        raise
    found = os.fstat(file)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:  # 0: removed since
        os.close(file)
        raise _refused(path)
    return file


def _refused(path: Path) -> StageError:
    return StageError(f"{path}: must be a plain file, a lock; see who put it there, and remove it")


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
        StageError: Another process is still at the same work, and is named; or as `opened`.
    """
    make_folder(path)
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
        file = opened(path, os.O_RDWR | os.O_CREAT)
        if lock(file) and _is(file, path):  # else its holder removed it after we had opened it
            return file
        read = os.pread(file, 20, 0)
        pid = read.decode() if read.isdigit() else "?"  # not written yet, or by somebody else
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
