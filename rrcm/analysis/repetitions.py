"""Repetitions: entries that differ only in the seed of their training, and what they say together.

One trained network is one draw of the luck of a training. With several seeds, a difference of two
methods has an interval that speaks of methods.
"""

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import style
from matplotlib.figure import Figure
from statsmodels.stats.multitest import multipletests

from rrcm.analysis import entries, pairing
from rrcm.analysis.entries import Entry
from rrcm.analysis.estimation import crossed, paired, statistics
from rrcm.analysis.estimation.intervals import Estimate
from rrcm.analysis.presentation import figures, tables
from rrcm.certification.certify import DOWN, printed

LABELS = "recipe.labels"  # methods are compared that have the same share of labels
SEED = re.compile(r"-seed\d+(?=-|$)")
LEVEL = 0.05  # of McNemar's test of one seed
POINTS = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class Repeated:
    """Entries that differ only in the seed, in its order; ``name`` is what their names share."""

    name: str
    entries: tuple[Entry, ...]

    @property
    def first(self) -> Entry:
        """The entry of the least seed."""
        return self.entries[0]

    def certified(self, radius: float) -> np.ndarray:
        """Whether each seed certifies each image at ``radius``, bool [K, N]."""
        return np.stack([statistics.certified(e.judged, radius) for e in self.entries])

    def lower_bound(self, radius: float) -> bool:
        """Whether the share of any of them at ``radius`` is a lower bound."""
        return any(entry.lower_bound(radius) for entry in self.entries)

    def undecided(self, radius: float) -> bool:
        """Whether the draws of any of them stopped before ``radius`` was decided."""
        return any(entry.undecided([radius])[0] for entry in self.entries)


def repeated(found: list[Entry]) -> list[Repeated]:
    """Entries of two seeds or more with the same settings, sigma and images, in their order.

    Settings are those of the training and of certification.
    """
    groups: dict[tuple[object, ...], list[Entry]] = {}
    for entry in found:
        if entry.settings and entry.seed is not None:
            settings = tuple(sorted((key, str(value)) for key, value in entry.settings.items()))
            key = (*entry.group, entry.sigma_train, entry.method, settings)
            groups.setdefault(key, []).append(entry)
    made = []
    for members in groups.values():
        alike = all(_alike(members[0], entry) for entry in members)
        if alike and len({entry.seed for entry in members}) > 1:
            ordered = tuple(sorted(members, key=lambda entry: entry.seed or 0))
            made.append(Repeated(name=SEED.sub("", ordered[0].name), entries=ordered))
    return made


def accuracy(found: list[Repeated], *, radii: list[float]) -> pd.DataFrame:
    """Certified accuracy of each group at each radius, and ACR, with their spread over seeds.

    Columns: ``sigma``, ``entry``, ``seeds``, ``radius``, the ``mean`` share with its standard
    deviation ``sd`` over seeds, the least and largest (``low``, ``high``), ``lower_bound`` and
    ``undecided``; ``acr`` and ``acr_sd``, the same at each radius.
    """
    rows = []
    for group in found:
        radii_of = [statistics.average_certified_radius(e.judged) for e in group.entries]
        for radius in radii:
            shares = group.certified(radius).mean(axis=1)
            rows.append(
                {
                    "sigma": entries.sigma(group.first),
                    "entry": group.name,
                    "seeds": len(shares),
                    "radius": radius,
                    "mean": shares.mean(),
                    "sd": shares.std(ddof=1),
                    "low": shares.min(),
                    "high": shares.max(),
                    "lower_bound": group.lower_bound(radius),
                    "undecided": group.undecided(radius),
                    "acr": np.mean(radii_of),
                    "acr_sd": np.std(radii_of, ddof=1),
                }
            )
    return pd.DataFrame(rows)


