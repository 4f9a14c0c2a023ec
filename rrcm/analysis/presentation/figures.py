"""Figures of the report; the same numbers give the same bytes."""

import math
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rrcm.core.files import atomic

matplotlib.use("Agg")
COLOURS = [  # apart for people without red or green cones, too
    *("#0072b2", "#d55e00", "#000000", "#44aa99", "#56b4e9"),
    *("#332288", "#e69f00", "#117733", "#cc6677", "#882255"),
]
DASHES = ["-", "--", "-.", ":"]
MARKERS = "os^DvPX<>p"
# Independent of matplotlibrc, to give the same bytes everywhere.
STYLE: list[str | dict[str, Any]] = [
    "default",
    {"svg.hashsalt": "rrcm", "svg.fonttype": "path", "font.size": 10},
    {"text.parse_math": False},  # a name may have a $ in it
]
ACROSS = 3  # panels in a row
FEW = 5  # methods up to which bands are drawn


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """Certified accuracy against radius: ``band`` is a table from `statistics.band`.

    ``settled`` is None, or the radii that a stopping rule decided, columns ``radius, value, low,
    high``: between them the curve is only a lower bound. ``falls`` says whether the share is 0
    beyond the last radius; if not, nothing is known there, and the curve ends.
    """

    band: pd.DataFrame
    settled: pd.DataFrame | None = None
    falls: bool = True


def certified_accuracy(curves: dict[str, dict[str, Curve]], *, what: str) -> Figure:
    """One panel per sigma, one curve per method, the first of them bold: accuracy against radius.

    Where a stopping rule decided only some radii, these are marks with Wilson intervals, and the
    curve is a thin dashed line without bands. With more than `FEW` methods, bands would hide
    curves: they are left out, and one legend serves all panels.

    Args:
        curves: sigma -> method -> curve. The Wilson band is shaded, the simultaneous one dotted.
        what: The certified quantity, for the axis.
    """
    methods = list(dict.fromkeys(name for panel in curves.values() for name in panel))
    few = len(methods) <= FEW
    across, down = min(len(curves), ACROSS), math.ceil(len(curves) / ACROSS)
    with style.context(STYLE):
        figure = Figure(figsize=(4.2 * across, 3.6 * down), layout="constrained")
        axes = figure.subplots(down, across, sharey=True, squeeze=False).ravel()
        for axis in axes[len(curves) :]:
            axis.remove()
        axes = axes[: len(curves)]
        for axis, (sigma, panel) in zip(axes, curves.items(), strict=True):
            for method, curve in panel.items():
                number = methods.index(method)
                if curve.settled is not None:
                    _marks(axis, curve, curve.settled, label=method, number=number)
                else:
                    _staircase(axis, curve, label=method, number=number, banded=few)
            axis.set(title=f"σ = {sigma}", xlabel="ℓ₂ radius, pixels in [0, 1]")
            axis.set(xlim=(0, None), ylim=(0, 100))
            axis.grid(alpha=0.25)
            if few:
                axis.legend(frameon=False)
        if not few:
            drawn = [zip(*a.get_legend_handles_labels(), strict=True) for a in axes]
            handles = {name: handle for panel in drawn for handle, name in panel}
            shown = [name for name in methods if name in handles]  # not those with a _ in front
            figure.legend([handles[m] for m in shown], shown, loc="outside right upper")
        for axis in axes[::ACROSS]:
            axis.set_ylabel(f"{what}, %")
    return figure


def save(figure: Figure, path: Path) -> None:
    """Write ``figure`` in the format of the suffix, without dates."""
    metadata = {".svg": {"Date": None}, ".png": {"Software": None}}[path.suffix]
    with atomic(path) as part, style.context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "constrained_layout not applied")  # names fill it all
        figure.savefig(part, format=path.suffix[1:], dpi=160, metadata=metadata)


def colour(number: int) -> str:
    """The colour of a method by its number."""
    return COLOURS[number % len(COLOURS)]


def _staircase(axis: Axes, curve: Curve, *, label: str, number: int, banded: bool) -> None:
    """The curve of a method; if ``banded``, with bands up to the last radius of any certificate."""
    dash = DASHES[number % len(DASHES)]  # tells methods apart without colour
    _line(axis, curve, number, label=label, linestyle=dash, linewidth=1.6 if number else 2.4)
    band = curve.band
    edges = band["radius"].to_numpy()
    if len(edges) < 2 or not banded:
        return
    for column in ("all_low", "all_high"):  # a value holds from the previous radius up to its own
        levels = 100 * band[column].to_numpy()[1:]
        axis.stairs(
            levels, edges, baseline=None, color=colour(number), linestyle=":", linewidth=0.8
        )
    low, high = (100 * band[column].to_numpy()[1:] for column in ("low", "high"))
    axis.stairs(high, edges, baseline=low, color=colour(number), alpha=0.15, fill=True, linewidth=0)


def _marks(axis: Axes, curve: Curve, settled: pd.DataFrame, *, label: str, number: int) -> None:
    """Settled radii as marks with intervals; a dashed lower bound between them."""
    _line(axis, curve, number, label="_", linestyle=(0, (2, 2)), linewidth=0.8)
    value, low, high = (100 * settled[column].to_numpy() for column in ("value", "low", "high"))
    axis.errorbar(
        settled["radius"],
        value,
        yerr=np.clip([value - low, high - value], 0, None),
        label=label,
        color=colour(number),
        fmt=MARKERS[number % len(MARKERS)],
        markersize=4 if number else 5.5,
        capsize=2.5,
        linewidth=1,
    )


def _line(
    axis: Axes, curve: Curve, number: int, *, label: str, linestyle: Any, linewidth: float
) -> None:
    """The line of a method by its number."""
    radii, shares = [*curve.band["radius"]], [*(100 * curve.band["certified_accuracy"])]
    if curve.falls:
        radii, shares = [*radii, radii[-1]], [*shares, 0]
    axis.step(
        radii,
        shares,
        where="pre",  # an accuracy holds up to its radius: the step is before the point
        label=label,
        color=colour(number),
        linestyle=linestyle,
        linewidth=linewidth,
    )
