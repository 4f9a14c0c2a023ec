"""Schedules draws of many images in full batches of one shape, on a pool of worker threads.

An image is a `Job`: intervals of draws, counted one after the other; after each, the caller decides
whether to draw the next. A batch mixes draws of several images, and rows that would stay empty are
filled with later intervals of images in flight, which are dropped if the image stops before. A
worker gets as many batches at a time as take it `TASK` seconds. This module does not depend on
classes, noise or certificates.

Guarantee: the counts of an interval depend on the job and the interval alone, not on scheduling, if
`CountPieces` is a function of each draw. As few images are in flight as keep the workers busy, so
memory depends neither on the draws nor on the number of images.
"""

import heapq
import itertools
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any


@dataclass(kw_only=True)
class Job:
    """One image: ``bounds`` [L + 1] delimit its intervals of draws.

    ``counts`` [<= L] are those of the finished intervals, ``row`` is the image's position in the
    data, and ``done`` is true once no further interval is wanted.
    """

    row: int
    bounds: tuple[int, ...]
    counts: list[Any] = field(default_factory=list)
    done: bool = False
    issued: int = 0  # intervals handed out
    missing: dict[int, int] = field(default_factory=dict)  # interval -> draws not yet counted
    partial: dict[int, Any] = field(default_factory=dict)  # interval -> counts so far


@dataclass(frozen=True, slots=True)
class Piece:
    """Draws ``first .. first + size - 1`` of one interval of a job."""

    job: Job
    interval: int
    first: int
    size: int


# Seconds that a worker draws at a time: long beside the handing out, which another thread does, and
# short, as what is under way when an image stops is lost.
TASK = 0.05

# Counts are whatever can be added.
CountPieces = Callable[[list[Piece]], Sequence[Any]]  # pieces [P] of whole batches -> counts [P]
Decide = Callable[[Job], bool]  # called after each interval: is another one wanted?


def run(
    jobs: Iterable[Job],
    count: CountPieces,
    decide: Decide,
    *,
    batch_size: int,
    workers: int,
    task: float = TASK,
    priority: Callable[[Job], float] | None = None,
    expired: Callable[[float], bool] = lambda seconds: False,
) -> Generator[Job]:
    """Draw for ``jobs``; yield a job whenever one of its intervals has been counted.

    Args:
        jobs: In the order of their start, taken one by one as there is room; each has an interval
            that is not counted yet.
        count: Runs on worker threads, on the draws of one or more batches at a time.
        decide: Runs on the caller's thread; must be a function of ``job.counts`` alone.
        batch_size: A call of ``count`` gets a multiple of it, if there are as many draws.
        workers: Number of threads.
        task: Seconds that a call of ``count`` should take; it has at least one batch.
        priority: Jobs of the lowest value go first, and all are in flight at once. By default jobs
            go in their order, and as few are in flight as keep the workers busy.
        expired: Called on the worker thread before each task, with the seconds that the last one
            took; once it is true, nothing more is drawn, nor what waits for a thread.
    """
    queue = _Queue(iter(jobs), priority)
    batches = 1  # of a task
    seconds, over = 0.0, False  # of the last task; whether time is up
    pending: dict[Future[tuple[Sequence[Any], float] | None], list[Piece]] = {}

    def timed(pieces: list[Piece]) -> tuple[Sequence[Any], float] | None:
        if expired(seconds):
            return None
        start = time.perf_counter()
        return count(pieces), time.perf_counter() - start

    with ThreadPoolExecutor(workers) as pool:
        try:
            while True:
                while len(pending) < 2 * workers and not over:
                    if not (pieces := queue.take(batches * batch_size)):
                        break
                    pending[pool.submit(timed, pieces)] = pieces
                if not pending:
                    return
                done = wait(pending, return_when=FIRST_COMPLETED).done
                for future in [future for future in pending if future in done]:
                    pieces = pending.pop(future)
                    if (result := future.result()) is None:
                        over = True
                        continue
                    counted, seconds = result
                    had = -(-sum(piece.size for piece in pieces) // batch_size)
                    if seconds < task / 2:
                        batches = max(batches, 2 * had)
                    elif seconds > 2 * task:
                        batches = max(1, min(batches, had // 2))
                    for piece, counts in zip(pieces, counted, strict=True):
                        yield from queue.counted(piece, counts, decide)
        finally:
            pool.shutdown(cancel_futures=True)


class _Queue:
    """Pieces waiting for a batch, lowest priority first."""

    def __init__(self, jobs: Iterator[Job], priority: Callable[[Job], float] | None) -> None:
        self.jobs = jobs
        self.priority = priority
        self.flying: dict[int, tuple[int, Job]] = {}  # id -> (number, job), oldest first
        self.heap: list[tuple[float, int, int, Piece]] = []
        self.numbers = itertools.count()
        while priority and self._start():
            pass

    def take(self, rows: int) -> list[Piece]:
        """Up to ``rows`` draws; fewer only if there are no more."""
        taken: list[Piece] = []
        free = rows
        while free and (self.heap or self._start() or self._ahead()):
            rank, interval, number, piece = heapq.heappop(self.heap)
            if piece.job.done:  # issued ahead of a job that has stopped
                continue
            size = min(free, piece.size)
            taken.append(Piece(piece.job, piece.interval, piece.first, size))
            if size < piece.size:
                rest = Piece(piece.job, piece.interval, piece.first + size, piece.size - size)
                heapq.heappush(self.heap, (rank, interval, number, rest))
            free -= size
        return taken

    def counted(self, piece: Piece, counts: Any, decide: Decide) -> Iterator[Job]:
        """Add the counts of a piece; yield the job for each interval that this completes."""
        job = piece.job
        if job.done:
            return
        job.missing[piece.interval] -= piece.size
        before = job.partial.get(piece.interval)
        job.partial[piece.interval] = counts if before is None else before + counts
        while not job.done and job.missing.get(now := len(job.counts)) == 0:
            del job.missing[now]
            job.counts.append(job.partial.pop(now))
            job.done = not decide(job) or len(job.counts) == len(job.bounds) - 1
            yield job
        if job.done:
            self.flying.pop(id(job), None)
        elif job.issued == len(job.counts):
            self._issue(*self.flying[id(job)])

    def _start(self) -> bool:
        """Put one more job in flight, if there is one."""
        job = next(self.jobs, None)
        if job is None:
            return False
        job.issued = len(job.counts)
        self.flying[id(job)] = (next(self.numbers), job)
        self._issue(*self.flying[id(job)])
        return True

    def _ahead(self) -> bool:
        """Issue an interval that may not be wanted, to fill rows that would stay empty."""
        for number, job in self.flying.values():
            if job.issued < len(job.bounds) - 1:
                self._issue(number, job)
                return True
        return False

    def _issue(self, number: int, job: Job) -> None:
        interval, first = job.issued, job.bounds[job.issued]
        size = job.bounds[interval + 1] - first
        job.issued += 1
        job.missing[interval] = size
        rank = self.priority(job) if self.priority else number
        heapq.heappush(self.heap, (rank, interval, number, Piece(job, interval, first, size)))
