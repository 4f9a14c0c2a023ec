"""The engine counts every interval once, the same however it is scheduled, and in little memory."""

import itertools
import math
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from builders import many
from hypothesis import given
from hypothesis import strategies as st

from rrcm.certification.sampling import batching
from rrcm.certification.sampling.batching import Job

SIZE = 1000  # numbers that are never reached


def votes(row: int, first: int, size: int) -> np.ndarray:
    """Counts [2] that tell which draws of which job they are of: how many, and a sum of hashes."""
    draws = np.arange(first, first + size)
    return np.array([size, ((draws + SIZE * row) * 2654435761 % 4093).sum()])


def count(pieces):
    return np.stack([votes(p.job.row, p.first, p.size) for p in pieces])


class Recorder:
    """Counts, and remembers what it was asked for; slow on some batches if ``slow``."""

    def __init__(self, slow: float = 0.0) -> None:
        self.batches: list[list[batching.Piece]] = []
        self.slow = slow

    def __call__(self, pieces):
        self.batches.append(pieces)
        if self.slow and len(self.batches) % 3 == 0:
            time.sleep(self.slow)
        return count(pieces)

    def sizes(self):
        return [sum(p.size for p in pieces) for pieces in self.batches]

    def draws(self):
        """Every draw that was made."""
        pieces = itertools.chain(*self.batches)
        return Counter((p.job.row, d) for p in pieces for d in range(p.first, p.first + p.size))


def until(wanted):
    """Want intervals up to a number of them that each job has of its own."""
    return lambda job: len(job.counts) < wanted[job.row]


def always(job):
    return True


def jobs(bounds):
    return [Job(row=row, bounds=tuple(b)) for row, b in enumerate(bounds)]


def finish(made, wanted, *, count=count, task=0.0, **how):
    """Run to the end, by default with one batch a task; what each job counted."""
    found = {}
    for job in batching.run(made, count, until(wanted), task=task, **how):
        found[job.row] = [c.tolist() for c in job.counts]
    return found


def expected(bounds, wanted):
    return {
        row: [votes(row, a, b - a).tolist() for a, b in itertools.pairwise(ends)][: wanted[row]]
        for row, ends in enumerate(bounds)
    }


ladders = st.lists(st.integers(1, 30), min_size=1, max_size=6).map(
    lambda steps: [0, *itertools.accumulate(steps)]
)


@many
@given(st.data())
def test_every_interval_is_counted_once_however_it_is_scheduled(data):
    """Whatever the sizes, batches, workers and priorities; also after stops drawn past."""
    bounds = data.draw(st.lists(ladders, max_size=8))
    wanted = [data.draw(st.integers(1, len(ends) - 1)) for ends in bounds]
    ranks = data.draw(st.none() | st.permutations(range(len(bounds))))
    recorder = Recorder()

    found = finish(
        jobs(bounds),
        wanted,
        count=recorder,
        batch_size=data.draw(st.integers(1, 40)),
        task=data.draw(st.sampled_from([0.0, 1e-4, math.inf])),
        workers=data.draw(st.integers(1, 4)),
        priority=None if ranks is None else lambda job: ranks[job.row],
    )

    assert found == expected(bounds, wanted)
    assert all(times == 1 for times in recorder.draws().values())


@many
@given(st.data())
def test_a_job_is_given_back_after_each_of_its_intervals(data):
    """With the intervals so far, in their order, and done at the last one that was wanted."""
    bounds = data.draw(st.lists(ladders, min_size=1, max_size=6))
    wanted = [data.draw(st.integers(1, len(ends) - 1)) for ends in bounds]
    seen = {row: [] for row in range(len(bounds))}

    for job in batching.run(jobs(bounds), count, until(wanted), batch_size=7, workers=2):
        seen[job.row].append((len(job.counts), job.done))

    for row, last in enumerate(wanted):
        assert seen[row] == [(k, k == last) for k in range(1, last + 1)]


