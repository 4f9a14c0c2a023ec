"""Ablations: certified accuracy and ACR of entries that differ in one setting."""

import re
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rrcm.analysis import entries
from rrcm.analysis.entries import Entry
from rrcm.analysis.estimation import intervals, statistics
from rrcm.analysis.presentation import figures

COLUMNS = "key panel entry value base radius certified low high lower_bound"
COLUMNS += " acr acr_low acr_high acr_lower_bound"
BOUND = " (lower bound)"


def ablations(
    found: list[Entry], *, radii: list[float], confidence: float
) -> dict[str, pd.DataFrame]:
    """A table for each varied setting, with a row for each entry and radius; the base comes first.

    Entries with the same method, training sigma and sigma are compared with the first of them, the
    *base*. They may differ in one of ``settings``, or in several that share one value, such as two
    temperatures; other entries are left out. Entries that differ only in seeds are repetitions, and
    all are kept.

    Columns: ``key``, the varied setting; ``panel``, a title of the compared entries; ``entry``;
    ``value`` of the setting; ``base``, whether it is the base's; ``radius``; the share
    ``certified`` at it, with its Wilson interval ``low`` to ``high``; ``acr`` with its bootstrap
    interval, the same at each radius; and whether either is only a lower bound, because drawing
    stopped early.
    """
    groups: dict[tuple[object, ...], list[Entry]] = {}
    for entry in found:
        if entry.settings:
            groups.setdefault((*entry.group[1:], entry.sigma_train, entry.method), []).append(entry)
    tables: dict[str, list[pd.DataFrame]] = {}
    for members in groups.values():
        for keys, varied in _varied(members).items():
            for entry in varied:
                acr = intervals.mean(statistics.credited(entry.judged), confidence=confidence)
                shares = statistics.certified_accuracy(entry.judged, radii, confidence=confidence)
                value = entry.settings[keys[0]]
                rows = shares.rename(columns={"value": "certified"}).assign(
                    key=_named(keys),
                    panel=_panel(entry, found),
                    entry=entry.name,
                    value=[value] * len(radii),  # which may be a list itself
                    base=value == members[0].settings[keys[0]],
                    lower_bound=entry.lower_bounds(radii),
                    acr=acr.value,
                    acr_low=acr.low,
                    acr_high=acr.high,
                    acr_lower_bound=entry.cut_short,
                )
                tables.setdefault(_named(keys), []).append(rows[COLUMNS.split()])
    return {key: pd.concat(parts, ignore_index=True) for key, parts in tables.items()}


