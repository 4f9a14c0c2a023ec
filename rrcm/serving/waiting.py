"""A line of requests before a few threads: of bounded length, first come, first served, on time."""

import asyncio
import math
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")
WEIGHT = 0.1  # of the latest request in the mean of how long one takes


class Full(Exception):
    """As many are inside as there may be; ``seconds`` says when to come back."""

    def __init__(self, why: str, *, seconds: int) -> None:
        """Whole seconds, at least one."""
        super().__init__(why)
        self.seconds = seconds


class Late(Exception):
    """The deadline passed before the work began."""


class Left(Exception):
    """Whoever asked has gone."""


class Held:
    """How much memory the bodies of all requests take at once: at most ``most`` bytes."""

    def __init__(self, most: int) -> None:
        """With none yet."""
        self.most = most
        self.bytes = 0

    @contextmanager
    def account(self) -> Iterator[Callable[[int], None]]:
        """A function that takes so many bytes more, until the block ends.

        It raises `Full` where they do not fit.
        """
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


class Line:
    """Work for ``workers`` threads; at most ``queue`` more may wait for one of them.

    ``inside`` counts all that have a place, ``working`` those whose work has begun. To be used from
    one event loop, which is never kept waiting.
    """

    def __init__(self, *, workers: int, queue: int) -> None:
        """Without a thread yet; they begin with the work."""
        self.workers = workers
        self.places = workers + queue
        self.inside = 0
        self.working = 0
        self._mean = 1.0  # seconds of work
        self._turns = asyncio.Semaphore(workers)
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="rrcm-serving")

    def check(self) -> None:
        """Nothing, if there is a place.

        Raises:
            Full: There is none.
        """
        if self.inside >= self.places:
            raise Full(
                f"{self.places - self.workers} requests are waiting already",
                seconds=math.ceil(self._mean * self.inside / self.workers),
            )

    @contextmanager
    def place(self) -> Iterator[None]:
        """A place inside, for as long as the block lasts; where there is none, as `check`."""
        self.check()
        self.inside += 1
        try:
            yield
        finally:
            self.inside -= 1

    async def run(
        self, work: Callable[[], T], *, until: float, gone: Coroutine[Any, Any, None]
    ) -> T:
        """What ``work`` returns, which is done on a thread as soon as one is free.

        Args:
            work: Once begun, it is done to its end.
            until: When it must have begun, in seconds of `time.monotonic`.
            gone: Ends when nobody wants the result any more.

        Raises:
            Late: No thread was free in time.
            Left: ``gone`` ended before one was.
        """
        turn, leaving = asyncio.create_task(self._turns.acquire()), asyncio.create_task(gone)
        try:
            left = max(until - time.monotonic(), 0)
            await asyncio.wait((turn, leaving), timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if leaving.done():
                raise Left
            if not turn.done():
                raise Late
            return await self._work(work)
        finally:
            leaving.cancel()
            if not turn.cancel():  # it was done: ours to give back
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
        """End the threads, once they have done what was begun."""
        self._pool.shutdown(wait=True)