@many
@given(st.data())
def test_a_job_that_has_counts_draws_only_the_rest(data):
    bounds = data.draw(st.lists(ladders, min_size=1, max_size=6))
    done = [data.draw(st.integers(0, len(ends) - 2)) for ends in bounds]
    recorder, made = Recorder(), jobs(bounds)
    for job, k in zip(made, done, strict=True):
        ends = job.bounds[: k + 1]
        job.counts = [votes(job.row, a, b - a) for a, b in itertools.pairwise(ends)]

    found = finish(made, [len(b) for b in bounds], count=recorder, batch_size=8, workers=2)

    assert found == expected(bounds, [len(b) for b in bounds])
    assert set(recorder.draws()) == {
        (row, draw)
        for row, (ends, k) in enumerate(zip(bounds, done, strict=True))
        for draw in range(ends[k], ends[-1])
    }


def test_batches_are_full_wherever_something_can_be_had():
    """100 draws at a time of images that want 30: nine batches in a row mix four of them."""
    recorder = Recorder()

    finish(jobs([[0, 30]] * 30), [1] * 30, count=recorder, batch_size=100, workers=2)

    assert recorder.sizes() == [100] * 9


class InOrder(Recorder):
    """Workers of one speed: no batch is finished before the ones submitted before it.

    A worker that the system holds up lets the others draw ahead without end, which costs nothing.
    """

    def __init__(self) -> None:
        super().__init__()
        self.finished = threading.Condition()
        self.tickets, self.now = itertools.count(), 0

    def __call__(self, pieces):
        with self.finished:
            ticket = next(self.tickets)
            counts = super().__call__(pieces)
            self.finished.wait_for(lambda: self.now == ticket)
            self.now += 1
            self.finished.notify_all()
        return counts


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_little_is_drawn_in_vain(workers):
    """At the most what is under way when an image stops: two batches for each worker, and one."""
    recorder = InOrder()
    bounds, wanted = [[0, *range(10, 10_010, 10)]] * 5, [3] * 5

    found = finish(jobs(bounds), wanted, count=recorder, batch_size=16, workers=workers)

    assert found == expected(bounds, wanted)
    assert sum(recorder.sizes()) <= 5 * (30 + (2 * workers + 1) * 16)


@pytest.mark.parametrize("images", [2, 200])
def test_the_next_image_is_better_than_what_may_not_be_wanted(images):
    """A long interval is begun to fill a batch, and not gone on with when its image stops."""
    recorder, ends = Recorder(), [[0, 10, 10_000]] * images

    finish(jobs(ends), [1] * images, count=recorder, batch_size=16, workers=1)

    assert sum(recorder.sizes()) <= images * 10 + (2 + 1) * 16


class Clock(Recorder):
    """Time passes only while draws are counted, ``cost(calls so far)`` seconds for each."""

    def __init__(self, monkeypatch, cost):
        super().__init__()
        self.cost, self.now = cost, 0.0
        monkeypatch.setattr(batching.time, "perf_counter", lambda: self.now)

    def __call__(self, pieces):
        counts = super().__call__(pieces)
        self.now += self.cost(len(self.batches)) * sum(p.size for p in pieces)
        return counts


@pytest.mark.parametrize("cost", [1e-5, 1e-4, 1e-3, 1e-2])
def test_a_worker_gets_as_many_batches_as_take_the_time_of_a_task(monkeypatch, cost):
    """From one batch, doubled; a batch that takes longer alone is a task of its own."""
    clock, size, task = Clock(monkeypatch, lambda calls: cost), 8, 0.03

    finish(jobs([[0, 20_000]]), [1], count=clock, batch_size=size, workers=1, task=task)
    *whole, _ = clock.sizes()

    assert whole[0] == size and whole == sorted(whole)
    assert all(b in (a, 2 * a) for a, b in itertools.pairwise(whole))
    assert task / 2 <= whole[-1] * cost < max(task, 2 * size * cost)


