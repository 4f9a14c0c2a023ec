"""Puts together what several devices draw at the same time."""

import queue
import threading
from collections.abc import Iterator, Sequence

from rrcm.certification.sampling.journal import InMemoryJournal
from rrcm.certification.sampling.sampler import SamplingProgress
from rrcm.certification.votes.records import Row


class Shared(InMemoryJournal):
    """A journal that several threads append to."""

    def __init__(self, kept: InMemoryJournal) -> None:
        """Append to ``kept``."""
        super().__init__()
        self.rows, self._kept, self._lock = kept.rows, kept, threading.Lock()

    def append(self, row: Row) -> None:
        """Add or replace the row of an image."""
        with self._lock:
            self._kept.append(row)


def merged(each: Sequence[Iterator[SamplingProgress]]) -> Iterator[SamplingProgress]:
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
