"""Both sides of robustness: what is certified, and what an attack leaves.

They are of entries whose tables have the distance ``attacked`` (rrcm/certification/attacking/).
"""

import math

import pandas as pd

from rrcm.analysis import entries
from rrcm.analysis.entries import Entry
from rrcm.analysis.estimation import intervals, statistics
from rrcm.analysis.presentation import tables
from rrcm.certification.certify import DOWN, UP

BASE = "attacked_base"  # the distance at which the classifier without noise is wrong
SHARES = {"clean": DOWN, "base": UP, "certified": DOWN, "empirical": UP, "gap": DOWN}  # rounded so


def numbers(found: list[Entry], *, radii: list[float], confidence: float) -> pd.DataFrame:
    """Shares of images with Wilson intervals, a row for each attacked entry and radius.

    Columns with a share also have ``_low`` and ``_high``. ``clean`` is accuracy without noise, and
    ``base`` what is left of that by pictures within the radius that were found for the classifier
    without noise; NaN where unknown. ``certified`` is certified accuracy. ``empirical`` is the
    share without a picture within the radius that is certified to have a wrong class, an upper
    bound of the robust accuracy. The ``gap`` is the share of which neither is so.
    """
    rows = []
    for entry in (one for one in found if "attacked" in one.table):
        clean = statistics.clean(entry.judged, confidence=confidence)
        for radius in radii:
            certified = statistics.certified(entry.judged, radius)
            left = ~(entry.judged["attacked"] <= radius).to_numpy()
            of = {"certified": certified, "empirical": left, "gap": left & ~certified}
            if BASE in entry.judged:
                of["base"] = ~(entry.judged[BASE] <= radius).to_numpy()
            shares = {} if clean is None else {"clean": clean}
            for name, right in of.items():
                shares[name] = intervals.wilson(int(right.sum()), len(right), confidence=confidence)
            row = {"method": entries.label(entry, found), "radius": radius}
            for name, share in shares.items():
                row |= {name: share.value, f"{name}_low": share.low, f"{name}_high": share.high}
            rows.append(row)
    return pd.DataFrame(rows)


def table(found: list[Entry], *, radii: list[float], confidence: float) -> pd.DataFrame:
    """`numbers` as text in percent, each with its interval; empty where unknown."""
    rows = []
    for row in numbers(found, radii=radii, confidence=confidence).to_dict("records"):
        text = {"method": row["method"], "r": f"{row['radius']:g}"}
        for name, direction in SHARES.items():
            if row.get(name, math.nan) >= 0:
                share = (row[name], row[f"{name}_low"], row[f"{name}_high"])
                shown = tables.percent(*share, direction=direction)
                text[name.replace("gap", "gap, points")] = shown
        rows.append(text)
    return pd.DataFrame(rows)


def contradictions(found: list[Entry]) -> list[str]:
    """A line for each image of which a certificate and an attack contradict each other."""
    return [
        f"FALSE CERTIFICATE: {entry.name}, image {row.idx}: class {row.label} is certified within "
        f"{row.radius}, and class {row.attacked_to} at distance {row.attacked}. One of them is "
        "false: by chance with probability 2 α at most"
        for entry in found
        if "attacked" in entry.table
        for row in entry.judged.query("correct == 1 and attacked <= radius").itertuples()
    ]
