"""Progress of long work on the terminal: how far, how fast, how long yet."""

import sys
from collections.abc import Iterable, Iterator

from tqdm import tqdm

SECONDS_BETWEEN_LINES = 15  # where the output is a log and not a terminal


def steps(states: Iterable, *, total: int, start: int, title: str) -> Iterator:
    """Pass training states through, showing steps per second, the loss, and the time left."""
    with bar(total, start, title, " steps") as shown:
        for state in states:
            if state.log and state.log[-1]["step"] == state.step:
                shown.set_postfix(loss=f"{state.log[-1]['loss']:.3f}", refresh=False)
            shown.update()
            yield state


def bar(total: int, start: int, title: str, unit: str) -> tqdm:
    """A bar on a terminal; lines now and then in a log."""
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
