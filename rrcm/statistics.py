"""Statistics over certificates of many images. Equation numbers are those of docs/theory.md."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from statsmodels.stats.contingency_tables import mcnemar as statsmodels_mcnemar
from statsmodels.stats.proportion import proportion_confint

from rrcm.errors import DataError


@dataclass(frozen=True, kw_only=True, slots=True)
class Share:
    """A share of images, with the interval that the number of images allows."""

    value: float
    low: float
    high: float


def certified(table: pd.DataFrame, radius: float) -> np.ndarray:
    """Which images are certified correct at ``radius`` or more, bool [N]; abstaining is wrong."""
    return ((table["correct"] == 1) & (table["radius"] >= radius)).to_numpy()


def certified_accuracy(table: pd.DataFrame, radius: float, *, confidence: float) -> Share:
    """Certified accuracy at ``radius``, with its Wilson interval (eq. 13)."""
    hits = certified(table, radius)
    low, high = proportion_confint(hits.sum(), len(hits), alpha=1 - confidence, method="wilson")
    return Share(value=float(hits.mean()), low=float(low), high=float(high))


def average_certified_radius(table: pd.DataFrame) -> float:
    """ACR, the mean of radius x correct (Zhai et al., 2020). Easy images dominate it."""
    return float((table["radius"] * table["correct"]).mean())


def abstention(table: pd.DataFrame) -> float:
    """Share of images without an answer."""
    return float((table["predict"] == -1).mean())


@dataclass(frozen=True, kw_only=True, slots=True)
class McNemar:
    """Images that only one of two classifiers certifies, and the exact two-sided p-value."""

    only_first: int
    only_second: int
    p: float


def mcnemar(first: pd.DataFrame, second: pd.DataFrame, radius: float) -> McNemar:
    """Do two classifiers differ at ``radius``, judged on the same images? (eq. 14)

    Raises:
        DataError: The tables are not of the same images in the same order.
    """
    if first["idx"].tolist() != second["idx"].tolist():
        raise DataError("McNemar's test compares the same images; these tables differ in `idx`")
    a, b = certified(first, radius), certified(second, radius)
    only_first, only_second = int((a & ~b).sum()), int((b & ~a).sum())
    counts = [[int((a & b).sum()), only_first], [only_second, int((~a & ~b).sum())]]
    p = float(statsmodels_mcnemar(counts, exact=True).pvalue)
    return McNemar(only_first=only_first, only_second=only_second, p=p)


def curve(table: pd.DataFrame) -> pd.DataFrame:
    """Certified accuracy as a function of radius: one row wherever the staircase steps.

    Columns ``radius`` and ``certified_accuracy``, which holds up to and including the radius.
    """
    radii = np.sort(table.loc[table["correct"] == 1, "radius"].to_numpy())
    steps = np.unique(np.concatenate([[0.0], radii]))
    at_least = len(radii) - np.searchsorted(radii, steps, side="left")
    return pd.DataFrame({"radius": steps, "certified_accuracy": at_least / len(table)})
