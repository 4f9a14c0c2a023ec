"""Certified accuracy beside the published numbers of the same recipe.

A file ``presets/published/<data set>.csv`` has a row for each evaluation of a preset: its name, the
``sigma`` and ``alpha`` of its certificates, the number of trained ``seeds`` and of test ``images``
behind it, the mean ``acr`` and its standard deviation over seeds ``acr_sd``, and certified accuracy
in percent at radii, columns ``r0.25``.
"""

import math
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import norm

from rrcm.analysis.entries import Entry
from rrcm.analysis.estimation import intervals, statistics
from rrcm.analysis.presentation import tables
from rrcm.analysis.repetitions import SEED
from rrcm.certification.certify import DOWN, printed
from rrcm.core.errors import DataError, one_line

FAR = 3.0  # standard errors beyond which a difference is not put down to chance


def read(path: Path) -> pd.DataFrame:
    """Published rows by ``entry``, the name of the evaluation; empty if there is no such file.

    Raises:
        DataError: A column other than radii and ACR is missing, or a number is none or out of
            range.
    """
    if not path.exists():
        return pd.DataFrame()
    try:
        table = pd.read_csv(path).set_index("entry").astype(float)
        positive = table[["sigma", "alpha", "images"]].gt(0).all(axis=None)
        if not positive or not _shares(table).stack().between(0, 1).all():
            raise ValueError("sigma, alpha, a number of images or a share is out of range")
        if _shares(table).max(axis=1).between(0, 0.01, inclusive="right").any():
            raise ValueError("shares of 1 % at most; they are written in percent")
    except (ValueError, KeyError) as error:
        raise DataError(f"{path}: no table of published numbers ({one_line(error)})") from None
    return table


def _shares(table: pd.DataFrame) -> pd.DataFrame:
    """Certified accuracy as shares in [0, 1], by radius."""
    return table.filter(regex=r"^r\d").rename(columns=lambda name: float(name[1:])) / 100


def compare(
    found: list[Entry], published: pd.DataFrame, *, radii: list[float], confidence: float
) -> pd.DataFrame:
    """Differences from the published rows, one row for each evaluation and radius.

    Evaluations that are stale, of another sigma or alpha than the row of their name, not of Cohen
    et al.'s certificate, or of images that a recipe was chosen on are left out: their numbers are
    of another recipe.
    Evaluations that differ in ``-seed<k>`` of their names are averaged. ``difference`` is ours
    minus the published share, [``low``, ``high``] Newcombe's interval from those of Wilson (1998,
    Statistics in Medicine 17:873, method 10), and ``errors`` its number of standard errors, those
    of two shares that are equal (pooled). They are of both samples of images, taken as independent,
    which overstates them where the images are the same; and of our seeds, where there are several.
    Where ``undecided``, our draws stopped before the radius was decided; ``lower_bound`` is that of
    `Entry`. Radii at which both shares are 0 are left out.
    """
    by_name: dict[str, list[Entry]] = {}
    for entry in found:
        name = SEED.sub("", entry.name)
        if name in published.index and entry.labelled and _same(entry, published.loc[name]):
            by_name.setdefault(name, []).append(entry)
    rows = []
    for name, members in by_name.items():
        images = sum(len(entry.judged) for entry in members) / len(members)
        theirs = _shares(published).loc[name]
        for radius in sorted({*theirs.index} & {*radii}):
            shares = [float(statistics.certified(e.judged, radius).mean()) for e in members]
            ours, other = float(np.mean(shares)), float(theirs[radius])
            if not ours and not other:
                continue
            count = float(published.loc[name, "images"])
            seeds = float(np.var(shares, ddof=1)) / len(shares) if len(shares) > 1 else 0.0
            pooled = (ours * images + other * count) / (images + count)
            error = math.sqrt(pooled * (1 - pooled) * (1 / images + 1 / count) + seeds)
            difference, spread = ours - other, norm.isf((1 - confidence) / 2) * math.sqrt(seeds)
            mine = intervals.wilson(ours * images, images, confidence=confidence)
            their = intervals.wilson(other * count, count, confidence=confidence)
            rows.append(
                {
                    "entry": name,
                    "radius": radius,
                    "seeds": len(shares),
                    "ours": ours,
                    "published": other,
                    "difference": difference,
                    "low": difference - math.hypot(ours - mine.low, their.high - other, spread),
                    "high": difference + math.hypot(mine.high - ours, other - their.low, spread),
                    "errors": difference / error if error else 0.0,  # all are certified by both
                    "lower_bound": any(entry.lower_bounds([radius])[0] for entry in members),
                    "undecided": any(entry.undecided([radius])[0] for entry in members),
                }
            )
    return pd.DataFrame(rows)


def _same(entry: Entry, row: pd.Series) -> bool:
    alike = row["sigma"] == entry.sigma and row["alpha"] == entry.alpha
    tested = entry.split in ("", "test")
    return alike and tested and entry.certificate == "cohen" and not entry.stale


def table(compared: pd.DataFrame) -> pd.DataFrame:
    """`compare` as text, with a verdict for each evaluation on its first line."""
    verdicts = {name: verdict(part) for name, part in compared.groupby("entry", sort=False)}
    return pd.DataFrame(
        {
            "evaluation": row["entry"],
            "r": f"{row['radius']:g}",
            "ours %": tables.at_least(row["lower_bound"]) + ours,
            "published %": f"{100 * row['published']:.2f}",
            "difference": tables.points(row["difference"], row["low"], row["high"], places=2),
            "standard errors": f"{row['errors']:+.1f}",
            "verdict": verdicts.pop(row["entry"], ""),
        }
        for row in compared.to_dict("records")
        for ours in [printed(row["ours"], DOWN, places=2, scale=tables.PERCENT)]
    )


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
