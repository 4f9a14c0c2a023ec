r"""The Fréchet distance between Gaussians fitted to two sets of features.

Dowson & Landau (1982); between representations of noise and of images, Lei et al. (2025) call it
RFD. It compares means and covariances only, and grows as images get fewer: between two sets of n
features from one normal distribution in D dimensions with identity covariance, it is
(2 D + D (D + 1) / 2) / n on average, to first order, and not 0. So it is reported with its `bias`,
and distances between sets of different sizes are not comparable. Equation numbers are those of
docs/theory.md.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True, slots=True)
class Moments:
    """Mean [D] and covariance [D, D] of ``count`` features, float64."""

    mean: np.ndarray
    covariance: np.ndarray
    count: int


def moments(batches: Iterable[np.ndarray]) -> Moments:
    """Moments of features in ``batches`` [n, D]; two or more features in all.

    The mean of the first batch is subtracted before summing, so that a large mean costs no
    precision. The covariance is the unbiased estimate, as is usual for this distance.
    """
    zero: np.ndarray = np.zeros(())
    count, shift, total, products = 0, zero, zero, zero
    for batch in batches:
        features = batch.astype(np.float64)
        shift = features.mean(axis=0) if count == 0 else shift
        centred = features - shift
        count += len(features)
        total, products = total + centred.sum(axis=0), products + centred.T @ centred
    mean = total / count
    covariance = (products - count * np.outer(mean, mean)) / (count - 1)
    return Moments(mean=mean + shift, covariance=(covariance + covariance.T) / 2, count=count)


def distance(first: Moments, second: Moments) -> float:
    r"""The squared Fréchet distance between two Gaussians (eq. 53), in squared units of a feature.

    .. math:: \lVert \mu_1 - \mu_2 \rVert^2 + \mathrm{Tr} \left( \Sigma_1 + \Sigma_2
        - 2 (\Sigma_1 \Sigma_2)^{1/2} \right)

    Symmetric, not negative, and 0 for equal moments up to rounding. Covariances may be singular, as
    with fewer features than dimensions.
    """
    apart = np.square(first.mean - second.mean).sum()
    shared = _shared(first, second).sum()
    spread = np.trace(first.covariance) + np.trace(second.covariance) - 2 * shared
    return float(apart + max(spread, 0.0))


def bias(first: Moments, second: Moments) -> float:
    """Expected excess of `distance`, because moments are estimated from samples (eq. 53a).

    Valid to first order in 1 / ``count``, so for counts far above the dimensions, and for
    independent samples of normal features; heavier tails add to it.
    """
    r = _shared(first, second)
    r = r[r > 0]  # a dimension without variance has no error
    pairs = (np.outer(r, r) / np.add.outer(r, r)).sum() + r.sum() / 2
    own = sum(np.trace(each.covariance) / each.count for each in (first, second))
    return float(own + pairs * (1 / first.count + 1 / second.count) / 2)


def _shared(first: Moments, second: Moments) -> np.ndarray:
    """Singular values [D] of S1^(1/2) S2^(1/2); their sum is Tr (S1 S2)^(1/2).

    Roots of the eigenvalues of S1 S2 would turn rounding errors of 1e-16 into 1e-8 in every
    dimension.
    """
    return np.linalg.svd(_root(first.covariance) @ _root(second.covariance), compute_uv=False)


def _root(covariance: np.ndarray) -> np.ndarray:
    """The symmetric square root of a covariance."""
    values, vectors = np.linalg.eigh(covariance)
    return (vectors * np.sqrt(values.clip(min=0))) @ vectors.T
