"""What a certificate costs: seconds per image beside certified accuracy, for each evaluation.

``python -m benchmarks.latency``, in a checkout whose evaluations have been certified, writes
``latency.md``, ``latency.csv`` and ``latency.png``. Ratios of seconds carry over to other machines,
the seconds do not. Network calls follow from the kind of classifier.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pandas as pd
from matplotlib import style
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from benchmarks.results import up_to_date
from pipeline.project.stale import Present
from rrcm.analysis import entries
from rrcm.analysis.presentation import figures, markup, tables
from rrcm.certification.sampling import batching, procedure, session, voting
from rrcm.certification.sampling.batching import Job, Piece
from rrcm.config.certification import Eval
from rrcm.config.params import Params
from rrcm.core.files import write_csv, write_text
from rrcm.data.splits import shards
from rrcm.data.splits.shards import Split

ROUNDS = 5  # at least; the median over all is reported


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="to time each evaluation for")
    parser.add_argument("--reference", default="rrcm", help="method that ratios are relative to")
    parser.add_argument("--out", type=Path, default=Path("results/latency"))
    asked = parser.parse_args()
    present = Present()
    whole = present.params
    found = up_to_date(present)
    split = shards.read(Path("shards"), "test")
    turns = {name: turn(whole, evaluation, split) for name, evaluation in whole.evals.items()}
    seconds = pd.Series(measured(turns, seconds=asked.seconds), name="seconds_per_draw")
    radii, confidence = whole.report.radii, whole.report.confidence
    numbers = tables.accuracy(found, radii=radii, confidence=confidence).join(seconds, on="entry")
    labels = {entry.name: entries.label(entry, found) for entry in found}
    numbers["method"] = numbers["entry"].map(labels)
    draws = whole.sample.n0 + whole.sample.n
    numbers["seconds_per_image"] = draws * numbers["seconds_per_draw"]
    write_csv(numbers, asked.out / "latency.csv", digits="%.6g")
    certified = tables.accuracy_table(found, radii=radii, confidence=confidence)
    costs = pd.DataFrame(
        {f"{what} calls a draw": n for what, n in whole.calls(whole.evals[e.name].run).items()}
        | {"ms a draw": f"{1e3 * seconds[e.name]:.3f}"}
        | {"s an image": f"{draws * seconds[e.name]:.2f}"}
        | {f"× {asked.reference}": ratio(e, found, seconds, asked.reference)}
        for e in found
    )
    table = pd.concat([certified.iloc[:, :2], costs, certified.iloc[:, 2:]], axis=1)
    write_text(asked.out / "latency.md", markup.markdown(table))
    radius = min((r for r in radii if r > 0), default=radii[0])
    figures.save(figure(numbers, radius=radius, draws=draws), asked.out / "latency.png")
    print(markup.plain(table, again=2))


def ratio(
    entry: entries.Entry, found: list[entries.Entry], seconds: "pd.Series[float]", reference: str
) -> str:
    """The time of ``entry`` divided by that of method ``reference`` at the same sigma."""
    own = [e.name for e in found if e.sigma == entry.sigma and e.method == reference]
    return f"{seconds[entry.name] / seconds[own[0]]:.2f}" if own else "–"


def turn(whole: Params, evaluation: Eval, split: Split) -> Callable[[], float]:
    """What classifies noisy images, from pixels to votes, and returns the seconds for one.

    A turn is what the engine gives a worker at a time (`batching.TASK`), on one core or on the GPU.
    """
    cfg = whole.sampling
    backend = session.backend(evaluation, cfg)
    header = procedure.header(backend, split, evaluation.run, cfg, whole.stopping[cfg.stop])
    noise = voting.noise(header, split)
    count = voting.counter(backend, split, noise=noise, batch_size=cfg.batch_size)

    def seconds(rows: int) -> float:
        start = time.perf_counter()
        count([Piece(Job(row=0, bounds=(0, rows)), 0, 0, rows)])
        return time.perf_counter() - start

    rows = cfg.batch_size
    seconds(rows)  # compiles the network, where a backend does
    while seconds(rows) < batching.TASK / 2:
        rows *= 2
    return lambda: seconds(rows) / rows


def measured(turns: dict[str, Callable[[], float]], *, seconds: float) -> dict[str, float]:
    """Seconds per noisy image: the median over rounds of one turn for each evaluation.

    So what else the machine does falls on all alike.
    """
    taken: dict[str, list[float]] = {name: [] for name in turns}
    end = time.monotonic() + seconds * len(turns)
    for number in range(sys.maxsize):
        if number >= ROUNDS and time.monotonic() >= end:
            break
        for name, each in turns.items():
            taken[name].append(each())
    return {name: statistics.median(times) for name, times in taken.items()}


def figure(numbers: pd.DataFrame, *, radius: float, draws: int) -> Figure:
    """One panel per sigma: a point for each entry, with the interval of its accuracy at ``radius``.

    Seconds are on a logarithmic axis.
    """
    shown = numbers[numbers["radius"] == radius]
    methods = list(dict.fromkeys(shown["method"]))
    with style.context(figures.STYLE):
        figure, axes = figures.panels(shown["sigma"].nunique(), size=(4.2, 3.6))
        for axis, (sigma, part) in zip(axes, shown.groupby("sigma", sort=True), strict=True):
            for line in part.to_dict("records"):
                value, number = 100 * line["value"], methods.index(line["method"])
                ends = [[value - 100 * line["low"]], [100 * line["high"] - value]]
                axis.errorbar(
                    [line["seconds_per_image"]],
                    [value],
                    yerr=ends,
                    fmt=figures.marker(number),
                    capsize=3,
                    color=figures.colour(number),
                    label=line["method"] + " (lower bound)" * bool(line["lower_bound"]),
                )
            axis.set_xscale("log")
            axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")  # as 10^-1 by default
            axis.xaxis.set_minor_formatter(NullFormatter())
            axis.set_title(f"σ = {sigma:g}")
            axis.set_xlabel(f"seconds for an image of {draws:,} draws")
            axis.set_ylim(0, 100)
            axis.grid(alpha=0.25, which="both")
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, frameon=False, loc="outside right upper")
        figures.first_column(axes, f"certified accuracy at r = {radius:g}, %")
    return figure


if __name__ == "__main__":
    main()
