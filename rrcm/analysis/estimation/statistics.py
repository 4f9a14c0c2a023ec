"""Statistics over the certificates of many images. Equations are those of docs/theory.md."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from statsmodels.stats.proportion import proportion_confint

from rrcm.analysis.estimation import intervals
from rrcm.analysis.estimation.intervals import Estimate
from rrcm.certification.votes.counts import ABSTAIN


def certified(table: pd.DataFrame, radius: float) -> np.ndarray:
    """Which images are certified correct at ``radius`` or more, bool [N]; abstaining is wrong."""
    return ((table["correct"] == 1) & (table["radius"] >= radius)).to_numpy()


def certified_accuracy(
    table: pd.DataFrame, radii: Sequence[float], *, confidence: float
) -> pd.DataFrame:
    """Certified accuracy with its Wilson interval (eq. 13): ``radius, value, low, high``."""
    hits = np.array([certified(table, radius).sum() for radius in radii])
    low, high = proportion_confint(hits, len(table), alpha=1 - confidence, method="wilson")
    value = hits / len(table)
    return pd.DataFrame({"radius": radii, "value": value, "low": low, "high": high})


def clean(table: pd.DataFrame, *, confidence: float) -> Estimate | None:
    """The share of images that the base classifier answers correctly without noise, if known."""
    if "clean" not in table or not len(table):
        return None
    right = int((table["clean"] == table["label"]).sum())
    return intervals.wilson(right, len(table), confidence=confidence)


def answered(table: pd.DataFrame) -> pd.DataFrame:
    """``table`` with every answer counted as correct, for images without labels."""
    return table.assign(correct=(table["predict"] != ABSTAIN).astype(int))


def credited(table: pd.DataFrame) -> np.ndarray:
    """The radius of each image [N]; 0 for wrong answers and abstentions."""
    return (table["radius"] * table["correct"]).to_numpy(dtype=float)


def average_certified_radius(table: pd.DataFrame) -> float:
    """ACR, the mean of radius x correct (Zhai et al., 2020). Easy images dominate it."""
    return float(credited(table).mean())


def abstention(table: pd.DataFrame) -> float:
    """Share of images without an answer."""
    return float((table["predict"] == ABSTAIN).mean())


def curve(table: pd.DataFrame) -> pd.DataFrame:
    """Certified accuracy as a function of the radius: one row per step of the staircase.

    Columns ``radius`` and ``certified_accuracy``, which holds up to and including the radius.
    """
    radii = np.sort(table.loc[table["correct"] == 1, "radius"].to_numpy())
    steps = np.unique(np.concatenate([[0.0], radii]))
    at_least = len(radii) - np.searchsorted(radii, steps, side="left")
    return pd.DataFrame({"radius": steps, "certified_accuracy": at_least / len(table)})


def left(table: pd.DataFrame) -> pd.DataFrame:
    """``table`` with the radius that an attack leaves of each image, for their `curve`.

    Images without a success count up to the farthest distance of the table: of what is beyond
    nothing is known.
    """
    before = np.nextafter(table["attacked"], -1)
    farthest = table[["attacked", "radius"]].max(axis=None)
    return table.assign(radius=before.fillna(farthest), correct=1)


def band(table: pd.DataFrame, *, confidence: float) -> pd.DataFrame:
    """`curve` with two bands around it.

    ``low`` and ``high`` are Wilson's and hold at one radius (eq. 13); ``all_low`` and ``all_high``
    hold at all radii together (eq. 34), and are wider.
    """
    found, images = curve(table), len(table)
    share = found["certified_accuracy"].to_numpy()
    hits = np.rint(share * images)
    low, high = proportion_confint(hits, images, alpha=1 - confidence, method="wilson")
    apart = intervals.dkw(images, confidence=confidence)
    return found.assign(
        low=low,
        high=high,
        all_low=np.maximum(share - apart, 0),
        all_high=np.minimum(share + apart, 1),
    )
