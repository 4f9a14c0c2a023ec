"""Confidence intervals of shares and means over images. Equations are those of docs/theory.md."""

import math
from dataclasses import dataclass

import numpy as np
from scipy.stats import binom, bootstrap
from statsmodels.stats.proportion import proportion_confint

RESAMPLES = 9999
CELLS = 1 << 22  # numbers in a batch of resamples: bounds the memory for many images
TINY = 1e-9  # pixels; radii have six decimals, so smaller differences are rounding errors


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """A statistic over images, with its confidence interval."""

    value: float
    low: float
    high: float


def wilson(hits: int, images: int, *, confidence: float) -> Estimate:
    """A share of images, with its Wilson interval (eq. 13)."""
    low, high = proportion_confint(hits, images, alpha=1 - confidence, method="wilson")
    return Estimate(value=float(hits / images), low=float(low), high=float(high))


def dkw(images: int, *, confidence: float) -> float:
    """Half-width of the simultaneous band of a curve over images (eq. 34)."""
    return math.sqrt(math.log(2 / (1 - confidence)) / (2 * images))


def mean(values: np.ndarray, *, confidence: float) -> Estimate:
    """The mean of ``values`` [N], with its BCa bootstrap interval (Efron, 1987).

    The same values give the same interval. If all values are equal, the interval is that value.
    """
    value = float(values.mean())
    if np.ptp(values) < TINY:
        return Estimate(value=value, low=value, high=value)
    found = bootstrap(
        (values,),
        np.mean,
        confidence_level=confidence,
        n_resamples=RESAMPLES,
        batch=max(1, CELLS // len(values)),
        method="BCa",
        rng=np.random.default_rng(0),
    ).confidence_interval
    return Estimate(value=value, low=float(found.low), high=float(found.high))


def paired_difference(
    *, both: int, only_first: int, only_second: int, neither: int, confidence: float
) -> Estimate:
    """Difference of two shares of the same images, with Newcombe's interval (eq. 35)."""
    images = both + only_first + only_second + neither
    first = wilson(both + only_first, images, confidence=confidence)
    second = wilson(both + only_second, images, confidence=confidence)
    covariance: float = both * neither - only_first * only_second
    if covariance > 0:  # corrected for continuity, towards independence
        covariance = max(covariance - images / 2, 0)
    spread = math.prod(
        (both + only_first, only_second + neither, both + only_second, only_first + neither)
    )
    phi = covariance / math.sqrt(spread) if spread else 0.0
    value = first.value - second.value

    def apart(a: float, b: float) -> float:
        return math.sqrt(max(a * a - 2 * phi * a * b + b * b, 0.0))

    return Estimate(
        value=value,
        low=value - apart(first.value - first.low, second.high - second.value),
        high=value + apart(first.high - first.value, second.value - second.low),
    )


def any_false(images: int, *, alpha: float) -> float:
    """Upper bound of the probability that one certificate or more is false (eq. 13a)."""
    return -math.expm1(images * math.log1p(-alpha))


def most_false(images: int, *, alpha: float, rho: float) -> int:
    """Upper bound of the number of false certificates, with probability ``1 - rho`` (eq. 36)."""
    return int(binom.ppf(1 - rho, images, alpha))
