"""Samples the votes of images until the stopping rule ends each, and keeps them in a journal."""

import dataclasses
import time
from collections.abc import Iterator

import numpy as np
import torch

from rrcm.certification.sampling import batching, budget, voting
from rrcm.certification.sampling.batching import Job
from rrcm.certification.sampling.journal import InMemoryJournal
from rrcm.certification.sampling.voting import Backend, Counts, Noise
from rrcm.certification.votes import records
from rrcm.certification.votes.counts import ImageVotes
from rrcm.certification.votes.records import BUDGET, END, SKIPPED, Header, Row
from rrcm.core.errors import ConfigError
from rrcm.data.splits.shards import Split


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SamplingProgress:
    """Images finished, and draws counted by this process."""

    images: int
    draws: int


class VoteSampler:
    """Runs images as jobs of `batching.run`, and writes their votes to a journal."""

    def __init__(
        self,
        split: Split,
        header: Header,
        journal: InMemoryJournal,
        *,
        noise: Noise,
        workers: int,
        every: float,
        began: float | None = None,
    ) -> None:
        """Resume from ``journal``; arguments are those of `procedure.sample`."""
        self.split = split
        self.header = header
        self.journal = journal
        self.noise = noise
        self.workers = workers
        self.every = every
        self.began = began
        self.rule = header.rule()
        self.classes = len(header.classes)
        self.stops: dict[int, str] = {}  # place -> reason to stop, empty while drawing goes on
        self.written: dict[int, float] = {}  # place -> time of its last journal line

    def draw_votes(self, backend: Backend, places: np.ndarray) -> Iterator[SamplingProgress]:
        """Draw for the images at ``places`` until the rule stops each, or the budget is spent.

        Raises:
            ConfigError: The budget was spent before, since ``began``.
        """
        header = self.header
        began = time.monotonic() if self.began is None else self.began
        deadline = began + (header.budget or np.inf)
        todo = [int(p) for p in places if not ((row := self.row_of(p)) and row.stop)]
        if todo and self.began is not None and (now := time.monotonic()) > deadline:
            raise ConfigError(
                f"budget: the {header.budget:g} s were over before the first draw, which could "
                f"begin after {now - began:.0f} s: opening and checking the classifier are part of "
                "it; give more"
            )
        finished, draws = len(places) - len(todo), 0
        going: dict[int, Job] = {}  # place -> job whose latest counts may not be in the journal
        yield SamplingProgress(images=finished, draws=0)
        for job in batching.run(
            map(self.job_of, todo),
            self.counter(
                backend,
                voting.soft(backend, beta=header.soft) if header.soft else voting.hard(backend),
            ),
            self.wants_more,
            batch_size=header.batch_size,
            workers=self.workers,
            priority=self._priority if header.budget and len(todo) > 1 else None,
            expired=lambda seconds: time.monotonic() + seconds / 2 > deadline,
        ):
            self._keep(job)
            going[job.row] = job
            if job.done:
                del going[job.row]
            finished += job.done
            draws += int(job.counts[-1].votes.sum())
            yield SamplingProgress(images=finished, draws=draws)
        for place in todo:  # those left unfinished by the budget
            if not ((row := self.row_of(place)) and row.stop):
                job = going.get(place) or self.job_of(place)
                self.journal.append(self.as_row(job, stop=BUDGET))

    def draw_pairs(self, backend: Backend, reference: Backend, places: np.ndarray) -> None:
        """Classify ``header.paired`` further draws of each image by two functions.

        This comes before all other draws, as stopping for `transfer` depends on the disagreements.
        """
        first = self.header.n0 + self.header.n  # draws that no other round uses
        bounds = (first, first + self.header.paired)
        todo = [int(p) for p in places if not ((row := self.row_of(p)) and any(row.paired))]
        for job in batching.run(
            (Job(row=place, bounds=bounds) for place in todo),
            self.counter(backend, voting.disagreement(backend, reference)),
            lambda job: False,
            batch_size=self.header.batch_size,
            workers=self.workers,
        ):
            pair = int(job.counts[0].votes[1]), self.header.paired
            row = self.row_of(job.row) or self.as_row(Job(row=job.row, bounds=()), stop="")
            self.journal.append(dataclasses.replace(row, paired=pair))

    def counter(self, backend: Backend, ballot: voting.Ballot) -> batching.CountPieces:
        """The function that counts draws."""
        return voting.counter(
            ballot,
            self.split,
            noise=self.noise,
            batch_size=self.header.batch_size,
            device=backend.device,
            normals=backend.normals,
        )

    def row_of(self, place: int) -> Row | None:
        """The image's latest line in the journal, if any."""
        return self.journal.rows.get(int(self.split.idx[place]))

    def job_of(self, place: int) -> Job:
        """The job of an image, with the counts that its journal line has."""
        first = self.header.n0
        job = Job(row=place, bounds=(0, first, *(first + look for look in self.rule.looks)))
        if (row := self.row_of(place)) and row.n0:
            job.counts = _restored(row.votes(self.classes), soft=self.header.soft > 0)
        return job

    def wants_more(self, job: Job) -> bool:
        """Whether to draw another interval of ``job``; records the reason if not."""
        votes, stop = self.votes_of(job), ""
        if self.header.label_aware and votes.c_A != self.split.labels[job.row]:
            stop = SKIPPED
        elif votes.draws:
            end = END if votes.draws[-1] == self.header.n else ""
            stop = self.rule.stop(votes) or end
        self.stops[job.row] = stop
        return not stop

    def votes_of(self, job: Job) -> ImageVotes:
        """The votes of an image counted so far."""
        classes = self.classes
        counts = np.zeros((max(1, len(job.counts)), classes), dtype=np.int64)
        for interval, done in enumerate(job.counts):
            counts[interval] = done.votes.numpy()
        selection, steps, soft = counts[0], counts[1:], (0, 0)
        if self.header.soft:
            c_A = int(selection.argmax())
            looks = job.counts[1:]
            soft = sum(int(c.soft[c_A]) for c in looks), sum(int(c.squares[c_A]) for c in looks)
        row = self.row_of(job.row)
        return ImageVotes(
            idx=int(self.split.idx[job.row]),
            selection=selection,
            draws=self.rule.looks[: len(steps)],
            counts=steps.cumsum(axis=0),
            soft=soft,
            paired=row.paired if row else (0, 0),
        )

    def as_row(self, job: Job, *, stop: str) -> Row:
        """The journal line of an image; ``stop`` is the reason to stop, empty while it goes on."""
        votes = self.votes_of(job)
        return Row(
            idx=votes.idx,
            label=int(self.split.labels[job.row]),
            n0=records.sparse(votes.selection),
            looks=[(d, records.sparse(v)) for d, v in zip(votes.draws, votes.counts, strict=True)],
            stop=stop,
            soft=votes.soft,
            paired=votes.paired,
        )

    def _keep(self, job: Job) -> None:
        """Write to the journal when an image is done, and every few seconds before."""
        now = time.monotonic()
        if job.done or now - self.written.setdefault(job.row, now) > self.every:
            self.journal.append(self.as_row(job, stop=self.stops[job.row]))
            self.written[job.row] = now

    def _priority(self, job: Job) -> float:
        """Selections first, then the image with the largest expected gain per draw."""
        if not job.counts:
            return -np.inf
        radii = self.header.stopping.get("radii")
        return -budget.worth(self.votes_of(job), self.rule, radii=radii)


def _restored(votes: ImageVotes, *, soft: bool) -> list[Counts]:
    """The counts of each interval, restored from journal votes.

    The journal has only the sum of soft votes over all looks; it is assigned to the first look.
    """
    steps = np.vstack([votes.selection, np.diff(votes.counts, axis=0, prepend=0)])
    sums = torch.zeros(2, len(steps), steps.shape[1] if soft else 0, dtype=torch.int64)
    if soft and len(steps) > 1:
        sums[:, 1, votes.c_A] = torch.tensor(votes.soft)
    return [
        Counts(votes=v, soft=s, squares=q, nan=torch.zeros(1, dtype=torch.int64))
        for v, s, q in zip(torch.from_numpy(steps), *sums, strict=True)
    ]
