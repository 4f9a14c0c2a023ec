"""The engine: draws of many images in batches of one shape, with no core or device left waiting.

An image is a `Job`: intervals of draws, counted one after the other; after each the caller decides
whether the next is wanted. Batches are filled from whatever is wanted, so that the first draws of
later images ride with the last ones of earlier images. Rows that nobody wants are filled with the
next intervals of images in flight: dropped if not needed, free if they are. Nothing in here knows
of classes, noise or certificates.

Guarantee: what is counted in an interval depends on the job and the interval alone, if `Count` of a
draw does; on nothing that the scheduling decides. In flight are as few images as keep the workers
busy, so memory depends neither on the draws nor on the number of images.
"""

import heapq
import itertools
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

import numpy as np


@dataclass(kw_only=True)
class Job:
    """One image: ``bounds`` [L + 1] delimit its intervals of draws, ``counts`` [<= L] those done.

    ``row`` is its place in the data. ``done`` says that no further interval is wanted.
    """

    row: int
    bounds: tuple[int, ...]
    counts: list[np.ndarray] = field(default_factory=list)
    done: bool = False
    issued: int = 0  # intervals handed out
    missing: dict[int, int] = field(default_factory=dict)  # interval -> draws not yet counted
    partial: dict[int, np.ndarray] = field(default_factory=dict)  # interval -> counts so far


@dataclass(frozen=True, slots=True)
class Piece:
    """Draws ``first .. first + size - 1`` of one interval of a job."""

    job: Job
    interval: int
    first: int
    size: int


Count = Callable[[list[Piece]], np.ndarray]  # pieces [P] of whole batches -> counts [P, K]
Decide = Callable[[Job], bool]  # called after each interval: is another one wanted?


def run(
    jobs: Iterable[Job],
    count: Count,
    decide: Decide,
    *,
    rows: int,
    workers: int,
    priority: Callable[[Job], float] | None = None,
    expired: Callable[[], bool] = lambda: False,
) -> Iterator[Job]:
    """Draw for ``jobs``; yields a job whenever one of its intervals has been counted.

    Args:
        jobs: In the order in which they are started, taken one by one as there is room; each with
            an interval that is not counted yet.
        count: Runs on worker threads, on at most ``rows`` draws at a time.
        decide: Runs on the caller's thread; must be a function of ``job.counts`` alone.
        rows: Draws handed to a worker at a time, a multiple of the batch size.
        workers: Threads.
        priority: The lowest goes first. Given, all jobs are in flight at once; without, jobs go in
            their order, and as few as keep the workers busy.
        expired: Asked before each batch; when true, nothing more is handed out.
    """
    queue = _Queue(iter(jobs), priority)
    pending: dict[Future[np.ndarray], list[Piece]] = {}
    with ThreadPoolExecutor(workers) as pool:
        try:
            while True:
                while len(pending) < 2 * workers and not expired():
                    if not (pieces := queue.take(rows)):
                        break
                    pending[pool.submit(count, pieces)] = pieces
                if not pending:
                    return
                done = wait(pending, return_when=FIRST_COMPLETED).done
                for future in [future for future in pending if future in done]:
                    pieces = pending.pop(future)
                    for piece, counts in zip(pieces, future.result(), strict=True):
                        yield from queue.counted(piece, counts, decide)
        finally:
            pool.shutdown(cancel_futures=True)


class _Queue:
    """Pieces that wait for a batch, lowest priority first."""

    def __init__(self, jobs: Iterator[Job], priority: Callable[[Job], float] | None) -> None:
        self.jobs = jobs
        self.priority = priority
        self.flying: dict[int, tuple[int, Job]] = {}  # id -> (number, job), oldest first
        self.heap: list[tuple[float, int, int, Piece]] = []
        self.numbers = itertools.count()
        while priority and self._start():
            pass

    def take(self, rows: int) -> list[Piece]:
        """Up to ``rows`` draws; fewer only when no more can be had."""
        taken: list[Piece] = []
        free = rows
        while free and (self.heap or self._start() or self._ahead()):
            *key, piece = heapq.heappop(self.heap)
            if piece.job.done:  # drawn ahead, and not wanted any more
                continue
            size = min(free, piece.size)
            taken.append(Piece(piece.job, piece.interval, piece.first, size))
            if size < piece.size:
                rest = Piece(piece.job, piece.interval, piece.first + size, piece.size - size)
                heapq.heappush(self.heap, (*key, rest))
            free -= size
        return taken

    def counted(self, piece: Piece, counts: np.ndarray, decide: Decide) -> Iterator[Job]:
        """Take in what came back; yields the job for each interval that is now whole."""
        job = piece.job
        if job.done:
            return
        job.missing[piece.interval] -= piece.size
        job.partial[piece.interval] = job.partial.get(piece.interval, 0) + counts
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
        """Issue an interval before it is known to be wanted, rather than an empty row."""
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
