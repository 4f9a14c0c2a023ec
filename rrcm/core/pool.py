"""Processes: work that several share in the order in which it was given out, and how they end."""

import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from multiprocessing import get_context
from typing import TypeVar

import psutil

from rrcm.core.errors import DataError

POLL = 0.5  # seconds
GRACE = 10.0  # seconds that a process whose starter is gone has to end by itself

A = TypeVar("A")
B = TypeVar("B")


def spread(function: Callable[[A], B], tasks: Iterable[A], *, workers: int) -> Iterator[B]:
    """``map(function, tasks)`` in ``workers`` processes; tasks are taken a few ahead of results.

    Raises:
        DataError: A process died, which is what happens where memory runs out.
    """
    if workers == 1:
        yield from map(function, tasks)
        return
    # Forked: the workers read, hash and decode, and need not import it all again, seconds each.
    fork, parent = get_context("fork"), (os.getpid(),)
    with ProcessPoolExecutor(workers, fork, initializer=_begin, initargs=parent) as pool:
        ahead: deque[Future[B]] = deque()
        try:
            for task in tasks:
                ahead.append(pool.submit(function, task))
                if len(ahead) > 2 * workers:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()
        except BrokenProcessPool:
            raise DataError(
                f"one of {workers} processes was killed, perhaps for want of memory; run the "
                "command again"
            ) from None
        finally:
            for future in ahead:
                future.cancel()


def _begin(parent: int) -> None:
    """End with ``parent``; leave an interrupt from the keyboard to it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    follow(parent)


def ours(pid: int) -> bool:
    """Whether process ``pid`` lives and started this one, or started who started it, and so on.

    Another process that was given its number since is not taken for it: it started none of these.
    """
    for _ in range(3):  # somebody between us may end while we look
        with suppress(psutil.NoSuchProcess):
            process: psutil.Process | None = psutil.Process()
            while process is not None and process.pid != pid:
                process = process.parent()
            return process is not None
    return False


def follow(pid: int) -> None:
    """End with process ``pid``, one of those that `ours` tells, even if that is killed.

    This process gets SIGTERM within a second or so, and SIGKILL if that does not end it.
    """

    def watch() -> None:
        while ours(pid):
            time.sleep(POLL)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(GRACE)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="follow", daemon=True).start()
