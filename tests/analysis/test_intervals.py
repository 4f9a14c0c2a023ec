"""Intervals cover what they are said to cover, and are the published numbers."""

import math

import numpy as np
import pytest
from helpers import few
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.stats import binom, bootstrap

from rrcm.analysis.estimation import intervals
from rrcm.analysis.estimation.intervals import mean, most_false, paired_difference

counts = st.integers(0, 30)


def newcombe(both, first, second, neither, confidence=0.95):
    return paired_difference(
        both=both, only_first=first, only_second=second, neither=neither, confidence=confidence
    )


@pytest.mark.parametrize("images", [20, 200])
def test_the_band_holds_at_all_radii_together(images):
    """Simulated: uniform radii leave the band in at most 5 % of repeats, and 4 standard errors."""
    rng, repeats = np.random.default_rng(0), 2000
    apart = intervals.dkw(images, confidence=0.95)
    radii = np.sort(rng.random((repeats, images)), axis=1)
    above = np.arange(images, 0, -1) / images  # certified share at each radius, and just beyond it
    worst = np.maximum(abs(above - (1 - radii)), abs(above - 1 / images - (1 - radii))).max(axis=1)

    missed = (worst > apart).mean()

    assert 0.01 < missed < 0.05 + 4 * math.sqrt(0.05 * 0.95 / repeats)


@pytest.mark.parametrize(
    ("table", "low", "high"),
    [
        ((36, 12, 2, 0), 0.0569, 0.3404),  # Newcombe (1998), Stat. Med. 17:2635, table III
        ((1, 1, 7, 12), -0.507, -0.026),  # Fagerland, Lydersen and Laake (2014), airways
        ((59, 6, 16, 80), -0.1186, -0.0046),  # the same, and R's contingencytables: cavo_2012
    ],
)
def test_differences_of_pairs_are_published_numbers(table, low, high):
    digits = 5e-4 if abs(low) == 0.507 else 5e-5

    found = newcombe(*table)

    assert (found.low, found.high) == pytest.approx((low, high), abs=digits)


@few
@given(counts, counts, counts, counts.filter(bool))
def test_differences_turn_round_with_the_pair_and_contain_the_value(both, first, second, neither):
    found, swapped = (newcombe(both, *pair, neither) for pair in ((first, second), (second, first)))
    images = both + first + second + neither

    assert found.value == pytest.approx((first - second) / images)
    assert -1 - 1e-12 <= found.low <= found.value <= found.high <= 1 + 1e-12
    assert (swapped.low, swapped.high) == pytest.approx((-found.high, -found.low))


def test_differences_of_pairs_cover_the_truth():
    """Simulated at 100 images: 95 % intervals hold in 93 % of repeats or more."""
    rng = np.random.default_rng(0)
    cells = np.array([0.5, 0.15, 0.05, 0.3])
    found = [newcombe(*map(int, rng.multinomial(100, cells))) for _ in range(1000)]

    held = np.mean([f.low <= cells[1] - cells[2] <= f.high for f in found])

    assert 0.93 <= held <= 0.99


@few
@given(st.lists(st.integers(0, 3_000_000).map(lambda i: i / 1e6), min_size=2, max_size=40))
@example([0.7] * 9 + [0.700001])
def test_an_interval_of_a_mean_lies_within_the_values(values):
    values = np.array(values)

    found = mean(values, confidence=0.95)

    assert found.value == values.mean()
    if len({*values}) == 1:  # which says nothing about others
        assert np.isnan([found.low, found.high]).all()
        return
    slack = 1e-9 * values.max()
    assert values.min() - slack <= found.low <= found.high <= values.max() + slack


def test_the_interval_of_a_mean_covers_it_and_shrinks_with_the_images():
    """Simulated on radii that are mostly 0: an exponential half of the time."""
    rng = np.random.default_rng(0)
    rows = rng.exponential(size=(200, 100)) * (rng.random((200, 100)) < 0.5)
    found = [mean(row, confidence=0.95) for row in rows]

    held = np.mean([f.low <= 0.5 <= f.high for f in found])
    width = np.mean([f.high - f.low for f in found])

    assert 0.89 <= held <= 0.99
    # The standard deviation of one value is sqrt(3)/2; normal theory gives 2 x 1.96 of it over 10.
    assert width == pytest.approx(2 * 1.96 * math.sqrt(3) / 2 / 10, rel=0.1)


RADII = {  # values of N images
    "skewed": lambda rng, n: rng.exponential(size=n),
    "rounded": lambda rng, n: rng.exponential(size=n).round(1) * (rng.random(n) < 0.3),
    "one of all": lambda rng, n: np.eye(1, n)[0],
}


def reference(values: np.ndarray, **how) -> np.ndarray:
    """The BCa interval of SciPy, whose jackknife is quadratic."""
    how = {"confidence_level": 0.95, "method": "BCa", "n_resamples": intervals.RESAMPLES} | how
    return np.array(bootstrap((values,), np.mean, **how).confidence_interval)


@pytest.mark.parametrize("drawn", RADII.values(), ids=RADII)
@pytest.mark.parametrize(("images", "confidence"), [(60, 0.8), (500, 0.95)])
def test_the_bootstrap_is_that_of_scipy_of_one_seed(images, confidence, drawn):
    values = drawn(np.random.default_rng(images), images)

    found = mean(values, confidence=confidence)

    expected = reference(values, confidence_level=confidence, rng=np.random.default_rng(0))
    np.testing.assert_allclose([found.low, found.high], expected, rtol=1e-12)


@pytest.mark.parametrize("drawn", RADII.values(), ids=RADII)
def test_many_images_have_the_interval_of_scipy_with_other_resamples(drawn, monkeypatch):
    """Ends move by some 0.03 standard errors from one 9,999 resamples to the next."""
    values = drawn(np.random.default_rng(1), 3000)
    monkeypatch.setattr(intervals, "MANY", 100)

    found = mean(values, confidence=0.95)

    expected = reference(values, batch=300, rng=np.random.default_rng(1))
    apart = 0.15 * values.std() / math.sqrt(len(values)) + (len({*values}) == 2) / len(values)
    np.testing.assert_allclose([found.low, found.high], expected, atol=apart)
    assert 0 < intervals._resampled_cells(values).std() / (values.std() / math.sqrt(3000)) < 1.03


@few
@given(st.integers(1, 2000), st.floats(1e-6, 0.1), st.floats(1e-4, 0.2))
def test_the_most_false_is_the_least_number_that_is_enough(images, alpha, rho):
    most = most_false(images, alpha=alpha, rho=rho)

    assert binom.sf(most, images, alpha) <= rho * (1 + 1e-9)
    assert most == 0 or binom.sf(most - 1, images, alpha) > rho * (1 - 1e-9)
    assert intervals.any_false(images, alpha=alpha) == pytest.approx(1 - (1 - alpha) ** images)
