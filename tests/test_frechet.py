"""The Fréchet distance is that of its formula, also where covariances are singular."""

import numpy as np
import pytest
from helpers import few
from hypothesis import given
from hypothesis import strategies as st
from scipy.linalg import sqrtm

from rrcm import frechet
from rrcm.frechet import Moments, distance


def gaussian(seed, dimensions, rank):
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(dimensions, rank))
    return Moments(mean=rng.normal(size=dimensions), covariance=root @ root.T, count=rank + 1)


pairs = st.tuples(st.integers(0, 2**32 - 1), st.integers(1, 6), st.integers(1, 8))


@few
@given(pairs)
def test_it_is_the_closed_form_for_gaussians_with_independent_dimensions(drawn):
    rng = np.random.default_rng(drawn[0])
    mean, spread = rng.normal(size=(2, drawn[1])), rng.exponential(size=(2, drawn[1]))
    first, second = (
        Moments(mean=m, covariance=np.diag(s**2), count=2)
        for m, s in zip(mean, spread, strict=True)
    )

    expected = ((mean[0] - mean[1]) ** 2).sum() + ((spread[0] - spread[1]) ** 2).sum()
    assert distance(first, second) == pytest.approx(expected, abs=1e-12)


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
    assert distance(first, second) >= 0


def test_moments_are_those_of_all_features_whatever_the_batches():
    """Also where the mean is a million times the spread."""
    features = np.random.default_rng(0).normal(size=(57, 5)) + 1e6
    found = frechet.moments(features[i : i + 10] for i in range(0, 57, 10))

    assert found.count == 57
    np.testing.assert_allclose(found.mean, features.mean(axis=0), rtol=1e-14)
    np.testing.assert_allclose(found.covariance, np.cov(features.T), rtol=1e-9, atol=1e-9)
