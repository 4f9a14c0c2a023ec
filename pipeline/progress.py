"""Progress of long work on the terminal: how far, how fast, how long yet."""

import sys
from collections.abc import Iterable, Iterator

from tqdm import tqdm

SECONDS_BETWEEN_LINES = 15  # where the output is a log and not a terminal


def steps(states: Iterable, *, total: int, start: int, title: str) -> Iterator:
    """Pass training states through, showing steps per second, the loss, and the time left."""
    with _bar(total, start, title, " steps") as bar:
        for state in states:
            if state.log and state.log[-1]["step"] == state.step:
                bar.set_postfix(loss=f"{state.log[-1]['loss']:.3f}", refresh=False)
            bar.update()
            yield state


def images(done: Iterable[int], *, total: int, draws: int, title: str) -> None:
    """Run through counts of sampled images, showing noisy images per second and the time left."""
    counts = iter(done)
    found = next(counts)
    if found == total:
        return
    with _bar(total * draws, found * draws, title, " noisy images") as bar:
        for count in counts:
            bar.update(count * draws - bar.n)


def _bar(total: int, start: int, title: str, unit: str) -> tqdm:
    interval = 0.2 if sys.stderr.isatty() else SECONDS_BETWEEN_LINES
    return tqdm(
        total=total,
        initial=start,
        desc=title,
        unit=unit,
        unit_scale=True,
        dynamic_ncols=True,
        mininterval=interval,
        maxinterval=interval,
    )
