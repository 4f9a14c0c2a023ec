"""Samples the votes of images until the stopping rule ends each, and keeps them in a journal."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass

import numpy as np

from rrcm.certification.sampling import batching, drift, replay, voting
from rrcm.certification.sampling.batching import Job
from rrcm.certification.sampling.journal import InMemoryJournal
from rrcm.certification.votes import records
from rrcm.certification.votes.counts import ImageVotes
from rrcm.certification.votes.records import BUDGET, END, Header, Row
from rrcm.core.ending import seconds_between_saves
from rrcm.core.errors import ConfigError, NoFunctionError
from rrcm.data.splits.shards import Split
from rrcm.inference.backend import Backend


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingProgress:
    """Images finished, and draws counted by this process."""

    images: int
    draws: int


BETWEEN_SAVES = seconds_between_saves(5.0)  # lines of the journal: what a kill may lose
Watch = Callable[[ImageVotes, float], None]  # the votes so far, and the radius certified by them


@dataclass
class VoteSampler:
    """Runs images as jobs of `batching.run`, and writes their votes to a journal.

    It resumes from ``journal``. ``workers`` is the number of threads of each device; ``every`` are
    the seconds between journal lines of an unfinished image, of which a kill loses no more; and
    ``budget_start`` is when the budget of ``header`` began, of `time.monotonic`, by default with
    the draws. ``watch`` is shown each look of the rule, and its error ends all.
    """

    split: Split
    header: Header
    journal: InMemoryJournal
    _: KW_ONLY
    workers: int
    every: float = BETWEEN_SAVES
    budget_start: float | None = None
    watch: Watch | None = None

    def __post_init__(self) -> None:
        self.rule, self.classes = self.header.rule(), len(self.header.classes)
        self.places = subset(self.header.subset, len(self.split.idx), shard=self.header.shard)
        self.stops: dict[int, str] = {}  # place -> reason to stop, empty while drawing goes on
        self.written: dict[int, float] = {}  # place -> time of its last journal line
        self.waiting: dict[int, Row] = {}  # place -> what is written once no drift is found
        self.backends: Sequence[Backend] = ()
        # the next writing is a pause later
        self.saved, self.pause = time.monotonic(), self.every

    def draw_votes(self, backends: Sequence[Backend]) -> Iterator[SamplingProgress]:
        """Draw for the images of the share until the rule stops each, or the budget is spent.

        ``backends`` are the same function on one device or several. Under a budget images take
        turns, so that all have about as many looks when it is spent. Votes are written, and given
        out at the end, after a batch was asked again; a foreign classifier is also asked for single
        rows of what is drawn (`drift`).

        Raises:
            ConfigError: The budget was spent before, since ``budget_start``.
            NoFunctionError: A classifier has changed, or looks at whole batches; the journal is
                then empty.
            VotesError: The journal has votes of another network.
        """
        header = self.header
        start = time.monotonic() if self.budget_start is None else self.budget_start
        deadline = start + (header.budget or np.inf)
        todo = [int(p) for p in self.places if not ((row := self.row_of(p)) and row.stop)]
        if todo and self.budget_start is not None and (now := time.monotonic()) > deadline:
            raise ConfigError(
                f"budget: the {header.budget:g} s were over before the first draw, which could "
                f"begin after {now - start:.0f} s: opening and checking the classifier are part of "
                "it; give more"
            )
        finished, draws = len(self.places) - len(todo), 0
        self.backends = backends
        for backend in backends if todo else ():
            self._ask(backend)
        replay.require_same(
            backends[0], header, self.split, self.journal.rows.values(), where="the journal"
        )
        going: dict[int, Job] = {}  # place -> job whose latest counts may not be in the journal
        yield SamplingProgress(images=finished, draws=0)
        try:
            for job in batching.run(
                map(self.job_of, todo),
                voting.taking_turns(
                    [self._counter(each) for each in backends], workers=self.workers
                ),
                self.wants_more,
                batch_size=header.batch,
                workers=self.workers * len(backends),
                priority=(lambda job: len(job.counts)) if header.budget else None,
                expired=lambda seconds: time.monotonic() + seconds / 2 > deadline,
            ):
                self._keep(job)
                going[job.row] = job
                if job.done:
                    del going[job.row]
                finished += job.done
                draws += int(job.counts[-1].sum())
                yield SamplingProgress(images=finished, draws=draws)
            for place in todo:  # those left unfinished by the budget
                if not ((row := self.row_of(place)) and row.stop):
                    job = going.get(place) or self.job_of(place)
                    self.waiting[place] = self.as_row(job, stop=BUDGET)
        except NoFunctionError:
            self._void()
            raise
        finally:
            self._write()

    def _ask(self, backend: Backend) -> None:
        """Ask a batch of which `drift` remembers the scores, unless the checks did."""
        header = self.header
        if not drift.known(backend):
            with voting.in_memory(self.split, header.batch):
                drift.remember(backend, voting.batch(self.split, header.batch))

    def _counter(self, backend: Backend) -> batching.CountPieces:
        noise, size = voting.noise(self.header, self.split), self.header.batch
        look = drift.AloneCheck(backend) if self.header.foreign else None
        return voting.counter(backend, self.split, noise=noise, batch_size=size, look=look)

    def rows(self) -> list[Row]:
        """The journal's rows of the images of the share, in their order, once all were drawn."""
        return [self.journal.rows[int(self.split.idx[place])] for place in self.places]

    def row_of(self, place: int) -> Row | None:
        """The image's latest line, if any, in the journal or on the way to it."""
        return self.waiting.get(place) or self.journal.rows.get(int(self.split.idx[place]))

    def job_of(self, place: int) -> Job:
        """The job of an image, with the counts that its journal line has."""
        first = self.header.n0
        job = Job(row=place, bounds=(0, first, *(first + look for look in self.rule.looks)))
        if (row := self.row_of(place)) and row.n0:
            votes = row.votes(self.classes)
            job.counts = [votes.selection, *np.diff(votes.counts, axis=0, prepend=0)]
        return job

    def wants_more(self, job: Job) -> bool:
        """Whether to draw another interval of ``job``; records the reason if not."""
        votes, stop = self.votes_of(job), ""
        if votes.draws:
            if self.watch:
                self.watch(votes, self.rule.claim.radius(votes, self.rule))
            end = END if votes.draws[-1] == self.header.n else ""
            stop = self.rule.stop(votes) or end
        self.stops[job.row] = stop
        return not stop

    def votes_of(self, job: Job) -> ImageVotes:
        """The votes of an image counted so far."""
        nothing = np.zeros(self.classes, dtype=np.int64)
        selection, *steps = job.counts or [nothing]
        return ImageVotes(
            idx=int(self.split.idx[job.row]),
            selection=selection,
            draws=self.rule.looks[: len(steps)],
            counts=np.array(steps, dtype=np.int64).reshape(-1, self.classes).cumsum(axis=0),
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
        )

    def _keep(self, job: Job) -> None:
        """Note a line when an image is done, and every few seconds before, and write what waits."""
        now = time.monotonic()
        if job.done or now - self.written.setdefault(job.row, now) > self.every:
            self.waiting[job.row] = self.as_row(job, stop=self.stops[job.row])
            self.written[job.row] = now
        if now > self.saved + self.pause:
            self._write()

    def _void(self) -> None:
        self.waiting.clear()
        self.journal.void()

    def _write(self) -> None:
        """Write what waits to the journal, if the classifier is still the one that was checked."""
        if not self.waiting:
            return
        try:
            seconds = sum(map(drift.require_none, self.backends))
        except NoFunctionError:
            self._void()
            raise
        for row in self.waiting.values():
            self.journal.append(row)
        self.waiting.clear()
        self.saved = time.monotonic()
        self.pause = max(self.every, seconds / drift.ASKING) if self.every > 0 else self.every


def subset(rule: str, images: int, *, shard: str = "1/1") -> np.ndarray:
    """Positions of the images of a share; ``rule`` is ``all``, ``every:K`` or ``first:K``."""
    kind, _, number = rule.partition(":")
    i, k = map(int, shard.split("/"))
    every = np.arange(images)
    if rule == "all":
        chosen = every
    elif kind in ("every", "first") and number.isdecimal() and int(number) > 0:
        chosen = every[:: int(number)] if kind == "every" else every[: int(number)]
    else:
        raise ConfigError(f"sample.subset: expected all, every:K or first:K, got {rule!r}")
    return chosen[i - 1 :: k]
