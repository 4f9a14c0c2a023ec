"""Confidence intervals of shares and means over images. Equations are those of docs/theory.md."""

import math
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri
from scipy.stats import binom, bootstrap
from scipy.stats import t as student
from statsmodels.stats.proportion import proportion_confint

RESAMPLES = 9999
CELLS = 1 << 22  # numbers in a batch of resamples: bounds the memory for many images
MANY = 10_000  # images up to which each is resampled
FINE = 500  # cells of the range of values, for more images
TINY = 1e-9  # pixels; radii have six decimals, so smaller differences are rounding errors
LEAST = 1e-12  # a smaller p is reported as this


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """A statistic over images, with its confidence interval."""

    value: float
    low: float
    high: float


def wilson(hits: float, images: float, *, confidence: float) -> Estimate:
    """A share of images, with its Wilson interval (eq. 13); ``hits`` may be a mean of counts."""
    low, high = proportion_confint(hits, images, alpha=1 - confidence, method="wilson")
    return Estimate(value=float(hits / images), low=float(low), high=float(high))


def dkw(images: int, *, confidence: float) -> float:
    """Half-width of the simultaneous band of a curve over images (eq. 34)."""
    return math.sqrt(math.log(2 / (1 - confidence)) / (2 * images))


def mean(values: np.ndarray, *, confidence: float) -> Estimate:
    """The mean of ``values`` [N], with its BCa bootstrap interval (Efron, 1987).

    The same values give the same interval. If all values are equal, they say nothing about others,
    and the ends of the interval are NaN.
    """
    value = float(values.mean())
    if np.ptp(values) < TINY:
        return Estimate(value=value, low=math.nan, high=math.nan)
    if len(values) > MANY:
        means = _resampled_cells(values)
    else:
        means = bootstrap(
            (values,),
            np.mean,
            n_resamples=RESAMPLES,
            batch=max(1, CELLS // len(values)),
            method="percentile",
            rng=np.random.default_rng(0),
        ).bootstrap_distribution
    apart = values - value
    # what a jackknife gives for a mean, without its N means of N - 1 values
    acceleration = (apart**3).sum() / (apart**2).sum() ** 1.5 / 6
    bias = ndtri(((means < value).mean() + (means <= value).mean()) / 2)
    shifted = bias + ndtri([(1 - confidence) / 2, (1 + confidence) / 2])
    levels = ndtr(bias + shifted / (1 - acceleration * shifted))
    low, high = np.quantile(means, levels)
    return Estimate(value=value, low=float(low), high=float(high))


def _resampled_cells(values: np.ndarray) -> np.ndarray:
    """Means of bootstrap samples of very many values, each replaced by the mean of a fine cell.

    A bootstrap sample is then a count in each cell. The spread within cells, which is lost, is far
    below the error of so many resamples.
    """
    cells = np.rint((values - values.min()) * (FINE / np.ptp(values))).astype(int)
    sizes, sums = np.bincount(cells), np.bincount(cells, weights=values)
    used = sizes > 0
    centres, images = sums[used] / sizes[used], len(values)
    rng = np.random.default_rng(0)
    counts = rng.multinomial(images, sizes[used] / images, size=RESAMPLES)
    return counts @ centres / images


def crossed_mean(values: np.ndarray, *, confidence: float) -> tuple[Estimate, float]:
    """The mean of ``values`` [K seeds, N images], its interval, and p of a mean of 0 (eq. 55).

    Seeds and images are random and crossed: every seed has a value for every image. The interval
    speaks of other seeds and other images. p is 1 minus the confidence at which it would end at 0.
    If all values are equal, they say nothing about others: its ends are NaN, and p is 1.

    Raises:
        ValueError: There are fewer than two seeds or images, so that one of them shows no spread.
    """
    seeds, images = values.shape
    if seeds < 2 or images < 2:
        raise ValueError(f"two seeds and two images at least, got {seeds} and {images}")
    value = float(values.mean())
    if np.ptp(values) < TINY:
        return Estimate(value=value, low=math.nan, high=math.nan), 1.0
    of_seeds, of_images = values.mean(axis=1), values.mean(axis=0)
    left = values - of_seeds[:, None] - of_images + value
    by_seeds = float(of_seeds.var(ddof=1)) / seeds
    rest = float((left**2).sum()) / ((seeds - 1) * (images - 1) * values.size)
    by_images = float(of_images.var(ddof=1)) / images

    def half(p: float) -> float:
        seeds_t, images_t = student.isf(p / 2, [seeds - 1, images - 1])
        both = seeds_t**2 * by_seeds + images_t**2 * max(by_images - rest, 0.0)
        return math.sqrt(max(both, images_t**2 * by_images))

    estimate = Estimate(
        value=value, low=value - half(1 - confidence), high=value + half(1 - confidence)
    )
    excess = [half(p) - abs(value) for p in (LEAST, 1.0)]
    if excess[0] <= 0 or excess[1] >= 0:
        return estimate, LEAST if excess[0] <= 0 else 1.0
    return estimate, float(brentq(lambda p: half(p) - abs(value), LEAST, 1.0))


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
