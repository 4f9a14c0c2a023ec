"""Draws three figures of the digits from the tables in docs/, where their votes are not kept.

``python -m benchmarks.figures`` writes docs/digits-all.png, docs/latency.png and docs/probe.png.
`rrcm latency` and `rrcm representations` draw the last two from results; `rrcm report` draws curves
where the first has the radii of the table.
"""

import re
from collections.abc import Callable
from pathlib import Path

import pandas as pd
from matplotlib import style
from matplotlib.figure import Figure

from rrcm.analysis import latency, representations
from rrcm.analysis.presentation import figures
from rrcm.core.errors import DataError

DOCS = Path("docs")
DRAWS = 600  # of an image in the table of latencies, n0 included
CELL = re.compile(r"≥? ?([\d.]+) \[([\d.]+), ([\d.]+)\]")  # percent, with its interval
RADIUS, SIGMA = "r = ", "σ = "  # columns
SIGMAS, RADII = ("0.25", "0.5"), (0.0, 0.25, 0.5)  # of `methods`, where they have learned something


def tables(path: Path) -> list[pd.DataFrame]:
    """All tables of a page in Markdown, as text."""
    found: list[list[list[str]]] = [[]]
    for line in path.read_text().splitlines():
        if line.startswith("|"):
            found[-1].append([cell.strip() for cell in line.strip("|").split("|")])
        elif found[-1]:
            found.append([])
    return [pd.DataFrame(rows[2:], columns=rows[0]) for rows in found if rows]


def table(path: Path, *columns: str) -> pd.DataFrame:
    """The first table of a page that has these columns.

    Raises:
        DataError: No table has them.
    """
    for one in tables(path):
        if {*columns} <= {*one.columns}:
            return one
    raise DataError(f"{path}: no table has the columns {', '.join(columns)}")


def shares(row: pd.Series, prefix: str) -> pd.DataFrame:
    """``at, value, low, high`` of a row's columns that begin with ``prefix``; shares in [0, 1]."""
    cells = {name: CELL.fullmatch(text) for name, text in row.items() if name.startswith(prefix)}
    found = [
        (float(name.removeprefix(prefix)), *(float(part) / 100 for part in cell.groups()))
        for name, cell in cells.items()
        if cell
    ]
    return pd.DataFrame(found, columns=["at", "value", "low", "high"])


def methods() -> Figure:
    """Certified accuracy of all methods: a panel for each σ and radius, a row for each method."""
    whole = table(DOCS / "results-digits.md", "method", "ACR")
    names = list(dict.fromkeys(whole["method"]))
    with style.context(figures.STYLE):
        figure = Figure(figsize=(9.6, 5.6), layout="constrained")
        grid = figure.subplots(len(SIGMAS), len(RADII), sharey=True, squeeze=False)
        for axes, sigma in zip(grid, SIGMAS, strict=True):
            found = {
                row["method"]: shares(row, RADIUS).set_index("at")
                for _, row in whole[whole["σ"] == sigma].iterrows()
            }
            for axis, radius in zip(axes, RADII, strict=True):
                for number, name in enumerate(names):
                    value, low, high = 100 * found[name].loc[radius]
                    axis.errorbar(
                        value,
                        -number,
                        xerr=[[value - low], [high - value]],
                        fmt=figures.marker(bool(number)),
                        color=figures.colour(0) if number == 0 else "0.35",
                        markersize=7 if number == 0 else 5,
                        capsize=3,
                    )
                first = 100 * found[names[0]].loc[radius, "value"]
                axis.axvline(first, color=figures.colour(0), linewidth=0.8, linestyle=":")
                axis.set_title(f"σ = {sigma}, r = {radius:g}")
                axis.set_yticks([-number for number in range(len(names))], names)
                axis.grid(alpha=0.25, axis="x")
        for axis in grid[-1]:
            axis.set_xlabel("certified accuracy, %")
    return figure


def latencies() -> Figure:
    """Certified accuracy at r = 0.25 against the time of a certificate."""
    rows = []
    for _, row in table(DOCS / "results-digits.md", "ms a draw").iterrows():
        one = {"method": row["method"], "sigma": float(row["σ"]), "lower_bound": False}
        one |= {"seconds_per_image": DRAWS * float(row["ms a draw"]) / 1e3, "draws": DRAWS}
        rows += [one | at for at in shares(row, RADIUS).to_dict("records")]
    found = pd.DataFrame(rows).rename(columns={"at": "radius"})
    return latency.figure(found, radius=0.25, what="certified accuracy")


def probes() -> Figure:
    """Accuracy of linear probes under noise."""
    rows = []
    for _, row in table(DOCS / "representations.md", "encoder", "RFD").iterrows():
        at = shares(row, SIGMA).rename(columns={"at": "sigma", "value": "accuracy"})
        rows.append(at.assign(name=row["encoder"]))
    return representations.probes(pd.concat(rows))


FIGURES: dict[str, Callable[[], Figure]] = {
    "digits-all.png": methods,
    "latency.png": latencies,
    "probe.png": probes,
}


def main() -> None:
    for name, drawn in FIGURES.items():
        figures.save(drawn(), DOCS / name)
        print(DOCS / name)


if __name__ == "__main__":
    main()
