"""Progress of long work on the terminal: steps done, speed and time left."""

import sys
from collections.abc import Iterable, Iterator
from typing import Protocol, TypeVar

from tqdm import tqdm

SECONDS_BETWEEN_LINES = 15  # if the output is a log and not a terminal


class Step(Protocol):
    """A state of training: its ``step``, and the entries of its log so far."""

    step: int
    log: list[dict[str, float]]


S = TypeVar("S", bound=Step)


def steps(states: Iterable[S], *, total: int, start: int, title: str, images: int) -> Iterator[S]:
    """Pass training states through, showing images per second, the loss, and the time left.

    ``images`` is the number of images per step.
    """
    with bar(total, start, title, " steps") as shown:
        for state in states:
            shown.update()
            if state.log and state.log[-1]["step"] == state.step:
                rate = images * (shown.n - start) / shown.format_dict["elapsed"]
                loss = f"{state.log[-1]['loss']:.3f}"
                shown.set_postfix({"loss": loss, "images/s": f"{rate:,.0f}"}, refresh=False)
            yield state


def bar(total: int, start: int, title: str, unit: str, *, delay: float = 0.0) -> tqdm:
    """A progress bar on a terminal, occasional lines in a log, starting after ``delay`` seconds."""
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
        delay=delay,
    )