@pytest.mark.parametrize("count_of_jobs", [50, 500])
@pytest.mark.parametrize("draws", [40, 40_000])
def test_few_jobs_are_in_flight_however_many_there_are(count_of_jobs, draws):
    """A job is taken when nothing else fills a batch, so memory does not grow with the images."""
    size, workers, first = 32, 2, 20
    started, most, finished = 0, 0, 0

    def source():
        nonlocal started
        for row in range(count_of_jobs):
            started += 1
            yield Job(row=row, bounds=(0, first, draws))

    long = 1 if draws > 1000 else count_of_jobs  # the others stop after their first interval
    for job in batching.run(
        source(), count, lambda job: job.row < long, batch_size=size, workers=workers, task=0
    ):
        finished += job.done
        most = max(most, started - finished)

    assert finished == count_of_jobs
    assert most <= (2 * workers + 1) * (size // first + 2)


def test_the_lowest_priority_goes_first():
    """It may change with what a job has counted; it is asked for each interval."""
    recorder = Recorder()
    rank = {0: [0, 5], 1: [1, 7], 2: [2, 4], 3: [3, 6]}  # firsts before all seconds

    finish(
        jobs([[0, 10, 20]] * 4),
        [2] * 4,
        count=recorder,
        batch_size=10,
        workers=1,
        priority=lambda job: rank[job.row][len(job.counts)],
    )
    order = [(p.job.row, p.interval) for batch in recorder.batches for p in batch]

    assert order[:4] == [(0, 0), (1, 0), (2, 0), (3, 0)]
    assert order[4:] == [(2, 1), (0, 1), (3, 1), (1, 1)]


def test_after_the_time_nothing_is_handed_out():
    """What is under way is still counted; nobody is asked again."""
    recorder, left = Recorder(), iter([False] * 6)

    found = finish(
        jobs([[0, 10, 20]] * 50),
        [2] * 50,
        count=recorder,
        batch_size=10,
        workers=2,
        expired=lambda seconds: next(left, True),
    )

    assert recorder.sizes() == [10] * 6
    assert sum(len(counts) for counts in found.values()) == 6


def test_what_waits_for_a_thread_when_the_time_is_up_is_not_drawn():
    """And the time of a task is known before the next, which may not fit into what is left."""
    recorder, over, needed = Recorder(), threading.Event(), []

    def slow(pieces):
        time.sleep(0.02)
        over.set()
        return recorder(pieces)

    def expired(seconds):
        needed.append(seconds)
        return over.is_set()

    finish(
        jobs([[0, 10]] * 9), [1] * 9, count=slow, batch_size=10, workers=1, expired=expired, task=0
    )

    assert recorder.sizes() == [10] and needed[0] == 0 and max(needed) < 5
    recorder, needed = Recorder(), []
    over.clear()
    finish(
        jobs([[0, 10]] * 9),
        [1] * 9,
        count=slow,
        batch_size=10,
        workers=1,
        expired=lambda seconds: bool(needed.append(seconds)),
        task=0,
    )
    assert len(recorder.sizes()) == 9 and needed[-1] >= 0.02


def test_an_error_of_a_worker_comes_out_and_ends_the_pool():
    def fail(pieces):
        if any(p.job.row == 3 for p in pieces):
            raise ArithmeticError("of a worker")
        return count(pieces)

    before = threading.active_count()

    with pytest.raises(ArithmeticError, match="of a worker"):
        finish(jobs([[0, 10, 20]] * 20), [2] * 20, count=fail, batch_size=10, workers=3)

    assert threading.active_count() == before


def test_an_error_of_the_caller_ends_the_pool():
    def decide(job):
        raise ArithmeticError("of the caller")

    before = threading.active_count()

    with pytest.raises(ArithmeticError, match="of the caller"):
        list(batching.run(jobs([[0, 10]] * 20), count, decide, batch_size=10, workers=3))

    assert threading.active_count() == before


def test_closing_early_ends_the_pool_and_cancels_what_waits(monkeypatch):
    recorder, before, closing = Recorder(), threading.active_count(), threading.Event()
    first = threading.Lock()  # whoever has it goes on; two may have been recorded by then

    class Pool(ThreadPoolExecutor):
        def shutdown(self, *, wait=True, cancel_futures=False):
            super().shutdown(wait=False, cancel_futures=cancel_futures)
            closing.set()
            super().shutdown(wait=wait)

    def slow(pieces):
        counts = recorder(pieces)
        assert first.acquire(blocking=False) or closing.wait(60)
        return counts

    monkeypatch.setattr(batching, "ThreadPoolExecutor", Pool)

    running = batching.run(jobs([[0, 10, 20]] * 50), slow, always, batch_size=10, workers=2, task=0)
    next(running)
    running.close()

    assert threading.active_count() == before
    assert len(recorder.batches) <= 3  # one done, two under way; a fourth had been handed out


def test_all_workers_work():
    """Each of three waits for the other two."""
    together = threading.Barrier(3, timeout=120)

    def meet(pieces):
        together.wait()
        return count(pieces)

    assert len(finish(jobs([[0, 10]] * 9), [1] * 9, count=meet, batch_size=10, workers=3)) == 9
