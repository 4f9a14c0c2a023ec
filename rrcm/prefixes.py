"""Votes of the first 1, 2, …, k members of an ensemble, from one pass over the noise.

An image is drawn for until every prefix has stopped; what a prefix is told ends where its own rule
stopped. A member is asked once for a noisy input, not once for each prefix that it is in.

Guarantee: the votes of a prefix are those that sampling it alone would give, byte for byte, but for
its name: draws are the same, all else is counted and judged apart.
"""

import dataclasses
import hashlib
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from rrcm import engine, voters, votes
from rrcm.config import require
from rrcm.drawing import Drawing, Progress, rows_at_once
from rrcm.engine import Job, Piece
from rrcm.journal import Journal
from rrcm.sample import require_classes, subset
from rrcm.shards import Split
from rrcm.voters import Backend
from rrcm.votes import Header


def headers(whole: Header, members: int) -> list[Header]:
    """The definitions of the votes of all prefixes; the last is ``whole``, the ensemble itself.

    The others have names and weights of their own: ``<run>-first<j>``, and the SHA-256 of those of
    the ensemble and j.

    Raises:
        ConfigError: ``whole`` has a budget or compares with another function.
    """
    require(not whole.budget, "prefixes: none would end where it would have ended alone")
    require(not whole.paired, f"prefixes: sample.paired must be 0, got {whole.paired}")
    found = []
    for j in range(1, members):
        own = weights(whole.weights, j)
        found.append(dataclasses.replace(whole, run=f"{whole.run}-first{j}", weights=own))
    return [*found, whole]


def weights(whole: str, members: int) -> str:
    """The SHA-256 that names the first ``members`` of the ensemble of the weights ``whole``."""
    return hashlib.sha256(f"{whole} first {members}".encode()).hexdigest()


def parts(run: str) -> tuple[str, int | None]:
    """The ensemble and j of a prefix, from the name that `headers` gives it; else no j."""
    found = re.fullmatch(r"(.+)-first([1-9]\d*)", run)
    return (found[1], int(found[2])) if found else (run, None)


def sample(
    backend: Backend,
    split: Split,
    headers: list[Header],
    paths: list[Path],
    *,
    workers: int,
    every: float = 5.0,
) -> Iterator[Progress]:
    """Write the votes of each prefix to its path, going on from journals beside them.

    Yields the progress: first what the journals have, then whenever there is more.

    Args:
        backend: The ensemble, opened with ``prefixes``.
        split: Images to certify.
        headers: From `headers`, one for each prefix.
        paths: The votes files; written whole, at the end, in this order.
        workers: Threads.
        every: Seconds between two lines of an image that is still being drawn.

    Raises:
        VotesError: A journal holds votes of another classifier or setting.
        BackendError: The classes are not those of ``split``, or a score is NaN.
    """
    header = headers[-1]
    require_classes(header, split)
    places = subset(header.subset, len(split.idx), shard=header.shard)
    journals = [path.with_suffix(".journal") for path in paths]
    with ExitStack() as stack:
        drawings = [
            Drawing(split, head, stack.enter_context(Journal(journal, head)), workers=1, every=0)
            for head, journal in zip(headers, journals, strict=True)
        ]
        yield from _Together(drawings, every=every).votes(backend, places, workers=workers)
        found = [[d.journal.rows[int(split.idx[place])] for place in places] for d in drawings]
    for path, head, rows in zip(paths, headers, found, strict=True):
        votes.write(path, head, rows)
    for journal in journals:
        journal.unlink()


class _Together:
    """Several classifiers that see the same draws: jobs whose counts are [k, columns]."""

    def __init__(self, drawings: list[Drawing], *, every: float) -> None:
        self.drawings = drawings
        self.every = every
        self.written: dict[int, float] = {}  # place -> when the journals last heard of it

    def votes(self, backend: Backend, places: np.ndarray, *, workers: int) -> Iterator[Progress]:
        """Draw for each image until the rule of each classifier says stop."""
        header = self.drawings[0].header
        todo = [int(place) for place in places if self._going(place)]
        finished, draws = len(places) - len(todo), 0
        flat = self.drawings[0].count(backend, voters.prefixes(backend, beta=header.soft))

        def count(pieces: list[Piece]) -> np.ndarray:
            return flat(pieces).reshape(len(pieces), len(self.drawings), -1)

        yield Progress(images=finished, draws=0)
        for job in engine.run(
            map(self._job, todo),
            count,
            self._wanted,
            rows=rows_at_once(backend, header.batch_size),
            workers=workers,
        ):
            self._keep(job)
            finished += job.done
            draws += int(job.counts[-1][0, : len(header.classes)].sum())
            yield Progress(images=finished, draws=draws)

    def _going(self, place: int) -> list[int]:
        """Which classifiers want more draws of an image, by what the journals have."""
        rows = [drawing.row_of(place) for drawing in self.drawings]
        return [j for j, row in enumerate(rows) if not (row and row.stop)]

    def _job(self, place: int) -> Job:
        """The job of an image, as far as all that go on have counted it.

        Where a crash left them at different looks, it begins again: the draws are the same.
        """
        jobs = {j: self.drawings[j].job_of(place) for j in self._going(place)}
        first, *others = jobs.values()
        if all(len(job.counts) == len(first.counts) for job in others):
            for i, counts in enumerate(first.counts):  # who stopped needs no more than zeros
                each = [jobs[j].counts[i] if j in jobs else 0 * counts for j in self._all()]
                first.counts[i] = np.stack(each)
        else:
            first.counts.clear()
        return first

    def _all(self) -> range:
        return range(len(self.drawings))

    def _wanted(self, job: Job) -> bool:
        """Whether anybody wants another interval; writes down whoever does not."""
        for j in self._going(job.row):
            drawing, own = self.drawings[j], _own(job, j)
            if not drawing.wanted(own):
                drawing.journal.append(drawing.as_row(own, stop=drawing.stops[job.row]))
        return bool(self._going(job.row))

    def _keep(self, job: Job) -> None:
        """Tell the journals now and then how far the others are."""
        now = time.monotonic()
        if now - self.written.setdefault(job.row, now) > self.every:
            for j in self._going(job.row):
                drawing = self.drawings[j]
                drawing.journal.append(drawing.as_row(_own(job, j), stop=""))
            self.written[job.row] = now


def _own(job: Job, j: int) -> Job:
    return Job(row=job.row, bounds=job.bounds, counts=[counts[j] for counts in job.counts])
