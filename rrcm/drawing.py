"""Drawing: the votes of images as jobs of the engine, kept in a journal, until a rule says stop."""

import dataclasses
import time
from collections.abc import Iterator

import numpy as np

from rrcm import engine, planner, registry, voters, votes
from rrcm.engine import Job
from rrcm.evidence import Evidence
from rrcm.journal import Memory
from rrcm.shards import Split
from rrcm.voters import Backend
from rrcm.votes import BUDGET, END, SKIPPED, Header, Row


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """How far sampling is: images finished, and draws that were counted, both of this process."""

    images: int
    draws: int


class Drawing:
    """Votes of images as jobs of the engine: what to draw, when to stop, what to write down."""

    def __init__(
        self, split: Split, header: Header, journal: Memory, *, workers: int, every: float
    ) -> None:
        """Go on from what ``journal`` has; see `rrcm.sample.sample`."""
        self.split = split
        self.header = header
        self.journal = journal
        self.workers = workers
        self.every = every
        self.rule = header.rule()
        self.classes = len(header.classes)
        self.stops: dict[int, str] = {}  # place -> why its drawing stopped, empty while it goes on
        self.written: dict[int, float] = {}  # place -> when the journal last heard of it

    def votes(self, backend: Backend, places: np.ndarray) -> Iterator[Progress]:
        """Draw for each image until the rule says stop, or until the budget is spent."""
        header = self.header
        deadline = time.monotonic() + (header.budget or np.inf)
        todo = [int(p) for p in places if not ((row := self.row_of(p)) and row.stop)]
        finished, draws = len(places) - len(todo), 0
        going: dict[int, Job] = {}  # place -> what the journal may not have heard of yet
        yield Progress(images=finished, draws=0)
        for job in engine.run(
            map(self.job_of, todo),
            self.count(
                backend,
                voters.soft(backend, beta=header.soft) if header.soft else voters.hard(backend),
            ),
            self.wanted,
            rows=rows_at_once(backend, header.batch_size),
            workers=self.workers,
            priority=self._priority if header.budget and len(todo) > 1 else None,
            expired=lambda: time.monotonic() > deadline,
        ):
            self._keep(job)
            going[job.row] = job
            if job.done:
                del going[job.row]
            finished += job.done
            draws += int(job.counts[-1][: self.classes].sum())
            yield Progress(images=finished, draws=draws)
        for place in todo:  # what a budget left open
            if not ((row := self.row_of(place)) and row.stop):
                job = going.get(place) or self.job_of(place)
                self.journal.append(self.as_row(job, stop=BUDGET))

    def pairs(self, backend: Backend, reference: Backend, places: np.ndarray) -> None:
        """Put ``header.paired`` draws more, of each image, to two functions.

        Before all others: the stopping rule has to know how often the two disagree.
        """
        first = self.header.n0 + self.header.n  # draws that no other round sees
        bounds = (first, first + self.header.paired)
        todo = [int(p) for p in places if not ((row := self.row_of(p)) and any(row.paired))]
        for job in engine.run(
            (Job(row=place, bounds=bounds) for place in todo),
            self.count(backend, voters.disagreement(backend, reference)),
            lambda job: False,
            rows=rows_at_once(backend, self.header.batch_size),
            workers=self.workers,
        ):
            pair = int(job.counts[0][1]), self.header.paired
            row = self.row_of(job.row) or self.as_row(Job(row=job.row, bounds=()), stop="")
            self.journal.append(dataclasses.replace(row, paired=pair))

    def count(self, backend: Backend, voter: voters.Voter) -> engine.Count:
        """What the engine calls to have draws counted."""
        return voters.counting(
            voter,
            self.split,
            noise=registry.load("noises", self.header.noise),
            sigma=self.header.sigma,
            seed=self.header.seed,
            batch_size=self.header.batch_size,
            device=backend.device,
            normals=backend.normals,
        )

    def row_of(self, place: int) -> Row | None:
        """What the journal has of an image."""
        return self.journal.rows.get(int(self.split.idx[place]))

    def job_of(self, place: int) -> Job:
        """The job of an image, with the counts that the journal has of it."""
        first = self.header.n0
        job = Job(row=place, bounds=(0, first, *(first + look for look in self.rule.looks)))
        if row := self.row_of(place):
            found = row.evidence(self.classes)
            steps = np.diff(found.votes, axis=0, prepend=0)
            job.counts = [found.selection, *steps] if row.n0 else []
            if (
                self.header.soft and job.counts
            ):  # whose sums are of all draws so far: the first look's will do
                job.counts = [np.pad(c, (0, 2 * self.classes)) for c in job.counts]
                for column, total in zip((1, 2), row.soft, strict=True):
                    job.counts[min(1, len(steps))][column * self.classes + found.c_A] = total
        return job

    def wanted(self, job: Job) -> bool:
        """Whether another interval of ``job`` is."""
        evidence, stop = self.evidence_of(job), ""
        if self.header.label_aware and evidence.c_A != self.split.labels[job.row]:
            stop = SKIPPED
        elif evidence.draws:
            end = END if evidence.draws[-1] == self.header.n else ""
            stop = self.rule.stop(evidence) or end
        self.stops[job.row] = stop
        return not stop

    def evidence_of(self, job: Job) -> Evidence:
        """The votes of an image as far as they are counted."""
        classes = self.classes
        selection, *steps = job.counts or [np.zeros(classes, dtype=np.int64)]
        c_A, soft = int(selection[:classes].argmax()), (0, 0)
        if self.header.soft and steps:
            sums = sum(steps)
            soft = int(sums[classes + c_A]), int(sums[2 * classes + c_A])
        row = self.row_of(job.row)
        return Evidence(
            idx=int(self.split.idx[job.row]),
            selection=selection[:classes],
            draws=self.rule.looks[: len(steps)],
            votes=np.cumsum([step[:classes] for step in steps], axis=0).reshape(-1, classes),
            soft=soft,
            paired=row.paired if row else (0, 0),
        )

    def as_row(self, job: Job, *, stop: str) -> Row:
        """The line of an image as far as it is counted; ``stop`` says why drawing stopped."""
        found = self.evidence_of(job)
        return Row(
            idx=found.idx,
            label=int(self.split.labels[job.row]),
            n0=votes.sparse(found.selection),
            looks=[(d, votes.sparse(v)) for d, v in zip(found.draws, found.votes, strict=True)],
            stop=stop,
            soft=found.soft,
            paired=found.paired,
        )

    def _keep(self, job: Job) -> None:
        """Tell the journal: at the end of an image, and now and then before."""
        now = time.monotonic()
        if job.done or now - self.written.setdefault(job.row, now) > self.every:
            self.journal.append(self.as_row(job, stop=self.stops[job.row]))
            self.written[job.row] = now

    def _priority(self, job: Job) -> float:
        """Selections first; then what promises most for a draw."""
        if not job.counts:
            return -np.inf
        radii = self.header.stopping.get("radii")
        return -planner.worth(self.evidence_of(job), self.rule, radii=radii)


def rows_at_once(backend: Backend, batch_size: int) -> int:
    """Draws that a worker takes at a time: a batch; on a GPU several, with one read-back."""
    return batch_size * (8 if backend.device.type == "cuda" else 1)
