"""Figures of what representations tell: the linear probe of each pre-training against the noise."""

from pathlib import Path

import pandas as pd
from matplotlib import style
from matplotlib.figure import Figure

from rrcm.analysis import figures, intervals
from rrcm.errors import DataError

COLUMNS = ("sigma", "right", "images", "accuracy")


def read(root: Path) -> dict[str, pd.DataFrame]:
    """The probe of each ``<name>`` with a folder in ``root``, from ``<name>/probe.csv``, by name.

    Raises:
        DataError: There is none, or one is damaged.
    """
    found = {}
    for path in sorted(root.glob("*/probe.csv")):
        try:
            table = pd.read_csv(path)
        except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
            raise DataError(
                f"{path}: damaged ({error!r}); `dvc repro represent` rewrites it"
            ) from None
        if missing := {*COLUMNS} - {*table.columns}:
            raise DataError(
                f"{path}: no column {', '.join(sorted(missing))}; `dvc repro represent`"
            )
        found[path.parent.name] = table
    if not found:
        raise DataError(f"{root}/: no <name>/probe.csv here; `dvc repro represent` writes them")
    return found


def probes(found: dict[str, pd.DataFrame], *, confidence: float) -> Figure:
    """Accuracy of linear probes against sigma, a line for each name, with Wilson intervals.

    Args:
        found: A name -> columns ``sigma, right, images``; one noisy version of each image.
        confidence: Of the intervals, each for itself.
    """
    with style.context(figures.STYLE):
        figure = Figure(figsize=(5.6, 3.8), layout="constrained")
        axis = figure.subplots()
        for number, (name, table) in enumerate(found.items()):
            estimates = [
                intervals.wilson(int(row.right), int(row.images), confidence=confidence)
                for row in table.itertuples()
            ]
            values, lows, highs = (
                [100 * getattr(each, part) for each in estimates]
                for part in ("value", "low", "high")
            )
            colour = figures.COLOURS[number % len(figures.COLOURS)]
            axis.plot(
                table["sigma"],
                values,
                marker="o",
                markersize=4,
                label=name,
                color=colour,
                clip_on=False,  # a point at sigma = 0 is whole
            )
            axis.vlines(table["sigma"], lows, highs, color=colour, linewidth=1, clip_on=False)
        axis.set_xlabel("σ of the noise, pixels in [0, 1]")
        axis.set_ylabel("test images right, %")
        axis.set_ylim(0, 100)
        axis.set_xlim(left=0)
        axis.grid(alpha=0.25)
        axis.legend(frameon=False)
    return figure
