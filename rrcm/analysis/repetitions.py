"""Repetitions: entries that differ only in the seed of their training, and what they say together.

One trained network is one draw of the luck of a training. With several seeds, a difference of two
methods has an interval that speaks of methods.
"""

import itertools
import re
from typing import Any

import numpy as np
import pandas as pd

from rrcm.analysis import entries, pairing
from rrcm.analysis.entries import Entry
from rrcm.analysis.estimation import intervals, paired, statistics
from rrcm.analysis.presentation import tables
from rrcm.certification.certify import DOWN, printed

LABELS = "recipe.labels"  # methods are compared that have the same share of labels
SEED = re.compile(r"-seed\d+(?=-|$)")

Groups = dict[str, list[Entry]]  # what their names share -> entries in the order of their seeds


def repeated(found: list[Entry]) -> Groups:
    """Entries of two seeds or more with the same settings, sigma and images.

    Settings are those of the training and of certification.
    """
    alike: dict[tuple[object, ...], list[Entry]] = {}
    for entry in found:
        if entry.settings and entry.seed is not None:
            settings = tuple(sorted((key, str(value)) for key, value in entry.settings.items()))
            key = (*entry.group, entry.sigma_train, entry.method, settings)
            alike.setdefault(key, []).append(entry)
    groups = {}
    for members in alike.values():
        comparable = all(_alike(members[0], entry) for entry in members)
        if comparable and len({entry.seed for entry in members}) > 1:
            members.sort(key=lambda entry: entry.seed or 0)
            groups[SEED.sub("", members[0].name)] = members
    return groups


def accuracy(groups: Groups, *, radii: list[float]) -> pd.DataFrame:
    """Certified accuracy of each group at each radius, and ACR, with their spread over seeds.

    Columns: ``sigma``, ``entry``, ``seeds``, ``radius``, the ``mean`` share with its standard
    deviation ``sd`` over seeds, and ``lower_bound``; ``acr``, ``acr_sd`` and ``acr_lower_bound``,
    the same at each radius.
    """
    parts = []
    for name, members in groups.items():
        shares = np.array([_certified(members, radius).mean(axis=1) for radius in radii])
        means = [statistics.average_certified_radius(entry.judged) for entry in members]
        columns = {
            "sigma": entries.sigma(members[0]),
            "entry": name,
            "seeds": len(members),
            "radius": radii,
            "mean": shares.mean(axis=1),
            "sd": shares.std(axis=1, ddof=1),
            "lower_bound": np.any([entry.lower_bounds(radii) for entry in members], axis=0),
            "acr": np.mean(means),
            "acr_sd": np.std(means, ddof=1),
            "acr_lower_bound": any(entry.cut_short for entry in members),
        }
        parts.append(pd.DataFrame(columns))
    return pd.concat(parts) if parts else pd.DataFrame()


def differences(groups: Groups, *, radii: list[float], confidence: float) -> pd.DataFrame:
    """The first method of each sigma against every other, with the same share of labels.

    One row for each pair and radius: ``difference`` of the mean shares with its interval over seeds
    and images (``low``, ``high``), ``p`` of no difference, and the same corrected by Holm for the
    radii of the pair (``p_holm``). Seeds are paired in their order; pairs with another number of
    seeds, other images or no disagreement at a radius have no row there.
    """
    rows: list[dict[str, Any]] = []
    for first, second in itertools.permutations(groups, 2):
        ones, others = groups[first], groups[second]
        if not _comparable(ones, others, groups):
            continue
        undecided = np.any([entry.undecided(radii) for entry in (*ones, *others)], axis=0)
        of_pair = []
        for radius, open_ in zip(radii, undecided, strict=True):
            apart = _certified(ones, radius).astype(float) - _certified(others, radius)
            if not apart.any():
                continue
            mean, p = intervals.crossed_mean(apart, confidence=confidence)
            of_pair.append(
                {
                    "sigma": entries.sigma(ones[0]),
                    "first": first,
                    "second": second,
                    "radius": radius,
                    "seeds": len(ones),
                    "difference": mean.value,
                    "low": mean.low,
                    "high": mean.high,
                    "p": p,
                    "undecided": bool(open_),
                }
            )
        corrected = paired.holm(np.array([row["p"] for row in of_pair]))
        rows += [row | {"p_holm": float(p)} for row, p in zip(of_pair, corrected, strict=True)]
    return pd.DataFrame(rows)


def _certified(members: list[Entry], radius: float) -> np.ndarray:
    """Whether each seed certifies each image at ``radius``, bool [K, N]."""
    return np.stack([statistics.certified(entry.judged, radius) for entry in members])


def _comparable(ones: list[Entry], others: list[Entry], groups: Groups) -> bool:
    """Whether ``ones`` are of the first method of their sigma, and ``others`` of another method."""
    a, b = ones[0], others[0]
    leader = next(members[0] for members in groups.values() if members[0].group == a.group)
    return (
        a.group == b.group
        and a.method == leader.method != b.method
        and a.settings.get(LABELS) == b.settings.get(LABELS)
        and len(ones) == len(others)
        and _alike(a, b)
    )


def _alike(a: Entry, b: Entry) -> bool:
    """Whether two entries have the same images, certified in the same way."""
    return pairing.same_images(a, b) and not pairing.differing(a, b)


def accuracy_table(numbers: pd.DataFrame) -> pd.DataFrame:
    """`accuracy` as text, in percent, one row for each group."""
    rows = []
    for (sigma, name), part in numbers.groupby(["sigma", "entry"], sort=False):
        row = {"σ": sigma, "trained alike": name, "seeds": part["seeds"].iloc[0]}
        for each in part.to_dict("records"):
            mean = printed(each["mean"], DOWN, places=1, scale=tables.PERCENT)
            spread = f"{mean} ± {tables.PERCENT * each['sd']:.1f}"
            row[f"r = {each['radius']:g}"] = tables.at_least(each["lower_bound"]) + spread
        whole = part.iloc[0]
        mean = tables.at_least(whole["acr_lower_bound"]) + printed(whole["acr"], DOWN, places=3)
        rows.append(row | {"ACR": f"{mean} ± {whole['acr_sd']:.3f}"})
    return pd.DataFrame(rows)


def difference_table(numbers: pd.DataFrame) -> pd.DataFrame:
    """`differences` as text, in points."""
    return pd.DataFrame(
        {
            "σ": each["sigma"],
            "A": each["first"],
            "B": each["second"],
            "r": f"{each['radius']:g}",
            "A − B": tables.points(each["difference"], each["low"], each["high"]),
            "p, Holm": f"{each['p_holm']:.2g}",
        }
        for each in numbers.to_dict("records")
        if not each["undecided"]
    )
