"""Both sides of robustness: what is certified, and what an attack leaves.

They are of entries whose tables have the distance ``attacked`` (rrcm/certification/attacking/).
"""

import pandas as pd

from rrcm.analysis import entries
from rrcm.analysis.entries import Entry
from rrcm.analysis.estimation import intervals, statistics
from rrcm.analysis.presentation import tables
from rrcm.certification.certify import UP, printed


def table(found: list[Entry], *, radii: list[float], confidence: float) -> pd.DataFrame:
    """Shares of images in percent with Wilson intervals, a row for each attacked entry and radius.

    ``clean`` is accuracy without noise, if it is known, and ``certified`` is certified accuracy.
    ``empirical`` is the share without a picture within the radius that is certified to have a wrong
    class, an upper bound of the robust accuracy. The ``gap`` is the share of which neither is so.
    """
    rows = []
    for entry in (one for one in found if "attacked" in one.table):
        clean = statistics.clean(entry.judged, confidence=confidence)
        for radius in radii:
            certified = statistics.certified(entry.judged, radius)
            left = ~(entry.judged["attacked"] <= radius).to_numpy()
            lower, upper, gap = (
                intervals.wilson(int(of.sum()), len(of), confidence=confidence)
                for of in (certified, left, left & ~certified)
            )
            ends = tables.interval(upper.low, upper.high, places=1, scale=tables.PERCENT)
            row = {"method": entries.label(entry, found), "r": f"{radius:g}"}
            if clean is not None:
                row["clean"] = tables.percent(clean.value, clean.low, clean.high)
            row["certified"] = tables.percent(lower.value, lower.low, lower.high)
            row["empirical"] = f"{printed(upper.value, UP, places=1, scale=tables.PERCENT)} {ends}"
            rows.append(row | {"gap, points": tables.percent(gap.value, gap.low, gap.high)})
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
