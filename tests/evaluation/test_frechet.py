"""The Fréchet distance is that of its formula, also where covariances are singular; its bias."""

import numpy as np
import pytest
from helpers import few
from hypothesis import given
from hypothesis import strategies as st
from scipy.linalg import sqrtm

from rrcm.evaluation import frechet
from rrcm.evaluation.frechet import Moments, bias, distance


def gaussian(seed, dimensions, rank):
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(dimensions, rank))
    return Moments(mean=rng.normal(size=dimensions), covariance=root @ root.T, count=rank + 1)


pairs = st.tuples(st.integers(0, 2**32 - 1), st.integers(1, 6), st.integers(1, 8))


@few
@given(pairs)
def test_it_is_the_formula_with_the_root_of_a_product(drawn):
    """Of regular covariances: scipy's root of a singular product is not to be trusted."""
    seed, dimensions, _ = drawn
    first, second = (gaussian([seed, i], dimensions, dimensions + 3) for i in (0, 1))

    root = sqrtm(first.covariance @ second.covariance).real
    spread = first.covariance + second.covariance - 2 * root
    expected = ((first.mean - second.mean) ** 2).sum() + np.trace(spread)
    assert distance(first, second) == pytest.approx(expected, rel=1e-7)


@few
@given(pairs)
def test_it_is_a_distance_that_no_rotation_changes(drawn):
    """Also of singular covariances, of any rank."""
    seed, dimensions, rank = drawn
    first, second = (gaussian([seed, i], dimensions, rank) for i in (0, 1))
    turn, _ = np.linalg.qr(np.random.default_rng([seed, 2]).normal(size=(dimensions, dimensions)))
    turned = [
        Moments(mean=turn @ each.mean, covariance=turn @ each.covariance @ turn.T, count=2)
        for each in (first, second)
    ]

    scale = np.trace(first.covariance + second.covariance)
    assert distance(first, first) == pytest.approx(0, abs=1e-12 * scale)
    assert distance(first, second) == pytest.approx(distance(second, first), abs=1e-7 * scale)
    assert distance(*turned) == pytest.approx(distance(first, second), abs=1e-6 * scale)


def test_moments_are_those_of_all_features_whatever_the_batches():
    """Also where the mean is a million times the spread."""
    features = np.random.default_rng(0).normal(size=(57, 5)) + 1e6
    found = frechet.moments(features[i : i + 10] for i in range(0, 57, 10))

    assert found.count == 57
    np.testing.assert_allclose(found.mean, features.mean(axis=0), rtol=1e-14)
    np.testing.assert_allclose(found.covariance, np.cov(features.T), rtol=1e-9, atol=1e-9)


def drawn(rng, count, of):
    """Moments of normal features, drawn from those of ``of``."""
    root = np.linalg.cholesky(of.covariance)
    return frechet.moments([rng.normal(size=(count, len(of.mean))) @ root.T + of.mean])


@pytest.mark.parametrize("alike", [True, False])
def test_the_bias_is_that_of_samples_of_normal_features(alike):
    """To first order: sizes are far above the dimensions. Within four standard errors and 5 %."""
    rng, sizes = np.random.default_rng(0), (600, 900)
    first = gaussian([1, 0], 8, 12)
    second = first if alike else gaussian([1, 1], 8, 12)
    ends = [
        (drawn(rng, n, of) for n, of in zip(sizes, (first, second), strict=True))
        for _ in range(400)
    ]
    found = [(distance(a, b), bias(a, b)) for a, b in ends]

    excess = np.array([d for d, _ in found]) - distance(first, second)
    expected = bias(
        *(
            Moments(mean=m.mean, covariance=m.covariance, count=n)
            for m, n in zip((first, second), sizes, strict=True)
        )
    )
    error = 4 * excess.std() / len(excess) ** 0.5
    assert excess.mean() == pytest.approx(expected, abs=error + 0.05 * expected)
    assert np.mean([b for _, b in found]) == pytest.approx(expected, rel=0.05)


def test_a_dimension_without_spread_has_no_bias():
    flat, more = (
        Moments(mean=np.zeros(d), covariance=np.diag([2.0, 3.0, 0.0][:d]), count=50) for d in (2, 3)
    )

    assert bias(more, more) == pytest.approx(bias(flat, flat))
    assert bias(*[Moments(mean=np.zeros(2), covariance=np.zeros((2, 2)), count=9)] * 2) == 0
