"""Figures of the report; the same numbers give the same bytes."""

import itertools
import warnings
from collections.abc import Iterable
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
    with style.context(STYLE):
        figure, axes = panels(len(curves), size=(4.2, 3.6))
        for axis, (sigma, panel) in zip(axes, curves.items(), strict=True):
            for method, curve in panel.items():
                number = methods.index(method)
                if curve.settled is not None:
                    _marks(axis, curve, label=method, number=number)
                elif len(methods) <= FEW:
                    _staircase(axis, curve, label=method, number=number)
                else:
                    _method(axis, curve, label=method, number=number)
            axis.set_title(f"σ = {sigma}")
            axis.set_xlabel("ℓ₂ radius, pixels in [0, 1]")
            axis.set_xlim(left=0)
            axis.set_ylim(0, 100)
            axis.grid(alpha=0.25)
            if len(methods) <= FEW:
                axis.legend(frameon=False)
        if len(methods) > FEW:
            handles = {
                name: h
                for a in axes
                for h, name in zip(*a.get_legend_handles_labels(), strict=True)
            }
            shown = [name for name in methods if name in handles]  # not those with a _ in front
            figure.legend([handles[m] for m in shown], shown, loc="outside right upper")
        first_column(axes, f"{what}, %")
    return figure


def save(figure: Figure, path: Path) -> None:
    """Write ``figure`` in the format of the suffix, without dates."""
    metadata = {".svg": {"Date": None}, ".png": {"Software": None}}[path.suffix]
    with atomic(path) as part, style.context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "constrained_layout not applied")  # names fill it all
        figure.savefig(part, format=path.suffix[1:], dpi=160, metadata=metadata)


def panels(count: int, *, size: tuple[float, float]) -> tuple[Figure, list[Axes]]:
    """``count`` axes in rows of ``ACROSS``, each of ``size`` in inches, with a shared y scale."""
    across, down = min(count, ACROSS), -(-count // ACROSS)
    figure = Figure(figsize=(size[0] * across, size[1] * down), layout="constrained")
    grid = figure.subplots(down, across, sharey=True, squeeze=False).ravel()
    for axis in grid[count:]:
        axis.remove()
    return figure, [*grid[:count]]


def first_column(axes: Iterable[Axes], text: str) -> None:
    """Label the y axes of the first column."""
    for axis in itertools.islice(axes, None, None, ACROSS):
        axis.set_ylabel(text)


def colour(number: int) -> str:
    """The colour of a method by its number."""
    return COLOURS[number % len(COLOURS)]


def dash(number: int) -> str:
    """The dashes of a method by its number, by which it is known without colour."""
    return DASHES[number % len(DASHES)]


def marker(number: int) -> str:
    """The marker of a method by its number, likewise."""
    return MARKERS[number % len(MARKERS)]


def _method(axis: Axes, curve: Curve, *, label: str, number: int) -> None:
    """The curve of a method by its number."""
    width = 1.6 if number else 2.4
    _line(axis, curve, label=label, colour=colour(number), dash=dash(number), width=width)


def _staircase(axis: Axes, curve: Curve, *, label: str, number: int) -> None:
    """A curve with its bands, up to the last radius at which any image is certified."""
    _method(axis, curve, label=label, number=number)
    band = curve.band
    edges = band["radius"].to_numpy()
    if len(edges) < 2:
        return
    for column in ("all_low", "all_high"):  # a value holds from the previous radius up to its own
        levels = 100 * band[column].to_numpy()[1:]
        axis.stairs(
            levels, edges, baseline=None, color=colour(number), linestyle=":", linewidth=0.8
        )
    low, high = (100 * band[column].to_numpy()[1:] for column in ("low", "high"))
    axis.stairs(high, edges, baseline=low, color=colour(number), alpha=0.15, fill=True, linewidth=0)


def _marks(axis: Axes, curve: Curve, *, label: str, number: int) -> None:
    """Settled radii as marks with intervals; a dashed lower bound between them."""
    _line(axis, curve, label="_", colour=colour(number), dash=(0, (2, 2)), width=0.8)
    settled = curve.settled
    assert settled is not None
    value, low, high = (100 * settled[column].to_numpy() for column in ("value", "low", "high"))
    axis.errorbar(
        settled["radius"],
        value,
        yerr=np.clip([value - low, high - value], 0, None),
        label=label,
        color=colour(number),
        fmt=marker(number),
        markersize=4 if number else 5.5,
        capsize=2.5,
        linewidth=1,
    )


def _line(
    axis: Axes,
    curve: Curve,
    *,
    label: str,
    colour: str,
    dash: str | tuple[int, tuple[int, int]],
    width: float,
) -> None:
    radii, shares = [*curve.band["radius"]], [*(100 * curve.band["certified_accuracy"])]
    if curve.falls:
        radii, shares = [*radii, radii[-1]], [*shares, 0]
    axis.step(  # an accuracy holds up to its radius: the step is before the point
        radii,
        shares,
        where="pre",
        label=label,
        color=colour,
        linestyle=dash,
        linewidth=width,
    )
