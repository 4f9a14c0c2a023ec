"""Paired tests of two classifiers on the same images. Equations are those of docs/theory.md."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.multitest import multipletests

from rrcm.analysis.estimation import intervals, statistics
from rrcm.analysis.estimation.intervals import Estimate
from rrcm.core.errors import DataError


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Counts of images that both, one or none of two classifiers certify at a radius, and a test.

    ``difference`` is the first's share minus the second's, ``p`` the p-value of the exact McNemar
    test, and ``p_holm`` the same corrected by Holm for all compared radii.
    """

    radius: float
    both: int
    only_first: int
    only_second: int
    neither: int
    difference: Estimate
    p: float
    p_holm: float


def compare(
    first: pd.DataFrame, second: pd.DataFrame, *, radii: list[float], confidence: float
) -> list[Comparison]:
    """Compare two classifiers on the same images, radius by radius (eq. 14, 35, 37).

    Raises:
        DataError: The tables have other images, or another order.
    """
    require_same_images(first, second)
    counts = [
        _counts(statistics.certified(first, r), statistics.certified(second, r)) for r in radii
    ]
    p = np.array([float(mcnemar(four, exact=True).pvalue) for four in counts])
    corrected = p.copy()
    # Holm ignores radii without any disagreement, at which no test can reject (Tarone, 1990).
    tests = np.array([four[0][1] + four[1][0] > 0 for four in counts])
    if tests.any():
        corrected[tests] = multipletests(p[tests], method="holm")[1]
    return [
        Comparison(
            radius=radius,
            both=four[0][0],
            only_first=four[0][1],
            only_second=four[1][0],
            neither=four[1][1],
            difference=intervals.paired_difference(
                both=four[0][0],
                only_first=four[0][1],
                only_second=four[1][0],
                neither=four[1][1],
                confidence=confidence,
            ),
            p=float(alone),
            p_holm=float(together),
        )
        for radius, four, alone, together in zip(radii, counts, p, corrected, strict=True)
    ]


def acr_difference(first: pd.DataFrame, second: pd.DataFrame, *, confidence: float) -> Estimate:
    """ACR of the first minus that of the second, with the BCa interval over images.

    Raises:
        DataError: The tables have other images, or another order.
    """
    require_same_images(first, second)
    return intervals.mean(
        statistics.credited(first) - statistics.credited(second), confidence=confidence
    )


def agreement(first: pd.DataFrame, second: pd.DataFrame) -> float:
    """The share of images on which two classifiers give the same answer, or both abstain."""
    require_same_images(first, second)
    return float((first["predict"].to_numpy() == second["predict"].to_numpy()).mean())


def same_images(first: pd.DataFrame, second: pd.DataFrame) -> bool:
    """Whether two tables have the same images, with the same labels, in the same order."""
    return all(first[key].tolist() == second[key].tolist() for key in ("idx", "label"))


def require_same_images(first: pd.DataFrame, second: pd.DataFrame) -> None:
    """Refuse to compare tables of different images in pairs."""
    if not same_images(first, second):
        raise DataError(
            "a paired comparison needs the same images; these tables differ in `idx` or `label`"
        )


def _counts(a: np.ndarray, b: np.ndarray) -> list[list[int]]:
    return [[int((x & y).sum()) for y in (b, ~b)] for x in (a, ~a)]
