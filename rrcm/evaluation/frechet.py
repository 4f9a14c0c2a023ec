r"""The Fréchet distance between two sets of features: how unlike their Gaussians are.

Dowson & Landau (1982); of features of pictures it is known as FID (Heusel et al., 2017,
arXiv:1706.08500), of representations of noise as RFD (Lei et al., 2025). It compares means and
covariances and nothing else, and grows as images get fewer: of two sets of n features of one normal
distribution in D dimensions, whose covariance is the identity, it is (2 D + D (D + 1) / 2) / n on
average, to first order, and not 0. So it is reported with its `bias`, and distances between sets of
other sizes do not compare. Equation numbers are those of docs/theory.md.
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
    """Moments of features that come in ``batches`` [n, D]; two or more features in all.

    Sums are of what is left after the mean of the first batch is taken away, so that a large mean
    costs no digits. The covariance is the unbiased one, as everywhere where this distance is used.
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

    Symmetric, not negative, 0 for equal moments but for rounding. Covariances may be singular, as
    those of fewer features than dimensions are.
    """
    apart = np.square(first.mean - second.mean).sum()
    shared = _shared(first, second).sum()
    spread = np.trace(first.covariance) + np.trace(second.covariance) - 2 * shared
    return float(apart + max(spread, 0.0))


def bias(first: Moments, second: Moments) -> float:
    """By how much `distance` is too large on average, because moments are of samples (eq. 53a).

    To first order in 1 / ``count``, so for counts far above the dimensions. For independent samples
    of normal features; heavier tails add to it.
    """
    r = _shared(first, second)
    r = r[r > 0]  # a dimension without spread has no error
    pairs = (np.outer(r, r) / np.add.outer(r, r)).sum() + r.sum() / 2
    own = sum(np.trace(each.covariance) / each.count for each in (first, second))
    return float(own + pairs * (1 / first.count + 1 / second.count) / 2)


def _shared(first: Moments, second: Moments) -> np.ndarray:
    """Singular values [D] of S1^(1/2) S2^(1/2), of which Tr (S1 S2)^(1/2) is the sum.

    No root is taken of a product's eigenvalues, where rounding errors of 1e-16 would become 1e-8 in
    every dimension.
    """
    return np.linalg.svd(_root(first.covariance) @ _root(second.covariance), compute_uv=False)


def _root(covariance: np.ndarray) -> np.ndarray:
    """The symmetric root of a covariance."""
    values, vectors = np.linalg.eigh(covariance)
    return (vectors * np.sqrt(values.clip(min=0))) @ vectors.T
