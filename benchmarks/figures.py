"""Draws docs/digits-all.png from the table in docs/results-digits.md, whose votes are not kept.

``python -m benchmarks.figures`` draws the radii of the table, where `rrcm report` draws curves.
"""

import itertools
import re
from pathlib import Path

import pandas as pd
from matplotlib import style
from matplotlib.figure import Figure

from rrcm.analysis.presentation import figures

DOCS = Path("docs")
CELL = re.compile(r"≥? ?([\d.]+) \[([\d.]+), ([\d.]+)\]")  # percent, with its interval
SIGMAS, RADII = ("0.25", "0.5"), (0.0, 0.25, 0.5)  # of `methods`, where they have learned something


def results() -> pd.DataFrame:
    """The first table of the page, as text."""
    lines = (DOCS / "results-digits.md").read_text().splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("|"))
    rows = itertools.takewhile(lambda line: line.startswith("|"), lines[first:])
    head, _, *cells = ([cell.strip() for cell in row.strip("|").split("|")] for row in rows)
    return pd.DataFrame(cells, columns=head)


def shares(row: pd.Series) -> pd.DataFrame:
    """``value, low, high`` in percent at each radius of a row."""
    cells = {name: CELL.fullmatch(text) for name, text in row.items() if name.startswith("r = ")}
    return pd.DataFrame(
        {
            float(name.removeprefix("r = ")): [float(part) for part in cell.groups()]
            for name, cell in cells.items()
            if cell
        },
        index=["value", "low", "high"],
    ).T


def methods() -> Figure:
    """Certified accuracy of all methods: a panel for each σ and radius, a row for each method."""
    whole = results()
    names = list(dict.fromkeys(whole["method"]))
    with style.context(figures.STYLE):
        figure = Figure(figsize=(9.6, 5.6), layout="constrained")
        grid = figure.subplots(len(SIGMAS), len(RADII), sharey=True, squeeze=False)
        for axes, sigma in zip(grid, SIGMAS, strict=True):
            found = {row["method"]: shares(row) for _, row in whole[whole["σ"] == sigma].iterrows()}
            for axis, radius in zip(axes, RADII, strict=True):
                for number, name in enumerate(names):
                    value, low, high = found[name].loc[radius]
                    axis.errorbar(
                        value,
                        -number,
                        xerr=[[value - low], [high - value]],
                        fmt=figures.marker(bool(number)),
                        color=figures.colour(0) if number == 0 else "0.35",
                        markersize=7 if number == 0 else 5,
                        capsize=3,
                    )
                first = found[names[0]].loc[radius, "value"]
                axis.axvline(first, color=figures.colour(0), linewidth=0.8, linestyle=":")
                axis.set_title(f"σ = {sigma}, r = {radius:g}")
                axis.set_yticks([-number for number in range(len(names))], names)
                axis.grid(alpha=0.25, axis="x")
        for axis in grid[-1]:
            axis.set_xlabel("certified accuracy, %")
    return figure


def main() -> None:
    figures.save(methods(), DOCS / "digits-all.png")


if __name__ == "__main__":
    main()
