"""Draws votes on one device, or on several that share the images, into memory or a file."""

import queue
import threading
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path

import numpy as np

from rrcm.certification.sampling import procedure, session
from rrcm.certification.sampling.journal import InMemoryJournal, Journal
from rrcm.certification.sampling.sampler import SamplingProgress, VoteSampler
from rrcm.certification.sampling.voting import Backend
from rrcm.certification.votes import records
from rrcm.certification.votes.records import Header, Row
from rrcm.data.splits.shards import Split


def draw(
    backends: Sequence[Backend],
    split: Split,
    header: Header,
    *,
    workers: int,
    path: Path | None = None,
    title: str = "",
    began: float | None = None,
) -> list[Row]:
    """The votes of all images of ``split``, as ``header`` defines them.

    Guarantee: they do not depend on the number of backends and workers, nor on interruptions, if
    the scores of a row do not depend on the other rows of its batch.

    Args:
        backends: The same function, on one device each.
        split: The images.
        header: From `procedure.header`.
        workers: Threads of each device.
        path: A votes file; an interrupted drawing goes on from the journal beside it.
        title: Of a progress bar; empty for none.
        began: As of `procedure.sample`.

    Raises:
        BackendError: A score is NaN.
        ConfigError: The budget was spent before the first draw.
        VotesError: The journal has votes of another classifier or setting.
    """
    kept = nullcontext(InMemoryJournal()) if path is None else Journal(journal(path), header)
    with kept as rows:
        shared = rows if len(backends) == 1 else _Shared(rows)
        each = [
            VoteSampler(
                split,
                header,
                shared,
                noise=procedure.noise(header, split),
                workers=workers,
                every=session.save_every(),
                began=began,
            ).draw_votes(backend, np.arange(len(split.idx))[place :: len(backends)])
            for place, backend in enumerate(backends)
        ]
        states = each[0] if len(each) == 1 else _merged(each)
        if title:
            session.shown(states, header, total=len(split.idx), title=title)
        else:
            for _ in states:
                pass
        found = [rows.rows[int(idx)] for idx in split.idx]
    if path is not None:
        records.write(path, header, found)
        journal(path).unlink()
    return found


def journal(path: Path) -> Path:
    """The journal beside a votes file, while it is being drawn."""
    return path.with_name(f"{path.name}.journal")


class _Shared(InMemoryJournal):
    """A journal that several threads append to."""

    def __init__(self, kept: InMemoryJournal) -> None:
        super().__init__()
        self.rows, self._kept, self._lock = kept.rows, kept, threading.Lock()

    def append(self, row: Row) -> None:
        """Add or replace the row of an image."""
        with self._lock:
            self._kept.append(row)


def _merged(each: Sequence[Iterator[SamplingProgress]]) -> Iterator[SamplingProgress]:
    """Sums of the progress of drawings, each of which runs in a thread of its own.

    The first error of any of them is raised, when the others have ended at their next state.
    """
    latest = [next(states) for states in each]
    events: queue.Queue[tuple[int, SamplingProgress | BaseException | None]] = queue.Queue()
    ended = threading.Event()

    def follow(place: int, states: Iterator[SamplingProgress]) -> None:
        try:
            for state in states:
                events.put((place, state))
                if ended.is_set():
                    break
        except BaseException as error:
            events.put((place, error))
        else:
            events.put((place, None))

    threads = [threading.Thread(target=follow, args=one) for one in enumerate(each)]
    for thread in threads:
        thread.start()
    failure, going = None, len(threads)
    try:
        yield _sum(latest)
        while going:
            place, state = events.get()
            if isinstance(state, SamplingProgress):
                latest[place] = state
                yield _sum(latest)
                continue
            going -= 1
            if state is not None:
                failure = failure or state
                ended.set()
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    if failure is not None:
        raise failure


def _sum(states: Sequence[SamplingProgress]) -> SamplingProgress:
    return SamplingProgress(
        images=sum(state.images for state in states), draws=sum(state.draws for state in states)
    )
