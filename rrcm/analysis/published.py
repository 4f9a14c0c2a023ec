"""Certified accuracy beside the published numbers of the same recipe.

A file ``presets/published/<data set>.csv`` has a row for each evaluation of a preset: its name, the
number of trained ``seeds`` and of test ``images`` behind it, the mean ``acr`` and its standard
deviation over seeds ``acr_sd``, and certified accuracy in percent at radii, columns ``r0.25``.
"""

import math
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from pandas.api.types import is_numeric_dtype
from scipy.stats import norm

from rrcm.analysis.entries import Entry
from rrcm.analysis.estimation import statistics
from rrcm.analysis.estimation.intervals import Estimate
from rrcm.analysis.presentation import tables
from rrcm.certification.certify import DOWN, printed
from rrcm.core.errors import DataError, one_line

FAR = 3.0  # standard errors beyond which a difference is not put down to chance
NUMBERS = ("seeds", "images", "acr", "acr_sd")


@dataclass(frozen=True, kw_only=True, slots=True)
class Published:
    """A row of a published table; ``accuracy`` maps a radius to a share in [0, 1]."""

    entry: str
    seeds: int
    images: int
    acr: float
    acr_sd: float
    accuracy: dict[float, float]


def read(path: Path) -> dict[str, Published]:
    """Published rows by the name of the evaluation; empty if there is no such file.

    Raises:
        DataError: A column is missing, or a number is none or out of range.
    """
    if not path.exists():
        return {}
    try:
        table = pd.read_csv(path)
    except ValueError as error:  # no UTF-8, or no table
        raise DataError(f"{path}: no table ({one_line(error)})") from None
    radii = {name: float(name[1:]) for name in table if re.fullmatch(r"r\d+(\.\d+)?", str(name))}
    if missing := {"entry", *NUMBERS} - {*table}:
        raise DataError(f"{path}: no column {sorted(missing)[0]}")
    if not all(is_numeric_dtype(table[name]) for name in (*NUMBERS, *radii)):
        raise DataError(
            f"{path}: a number is none; expected columns {', '.join(NUMBERS)} and radii"
        )
    if not table[[*radii]].apply(lambda column: column.between(0, 100)).all(axis=None):
        raise DataError(f"{path}: a certified accuracy is not in 0 … 100 %")
    return {
        row["entry"]: Published(
            entry=row["entry"],
            seeds=int(row["seeds"]),
            images=int(row["images"]),
            acr=float(row["acr"]),
            acr_sd=float(row["acr_sd"]),
            accuracy={radius: row[name] / 100 for name, radius in radii.items()},
        )
        for row in table.to_dict("records")
    }


def compare(
    found: list[Entry], published: dict[str, Published], *, radii: list[float], confidence: float
) -> pd.DataFrame:
    """Differences from the published rows, one row for each evaluation and radius.

    Evaluations that differ in ``-seed<k>`` of their names are averaged. ``difference`` is ours
    minus the published share, [``low``, ``high``] its interval, ``errors`` its number of standard
    errors. These are of both samples of images, taken as independent, which overstates them where
    the images are the same; and of our seeds, where there are several. Where ``undecided``, our
    draws stopped before the radius was decided; ``lower_bound`` is that of `Entry`. Radii at which
    both shares are 0 are left out.
    """
    by_name: dict[str, list[Entry]] = {}
    for entry in found:
        if (name := re.sub(r"-seed\d+(?=-|$)", "", entry.name)) in published and entry.labelled:
            by_name.setdefault(name, []).append(entry)
    rows = []
    for name, entries in by_name.items():
        theirs = published[name]
        for radius in sorted(theirs.accuracy.keys() & {*radii}):
            shares = [float(statistics.certified(e.judged, radius).mean()) for e in entries]
            ours, other = float(np.mean(shares)), theirs.accuracy[radius]
            if not ours and not other:
                continue
            images = sum(len(entry.judged) for entry in entries) / len(entries)
            variance = ours * (1 - ours) / images + other * (1 - other) / theirs.images
            if len(shares) > 1:
                variance += float(np.var(shares, ddof=1)) / len(shares)
            error, difference = math.sqrt(variance), ours - other
            half = norm.isf((1 - confidence) / 2) * error
            rows.append(
                {
                    "entry": name,
                    "radius": radius,
                    "seeds": len(shares),
                    "ours": ours,
                    "published": other,
                    "difference": difference,
                    "low": difference - half,
                    "high": difference + half,
                    "errors": difference / error if error else math.copysign(math.inf, difference),
                    "lower_bound": any(entry.lower_bound(radius) for entry in entries),
                    "undecided": any(entry.undecided([radius])[0] for entry in entries),
                }
            )
    columns = ["entry", "radius", "seeds", "ours", "published", "difference"]
    return pd.DataFrame(
        rows, columns=[*columns, "low", "high", "errors", "lower_bound", "undecided"]
    )


def table(compared: pd.DataFrame) -> pd.DataFrame:
    """`compare` as text, with a verdict for each evaluation on its first line."""
    said = {name: verdict(part) for name, part in compared.groupby("entry", sort=False)}
    rows = []
    for row in compared.to_dict("records"):
        mark = tables.at_least(row["lower_bound"])
        apart = Estimate(value=row["difference"], low=row["low"], high=row["high"])
        rows.append(
            {
                "evaluation": row["entry"],
                "r": f"{row['radius']:g}",
                "ours %": mark + printed(row["ours"], DOWN, places=2, scale=tables.PERCENT),
                "published %": f"{100 * row['published']:.2f}",
                "difference": tables.points(apart, places=2),
                "standard errors": f"{row['errors']:+.1f}",
                "verdict": said.pop(row["entry"], ""),
            }
        )
    return pd.DataFrame(rows)


def verdict(compared: pd.DataFrame) -> str:
    """Whether one evaluation agrees with its published row, in words."""
    judged = compared[~compared["undecided"] | (compared["errors"] > FAR)]
    far = judged[judged["errors"].abs() > FAR]
    if len(far):
        radii = ", ".join(f"{row.radius:g} ({row.errors:+.1f})" for row in far.itertuples())
        return f"differs by more than {FAR:g} standard errors at r = {radii}"
    if judged.empty:
        return "undecided: drawing stopped before any of these radii was settled"
    return f"agrees: within {FAR:g} standard errors at each settled radius"
