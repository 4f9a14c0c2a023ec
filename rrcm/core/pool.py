"""Worker processes: an ordered parallel map, and processes that end with an ancestor."""

import os
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from multiprocessing import get_context
from typing import TypeVar

import psutil

from rrcm.core.errors import DataError

POLL = 0.5  # seconds
GRACE = 10.0  # seconds from SIGTERM to SIGKILL for a process whose ancestor is gone

A = TypeVar("A")
B = TypeVar("B")


def spread(
    function: Callable[[A], B], tasks: Iterable[A], *, workers: int
) -> Generator[B, None, None]:
    """``map(function, tasks)`` in ``workers`` processes.

    Raises:
        DataError: A process died, as happens when memory runs out.
    """
    if workers == 1:
        yield from map(function, tasks)
        return
    # Forked, because importing everything again would cost each worker seconds.
    fork, parent = get_context("fork"), (os.getpid(),)
    with ProcessPoolExecutor(workers, fork, initializer=_begin, initargs=parent) as pool:
        try:
            yield from pool.map(function, tasks)
        except BrokenProcessPool:
            raise DataError(
                f"one of {workers} processes was killed, perhaps for want of memory; run the "
                "command again"
            ) from None


def _begin(parent: int) -> None:
    """Initialise a worker: it ends with ``parent``, and leaves keyboard interrupts to it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    follow(parent)


def ours(pid: int) -> bool:
    """Whether process ``pid`` is alive and an ancestor of this one.

    A later process that reuses its number does not count: it is no ancestor.
    """
    for _ in range(3):  # a process in between may end during the search
        with suppress(psutil.NoSuchProcess):
            return any(process.pid == pid for process in psutil.Process().parents())
    return False


def follow(pid: int) -> None:
    """End this process when its ancestor ``pid`` ends, even if that is killed.

    This process gets SIGTERM within about a second, and SIGKILL if that does not end it.
    """

    def watch() -> None:
        while ours(pid):
            time.sleep(POLL)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(GRACE)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="follow", daemon=True).start()
