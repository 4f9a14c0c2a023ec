"""The cost of certificates: certified accuracy against seconds per image.

Seconds are measured in one run on one machine: their ratios carry over to other machines, the
seconds do not. Network calls follow from the kind of classifier. Neither is part of a certificate.
"""

from dataclasses import dataclass

import pandas as pd
from matplotlib import style
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from rrcm.analysis import entries
from rrcm.analysis.entries import Entry
from rrcm.analysis.estimation import statistics
from rrcm.analysis.estimation.intervals import Estimate
from rrcm.analysis.presentation import figures, tables

CALLS = ("denoiser", "classifier")


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """The cost of one draw: seconds of one worker, and network calls by `CALLS`."""

    seconds: float
    calls: dict[str, int]


def numbers(
    found: list[Entry], costs: dict[str, Cost], *, draws: int, radii: list[float], confidence: float
) -> pd.DataFrame:
    """One row per entry and radius: certified accuracy, and the time of ``draws`` draws."""
    rows = []
    for entry in found:
        cost = costs[entry.name]
        for radius in radii:
            share = statistics.certified_accuracy(entry.judged, radius, confidence=confidence)
            rows.append(
                {
                    "entry": entry.name,
                    "method": entries.label(entry, found),
                    "sigma": entry.sigma,
                    **{f"{name}_calls": cost.calls.get(name, 0) for name in CALLS},
                    "seconds_per_draw": cost.seconds,
                    "draws": draws,
                    "seconds_per_image": draws * cost.seconds,
                    "radius": radius,
                    "value": share.value,
                    "low": share.low,
                    "high": share.high,
                    "lower_bound": entry.lower_bound(radius),
                }
            )
    return pd.DataFrame(rows)


def table(measured: pd.DataFrame, *, reference: str) -> pd.DataFrame:
    """`numbers` as text, a row per entry; ``×`` is its time divided by that of ``reference``."""
    rows = []
    for (sigma, _), part in measured.groupby(["sigma", "entry"], sort=False):
        line = part.iloc[0]
        own = measured[(measured["sigma"] == sigma) & (measured["method"] == reference)]
        ratio = line["seconds_per_draw"] / own["seconds_per_draw"].iloc[0] if len(own) else None
        row = {"σ": f"{sigma:g}", "method": line["method"]}
        row |= {f"{name} calls a draw": str(line[f"{name}_calls"]) for name in CALLS}
        row["ms a draw"] = f"{1e3 * line['seconds_per_draw']:.3f}"
        row["s an image"] = f"{line['seconds_per_image']:.2f}"
        row[f"× {reference}"] = "–" if ratio is None else f"{ratio:.2f}"
        for _, at in part.iterrows():
            share = Estimate(value=at["value"], low=at["low"], high=at["high"])
            row[f"r = {at['radius']:g}"] = tables.at_least(at["lower_bound"]) + tables.percent(
                share
            )
        rows.append(row)
    return pd.DataFrame(rows)


def figure(measured: pd.DataFrame, *, radius: float, what: str) -> Figure:
    """One panel per sigma: a point for each entry, with the interval of its accuracy at ``radius``.

    Seconds are on a logarithmic axis.
    """
    shown = measured[measured["radius"] == radius]
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
            axis.set_xlabel(f"seconds for an image of {shown['draws'].iloc[0]:,} draws")
            axis.set_ylim(0, 100)
            axis.grid(alpha=0.25, which="both")
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, frameon=False, loc="outside right upper")
        figures.first_column(axes, f"{what} at r = {radius:g}, %")
    return figure
