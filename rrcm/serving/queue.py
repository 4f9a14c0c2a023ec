"""A bounded queue of requests for a few threads: first in, first out, with deadlines."""

import asyncio
import math
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")
WEIGHT = 0.1  # weight of the latest request in the running mean of seconds per request


class Full(Exception):
    """The queue is full; a client may try again after ``seconds``."""

    def __init__(self, why: str, *, seconds: int) -> None:
        """``seconds`` is a whole number, at least one."""
        super().__init__(why)
        self.seconds = seconds


class DeadlinePassed(Exception):
    """The deadline passed before the work began."""


class ClientGone(Exception):
    """The client closed its connection."""


class BodyMemory:
    """Counts the bytes of all bodies in memory, at most ``most``."""

    def __init__(self, most: int) -> None:
        """Start with no bytes."""
        self.most = most
        self.bytes = 0

    @contextmanager
    def account(self) -> Iterator[Callable[[int], None]]:
        """A function that reserves further bytes until the block ends, or raises `Full`."""
        own = 0

        def take(count: int) -> None:
            nonlocal own
            if self.bytes + count > self.most:
                raise Full(f"the bodies that are here fill {self.most:,} bytes", seconds=1)
            self.bytes += count
            own += count

        try:
            yield take
        finally:
            self.bytes -= own


class WorkQueue:
    """A queue for ``workers`` threads, in which at most ``queue`` requests wait.

    ``inside`` counts all requests with a place, ``working`` those in work. It belongs to one event
    loop, which it never blocks.
    """

    def __init__(self, *, workers: int, queue: int) -> None:
        """Create the queue; its threads start with the first requests."""
        self.workers = workers
        self.places = workers + queue
        self.inside = 0
        self.working = 0
        self._mean = 1.0  # seconds of work
        self._turns = asyncio.Semaphore(workers)
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="rrcm-serving")

    def waiting(self) -> int:
        """The number of requests that have a place and are not in work."""
        return self.inside - self.working

    def check(self) -> None:
        """Check that the queue has a free place.

        Raises:
            Full: The queue is full.
        """
        if self.inside >= self.places:
            raise Full(
                f"{self.places - self.workers} requests are waiting already",
                seconds=math.ceil(self._mean * self.inside / self.workers),
            )

    @contextmanager
    def place(self) -> Iterator[None]:
        """Hold a place until the block ends; raises as `check` does."""
        self.check()
        self.inside += 1
        try:
            yield
        finally:
            self.inside -= 1

    async def run(
        self, work: Callable[[], T], *, until: float, gone: Coroutine[Any, Any, None]
    ) -> T:
        """Run ``work`` on a thread as soon as one is free, and return its result.

        Args:
            work: Once started, it runs to its end.
            until: The deadline of its start, in seconds of `time.monotonic`.
            gone: Ends when the client has gone.

        Raises:
            DeadlinePassed: No thread was free in time.
            ClientGone: ``gone`` ended before a thread was free.
        """
        turn, leaving = asyncio.create_task(self._turns.acquire()), asyncio.create_task(gone)
        try:
            left = max(until - time.monotonic(), 0)
            await asyncio.wait((turn, leaving), timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if leaving.done():
                raise ClientGone
            if not turn.done():
                raise DeadlinePassed
            return await self._work(work)
        finally:
            leaving.cancel()
            if not turn.cancel():  # it was acquired
                self._turns.release()

    async def _work(self, work: Callable[[], T]) -> T:
        began = time.monotonic()
        self.working += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, work)
        finally:
            self.working -= 1
            self._mean += WEIGHT * (time.monotonic() - began - self._mean)

    def close(self) -> None:
        """End the threads after the requests in work."""
        self._pool.shutdown(wait=True)