def differences(found: list[Repeated], *, radii: list[float], confidence: float) -> pd.DataFrame:
    """The first method of each sigma against every other, with the same share of labels.

    One row for each pair and radius: ``difference`` of the mean shares with its interval over seeds
    and images (``low``, ``high``), ``p`` of no difference, the same corrected by Holm for the radii
    of the pair (``p_holm``), and in how many of the ``seeds`` the first is ``better`` or ``worse``
    by McNemar's exact test at the level .05. Seeds are paired in their order; pairs with another
    number of seeds, other images or no disagreement at a radius have no row there.
    """
    rows: list[dict[str, Any]] = []
    for first, second in _pairs(found):
        of_pair = []
        for radius in radii:
            a, b = first.certified(radius), second.certified(radius)
            if (a == b).all():
                continue
            apart, p = crossed.mean(a.astype(float) - b, confidence=confidence)
            tests = [
                paired.compare(x.judged, y.judged, radii=[radius], confidence=confidence)[0]
                for x, y in zip(first.entries, second.entries, strict=True)
            ]
            clear = [np.sign(c.difference.value) for c in tests if c.p < LEVEL]
            of_pair.append(
                {
                    "sigma": entries.sigma(first.first),
                    "first": first.name,
                    "second": second.name,
                    "radius": radius,
                    "seeds": len(tests),
                    "difference": apart.value,
                    "low": apart.low,
                    "high": apart.high,
                    "p": p,
                    "better": clear.count(1),
                    "worse": clear.count(-1),
                    "undecided": first.undecided(radius) or second.undecided(radius),
                }
            )
        corrected = (
            multipletests([row["p"] for row in of_pair], method="holm")[1] if of_pair else []
        )
        rows += [row | {"p_holm": float(p)} for row, p in zip(of_pair, corrected, strict=True)]
    return pd.DataFrame(rows)


def _pairs(found: list[Repeated]) -> list[tuple[Repeated, Repeated]]:
    made = []
    for first in found:
        same = [g for g in found if g.first.group == first.first.group]
        if first.first.method != same[0].first.method:
            continue
        made += [
            (first, g)
            for g in same
            if g.first.method != first.first.method
            and g.first.settings.get(LABELS) == first.first.settings.get(LABELS)
            and len(g.entries) == len(first.entries)
            and _alike(g.first, first.first)
        ]
    return made


def _alike(a: Entry, b: Entry) -> bool:
    """Whether two entries have the same images, certified in the same way."""
    return pairing.same_images(a, b) and not pairing.differing(a, b)


def accuracy_table(numbers: pd.DataFrame) -> pd.DataFrame:
    """`accuracy` as text, in percent, one row for each group."""
    rows = []
    for (sigma, name), part in numbers.groupby(["sigma", "entry"], sort=False):
        row = {"σ": sigma, "trained alike": name, "seeds": part["seeds"].iloc[0]}
        for each in part.to_dict("records"):
            mean = printed(each["mean"], DOWN, places=1, scale=POINTS)
            spread = f"{mean} ± {POINTS * each['sd']:.1f}"
            row[f"r = {each['radius']:g}"] = tables.at_least(each["lower_bound"]) + spread
        mean = printed(part["acr"].iloc[0], DOWN, places=3)
        rows.append(row | {"ACR": f"{mean} ± {part['acr_sd'].iloc[0]:.3f}"})
    return pd.DataFrame(rows)


def difference_table(numbers: pd.DataFrame) -> pd.DataFrame:
    """`differences` as text, in points."""
    rows = []
    for each in numbers.to_dict("records"):
        if each["undecided"]:
            continue
        rows.append(
            {
                "σ": each["sigma"],
                "A": each["first"],
                "B": each["second"],
                "r": f"{each['radius']:g}",
                "A − B": tables.points(
                    Estimate(value=each["difference"], low=each["low"], high=each["high"])
                ),
                "p, Holm": f"{each['p_holm']:.2g}",
                "A : B ahead": f"{each['better']} : {each['worse']} of {each['seeds']} seeds",
            }
        )
    return pd.DataFrame(rows)


def figure(numbers: pd.DataFrame, *, what: str) -> Figure:
    """A panel for each sigma: means at the radii, with bars from the least to the largest seed."""
    with style.context(figures.STYLE):
        drawn, axes = figures.panels(numbers["sigma"].nunique(), size=(4.4, 3.8))
        for axis, (sigma, part) in zip(axes, numbers.groupby("sigma", sort=False), strict=True):
            settled = part[~part["undecided"]].groupby("entry", sort=False)
            for number, (name, line) in enumerate(settled):
                mean = POINTS * line["mean"]
                axis.errorbar(
                    line["radius"],
                    mean,
                    yerr=[mean - POINTS * line["low"], POINTS * line["high"] - mean],
                    label=name,
                    color=figures.colour(number),
                    linestyle=figures.dash(number),
                    marker=figures.marker(number),
                    markersize=3,
                    linewidth=1.2,
                    capsize=2,
                )
            axis.set_title(f"σ = {sigma}")
            axis.set_xlabel("radius r, pixels in [0, 1]")
            axis.set_ylim(bottom=0)
            axis.legend(frameon=False, fontsize=7)
        figures.first_column(axes, f"{what}, %")
    return drawn