def table(found: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """Concatenate the tables of `ablations`, with values as `text`."""
    whole = pd.concat(found.values(), ignore_index=True)
    return whole.assign(value=[text(value) for value in whole["value"]])


def figure(panels: dict[str, pd.DataFrame], *, key: str, what: str) -> Figure:
    """Plot ``what`` at each radius, and ACR below, against the varied setting; a column per panel.

    Values have equal distances, numbers in their order. Repetitions are points at one value; lines
    join the means of numeric values. A dotted line marks the base. The legend and the axis of ACR
    mark lower bounds.

    Args:
        panels: A title -> rows of a table of `ablations`.
        key: The varied setting, for the axis.
        what: The certified quantity, for the axis.
    """
    whole = pd.concat(panels.values())
    values = {text(value): value for value in whole["value"]}
    numeric = all(type(value) in (int, float) for value in values.values())
    names = sorted(values, key=values.__getitem__) if numeric else [*values]
    radii = sorted({*whole["radius"]})
    undecided = {*whole.loc[whole["lower_bound"], "radius"]}
    with style.context(figures.STYLE):
        size = 0.8 + 3.6 * len(panels), 5.2
        drawn = Figure(figsize=size, layout="constrained")
        grid = drawn.subplots(
            *(2, len(panels)), sharex=True, sharey="row", squeeze=False, height_ratios=[2.2, 1]
        )
        for (title, table), (upper, lower) in zip(panels.items(), grid.T, strict=True):
            table = table.assign(at=[names.index(text(value)) for value in table["value"]])
            for radius, line in table.groupby("radius", sort=True):
                shade = radii.index(radius) / len(radii)
                colour = matplotlib.colormaps["viridis"](shade)
                percent = line[["certified", "low", "high"]] * 100
                label = f"r = {radius:g}" + BOUND * (radius in undecided)
                _points(upper, line["at"], percent, label, colour, join=numeric)
            one = table[table["radius"] == radii[0]]
            acr = one[["acr", "acr_low", "acr_high"]]
            _points(lower, one["at"], acr, "", "#444444", join=numeric)
            for axis in (upper, lower):
                axis.axvline(table.loc[table["base"], "at"].iloc[0], color="#888888", ls=":", lw=1)
                axis.grid(axis="y", alpha=0.25)
            upper.set_title(title)
            upper.set_ylim(0, 100)
            lower.set_ylim(bottom=0)
            lower.set_xticks(range(len(names)), names)
        grid[0, 0].set_ylabel(f"{what}, %")
        grid[1, 0].set_ylabel("ACR" + BOUND * bool(whole["acr_lower_bound"].any()))
        drawn.supxlabel(f"{key}, not to scale" if numeric else key, fontsize=10)
        handles, names = grid[0, 0].get_legend_handles_labels()
        drawn.legend(handles, names, frameon=False, loc="outside right upper")
    return drawn


def file_name(key: str) -> str:
    """The file name of the figure of a key: letters, digits and underscores."""
    return "ablation_" + re.sub(r"\W+", "_", key)


def text(value: Any) -> str:
    """A value as text: like YAML, but lists without brackets."""
    if isinstance(value, list):
        return ", ".join(map(text, value)) or "none"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def _varied(members: list[Entry]) -> dict[tuple[str, ...], list[Entry]]:
    """Varied keys -> the base and its repetitions, then the entries that differ in those keys."""
    base, *others = members
    like = [base]
    unlike: dict[tuple[str, ...], list[Entry]] = {}
    for entry in others:
        both = {**base.settings, **entry.settings}
        keys = tuple(k for k in both if base.settings.get(k) != entry.settings.get(k))
        if not keys:
            like.append(entry)  # another seed
        elif _as_one(base, keys) and _as_one(entry, keys):
            unlike.setdefault(keys, []).append(entry)
    return {keys: [*like, *others] for keys, others in unlike.items()}


def _as_one(entry: Entry, keys: tuple[str, ...]) -> bool:
    """Whether all ``keys`` have one and the same value in an entry."""
    values = [entry.settings.get(key) for key in keys]
    return values[0] is not None and all(value == values[0] for value in values)


def _named(keys: tuple[str, ...]) -> str:
    """``pretrain.loss.tau_contrast = tau_consistency``: the section is written once."""
    first, *others = keys
    section = first.rpartition(".")[0]
    return " = ".join([first, *(key.removeprefix(f"{section}.") for key in others)])


def _panel(entry: Entry, found: list[Entry]) -> str:
    """The title of a panel: sigma, and the method and training sigma where panels differ."""
    parts = [f"σ = {entries.sigma(entry)}"]
    if len({e.method for e in found}) > 1:
        parts.append(entry.method)
    if entry.sigma_train not in (None, entry.sigma):
        parts.append(f"trained at {entry.sigma_train:g}")
    return ", ".join(parts)


def _points(
    axis: Axes, at: pd.Series, shares: pd.DataFrame, label: str, colour: Any, *, join: bool
) -> None:
    """Points with intervals, the columns of ``shares``; ``join`` draws a line through the means."""
    values, low, high = shares.to_numpy().T
    spread = np.clip([values - low, high - values], 0, None)
    axis.errorbar(
        at,
        values,
        yerr=spread,
        color=colour,
        fmt="o",
        markersize=4,
        capsize=2.5,
        linewidth=1,
        label=label,
    )
    if join:
        means = pd.Series(values, index=at.to_numpy()).groupby(level=0).mean()
        axis.plot(means.index, means, color=colour, linewidth=1.4)
