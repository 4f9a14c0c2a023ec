"""The engine counts every interval once, the same however it is scheduled, and in little memory."""

import itertools
import math
import threading
import time
from collections import Counter
from concurrent.futures import Executor, Future

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
    """Counts, and remembers what it was asked for."""

    def __init__(self) -> None:
        self.batches: list[list[batching.Piece]] = []

    def __call__(self, pieces):
        self.batches.append(pieces)
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
    """Whatever the sizes, batches, workers and priorities; also after stops drawn past.

    A job is given back after each interval, in their order; one that has counts draws the rest.
    """
    bounds = data.draw(st.lists(ladders, max_size=8))
    had = [data.draw(st.integers(0, len(ends) - 2)) for ends in bounds]
    wanted = [data.draw(st.integers(k + 1, len(b) - 1)) for k, b in zip(had, bounds, strict=True)]
    ranks = data.draw(st.none() | st.permutations(range(len(bounds))))
    recorder, made, seen = Recorder(), jobs(bounds), [[] for _ in bounds]
    for job, k in zip(made, had, strict=True):
        job.counts = [votes(job.row, a, b - a) for a, b in itertools.pairwise(job.bounds[: k + 1])]

    for job in batching.run(
        made,
        recorder,
        until(wanted),
        batch_size=data.draw(st.integers(1, 40)),
        task=data.draw(st.sampled_from([0.0, 1e-4, math.inf])),
        workers=data.draw(st.integers(1, 4)),
        priority=None if ranks is None else lambda job: ranks[job.row],
    ):
        seen[job.row].append((len(job.counts), job.done))

    found = {job.row: [counts.tolist() for counts in job.counts] for job in made}
    assert found == expected(bounds, wanted)
    for row, (k, last) in enumerate(zip(had, wanted, strict=True)):
        assert seen[row] == [(i, i == last) for i in range(k + 1, last + 1)]
    drawn = recorder.draws()
    assert all(times == 1 for times in drawn.values())
    assert all(draw >= bounds[row][had[row]] for row, draw in drawn)


def test_batches_are_full_wherever_something_can_be_had():
    """100 draws at a time of images that want 30: nine batches in a row mix four of them."""
    recorder = Recorder()

    finish(jobs([[0, 30]] * 30), [1] * 30, count=recorder, batch_size=100, workers=2)

    assert recorder.sizes() == [100] * 9


class AtOnce(Executor):
    """A pool that runs a task when it is handed in.

    Of real workers, one that the system holds up lets the others draw ahead without end.
    """

    def __init__(self, workers: int) -> None: ...

    def submit(self, task, /, *arguments):
        future = Future()
        future.set_result(task(*arguments))
        return future


@pytest.mark.parametrize("workers", [1, 3])
def test_little_is_drawn_in_vain(monkeypatch, workers):
    """At the most what is under way when an image stops: two batches for each worker."""
    monkeypatch.setattr(batching, "ThreadPoolExecutor", AtOnce)
    recorder = Recorder()
    bounds, wanted = [[0, *range(10, 10_010, 10)]], [3]

    found = finish(jobs(bounds), wanted, count=recorder, batch_size=16, workers=workers)

    assert found == expected(bounds, wanted)
    assert sum(recorder.sizes()) <= 30 + 2 * workers * 16


def test_the_next_image_is_better_than_what_may_not_be_wanted():
    """A long interval is begun to fill a batch, and not gone on with when its image stops."""
    images = 200
    recorder, ends = Recorder(), [[0, 10, 10_000]] * images

    finish(jobs(ends), [1] * images, count=recorder, batch_size=16, workers=1)

    assert sum(recorder.sizes()) <= images * 10 + (2 + 1) * 16


@pytest.mark.parametrize(("count_of_jobs", "draws"), [(500, 40), (50, 40_000)])
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


def test_after_the_time_nothing_is_handed_out():
    """What is under way is still counted; the seconds of the last task are known."""
    recorder, asked = Recorder(), []

    def slow(pieces):
        time.sleep(0.02)
        return recorder(pieces)

    found = finish(
        jobs([[0, 10, 20]] * 50),
        [2] * 50,
        count=slow,
        batch_size=10,
        workers=2,
        expired=lambda seconds: asked.append(seconds) or len(asked) > 6,
    )

    assert recorder.sizes() == [10] * 6
    assert sum(len(counts) for counts in found.values()) == 6
    assert asked[0] == 0 and max(asked) >= 0.02


@pytest.mark.parametrize("whose", ["worker", "caller"])
def test_an_error_comes_out_and_ends_the_pool(whose):
    def fail(argument):
        raise ArithmeticError(f"of the {whose}")

    before = threading.active_count()
    functions = (fail, until([2] * 20)) if whose == "worker" else (count, fail)

    with pytest.raises(ArithmeticError, match=f"of the {whose}"):
        list(batching.run(jobs([[0, 10, 20]] * 20), *functions, batch_size=10, workers=3))

    assert threading.active_count() == before


def test_all_workers_work():
    """Each of three waits for the other two."""
    together = threading.Barrier(3, timeout=120)

    def meet(pieces):
        together.wait()
        return count(pieces)

    assert len(finish(jobs([[0, 10]] * 9), [1] * 9, count=meet, batch_size=10, workers=3)) == 9
