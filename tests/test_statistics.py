"""Statistics are their definitions."""

import math

import numpy as np
import pytest
from builders import certificates, many, refused
from hypothesis import given
from hypothesis import strategies as st

from rrcm import statistics
from rrcm.errors import DataError

answers = st.tuples(st.sampled_from([-1, 0, 1]), st.integers(0, 8).map(lambda i: i / 4))
tables = st.lists(answers, min_size=1, max_size=40).map(
    lambda rows: certificates(*map(list, zip(*rows, strict=True)))
)
radii = st.floats(0, 3) | st.sampled_from([0.25, 0.5, 1.0, 2.0])


def accuracy(table, radius):
    return statistics.certified_accuracy(table, radius, confidence=0.95).value


def wilson(k, m, z=1.959963984540054):
    """Certification.md, appendix A; z is the normal quantile of 97.5 %."""
    p, d = k / m, 1 + z * z / m
    centre = (p + z * z / 2 / m) / d
    half = z * math.sqrt(p * (1 - p) / m + z * z / 4 / m / m) / d
    return centre - half, centre + half


@many
@given(tables, radii)
def test_certified_accuracy_is_the_share_of_right_answers_that_reach_the_radius(table, radius):
    hits = sum(
        predict == 0 and reached >= radius
        for predict, reached in zip(table["predict"], table["radius"], strict=True)
    )

    share = statistics.certified_accuracy(table, radius, confidence=0.95)

    assert share.value == pytest.approx(hits / len(table))
    assert (share.low, share.high) == pytest.approx(wilson(hits, len(table)), abs=1e-12)
    assert statistics.certified(table, radius).sum() == hits


@many
@given(tables, radii, radii)
def test_certified_accuracy_falls_with_the_radius(table, a, b):
    assert accuracy(table, min(a, b)) >= accuracy(table, max(a, b))


@pytest.mark.parametrize(("k", "half"), [(50, 2.6), (150, 4.0), (250, 4.4), (350, 4.0), (400, 3.5)])
def test_intervals_of_500_images_are_as_wide_as_the_formula_says(k, half):
    """Golden: half-widths in percent points, Wilson's formula at m = 500 worked by hand."""
    table = certificates([0] * k + [1] * (500 - k), [1.0] * 500)

    share = statistics.certified_accuracy(table, 0.5, confidence=0.95)

    assert 50 * (share.high - share.low) == pytest.approx(half, abs=0.05)


def test_more_confidence_is_a_wider_interval():
    table = certificates([0, 0, 0, 1], [1.0] * 4)
    narrow, wide = (statistics.certified_accuracy(table, 0, confidence=c) for c in (0.9, 0.99))

    assert wide.low < narrow.low < narrow.value < narrow.high < wide.high


def test_abstaining_is_an_error_at_every_radius():
    table = certificates([0, -1, -1, 1], [0.5, 0.0, 0.0, 2.0])

    assert accuracy(table, 0.0) == 1 / 4
    assert accuracy(table, 0.5) == 1 / 4  # up to and including its radius
    assert accuracy(table, 0.500001) == 0
    assert statistics.abstention(table) == 1 / 2


@many
@given(tables)
def test_average_certified_radius_is_its_definition(table):
    """Zhai et al. (2020): the mean over images of radius x [right], so errors count as zero."""
    expected = sum(table.loc[table["predict"] == 0, "radius"]) / len(table)

    assert statistics.average_certified_radius(table) == pytest.approx(expected)


@many
@given(tables, radii)
def test_the_curve_is_certified_accuracy_at_any_radius(table, radius):
    """Between its steps, the value at the next one to the right; beyond the last, nothing."""
    curve = statistics.curve(table)
    right = np.searchsorted(curve["radius"], radius)  # the first step at the radius or beyond
    value = curve["certified_accuracy"].iloc[right] if right < len(curve) else 0

    assert value == pytest.approx(accuracy(table, radius))


@many
@given(tables)
def test_the_curve_is_a_staircase_from_radius_zero(table):
    curve = statistics.curve(table)

    assert list(curve) == ["radius", "certified_accuracy"]
    assert curve["radius"].iloc[0] == 0
    assert curve["radius"].is_monotonic_increasing and curve["radius"].is_unique
    assert curve["certified_accuracy"].is_monotonic_decreasing
    assert len(curve) <= 1 + len(table)


def discordant(only_first, only_second, both=7, neither=5):
    """Two tables: images that the first, the second, both or none of them certify."""
    sides = (
        [0] * only_first + [1] * only_second + [0] * both + [1] * neither,
        [1] * only_first + [0] * only_second + [0] * both + [1] * neither,
    )
    return [certificates(predict, [1.0] * len(predict)) for predict in sides]


@pytest.mark.parametrize(
    ("b", "c", "p"), [(30, 15, 0.036), (20, 10, 0.099), (12, 4, 0.077), (25, 10, 0.017)]
)
def test_mcnemar_gives_known_values_whichever_is_first(b, c, p):
    """Golden: min(1, 2 P(Bin(b + c, 1/2) <= min(b, c))), worked apart from this code."""
    first, second = discordant(b, c)

    test = statistics.mcnemar(first, second, 0.5)
    swapped = statistics.mcnemar(second, first, 0.5)

    assert (test.only_first, test.only_second) == (b, c)
    assert (swapped.only_first, swapped.only_second) == (c, b)
    assert test.p == swapped.p == pytest.approx(p, abs=5e-4)


@many
@given(st.integers(0, 30), st.integers(0, 30), st.integers(0, 9), st.integers(0, 9))
def test_mcnemar_is_a_fair_coin_tossed_over_the_disagreements(b, c, both, neither):
    """p = min(1, 2 P[Binomial(b + c, 1/2) <= min(b, c)]), whatever the two agree on."""
    tail = sum(math.comb(b + c, i) for i in range(min(b, c) + 1)) / 2 ** (b + c)

    test = statistics.mcnemar(*discordant(b, c, both, neither), 0.5)

    assert test.p == pytest.approx(min(1, 2 * tail))


def test_mcnemar_looks_at_one_radius():
    first, second = certificates([0, 0], [0.2, 0.9]), certificates([0, 0], [0.9, 0.9])

    assert statistics.mcnemar(first, second, 0.1).only_second == 0
    assert statistics.mcnemar(first, second, 0.5).only_second == 1


def test_only_tables_of_the_same_images_are_compared():
    table = certificates([0, 1, 0], [1.0, 1.0, 1.0])
    for other in (table.iloc[:2], table.iloc[::-1], table.assign(idx=[0, 1, 3])):
        with refused(DataError, "the same images", "`idx`"):
            statistics.mcnemar(table, other, 0.5)
