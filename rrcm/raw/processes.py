"""Work that all cores share, in the order in which it was given out."""

import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import TypeVar

from rrcm.errors import DataError

A, B = TypeVar("A"), TypeVar("B")


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
    with ProcessPoolExecutor(workers, fork, initializer=_follow, initargs=parent) as pool:
        ahead = deque()
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


def _follow(parent: int) -> None:
    """End with ``parent``, even if it was killed; leave an interrupt from the keyboard to it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.2)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
