"""Comparisons in pairs are their definitions, and of the same images only."""

import math

import numpy as np
import pytest
from builders import certificates, refused
from helpers import few
from hypothesis import given
from hypothesis import strategies as st

from rrcm.analysis.estimation import intervals, paired, statistics
from rrcm.core.errors import DataError

COUNTS = st.integers(0, 30)


def discordant(only_first, only_second, both=7, neither=5):
    """Two tables: images that the first, the second, both or none of them certify."""
    sides = (
        [0] * only_first + [1] * only_second + [0] * both + [1] * neither,
        [1] * only_first + [0] * only_second + [0] * both + [1] * neither,
    )
    return [certificates(predict, [1.0] * len(predict)) for predict in sides]


def compared(first, second, *radii):
    table = paired.compare(first, second, radii=list(radii) or [0.5], confidence=0.95)
    return [*table.itertuples()]


@few
@given(COUNTS, COUNTS, st.integers(0, 9), st.integers(1, 9))
def test_mcnemar_is_a_fair_coin_tossed_over_the_disagreements(b, c, both, neither):
    """p = min(1, 2 P[Binomial(b + c, 1/2) <= min(b, c)]), whatever the two agree on."""
    tail = sum(math.comb(b + c, i) for i in range(min(b, c) + 1)) / 2 ** (b + c)

    first, second = discordant(b, c, both, neither)

    (test,), (swapped,) = compared(first, second), compared(second, first)

    assert test.p == swapped.p == test.p_holm == pytest.approx(min(1, 2 * tail))
    assert (swapped.only_first, swapped.only_second) == (c, b)
    assert (test.both, test.neither) == (both, neither)
    apart = intervals.paired_difference(
        both=both, only_first=b, only_second=c, neither=neither, confidence=0.95
    )
    assert (test.difference, test.low, test.high) == (apart.value, apart.low, apart.high)


def test_each_radius_is_a_comparison():
    first, second = certificates([0, 0], [0.2, 0.9]), certificates([0, 0], [0.9, 0.9])

    found = compared(first, second, 0.1, 0.5, 2.0)

    assert [c.radius for c in found] == [0.1, 0.5, 2.0]
    assert [c.only_second for c in found] == [0, 1, 0]
    assert [(c.both, c.neither) for c in found] == [(2, 0), (1, 0), (0, 2)]


@few
@given(st.lists(st.floats(0, 1), min_size=8, max_size=40), st.integers(0, 99))
def test_holm_corrects_for_the_radii_at_which_there_is_a_test(radii, seed):
    """Ordered p times how many are left, never falling; of those with any disagreement."""
    rng = np.random.default_rng(seed)
    first = certificates([0] * len(radii), radii)
    second = certificates(rng.integers(0, 2, len(radii)).tolist(), radii)
    found = compared(first, second, 0.0, 0.3, 0.6, 0.9, 2.0)

    tests = sorted((c for c in found if c.only_first + c.only_second), key=lambda c: c.p)
    running = 0.0
    for place, c in enumerate(tests):
        running = min(1.0, max(running, c.p * (len(tests) - place)))
        assert c.p_holm == pytest.approx(running)
    assert all(c.p_holm == c.p == 1 for c in found if not c.only_first + c.only_second)


def test_the_difference_of_acr_is_taken_image_by_image():
    """A gain of about 0.1 on every image is known well, however different the images are."""
    rng = np.random.default_rng(0)
    radii, gains = rng.exponential(size=50), rng.uniform(0.099, 0.101, size=50)
    first = certificates([0] * 50, (radii + gains).tolist())
    second = certificates([0] * 50, radii.tolist())

    found = paired.acr_difference(first, second, confidence=0.95)

    assert (found.low, found.value, found.high) == pytest.approx((0.1, 0.1, 0.1), abs=0.001)
    alone = intervals.mean(statistics.credited(first), confidence=0.95)
    assert alone.high - alone.low > 0.3


@few
@given(st.lists(st.sampled_from([-1, 0, 1]), min_size=1, max_size=20), st.integers(0, 99))
def test_agreement_is_the_share_of_equal_answers(predict, seed):
    other = np.random.default_rng(seed).choice([-1, 0, 1], len(predict)).tolist()
    tables = [certificates(p, [0.1] * len(p)) for p in (predict, other)]

    same = sum(a == b for a, b in zip(predict, other, strict=True))

    assert paired.agreement(*tables) == pytest.approx(same / len(predict))


def test_only_tables_of_the_same_images_are_compared():
    table = certificates([0, 1, 0], [1.0, 1.0, 1.0])
    others = (
        *(table.iloc[:2], table.iloc[::-1], table.assign(idx=[0, 1, 3])),
        table.assign(label=1),
    )
    for other in others:
        assert not paired.same_images(table, other)
        with refused(DataError, "the same images", "`idx`"):
            compared(table, other)
        with refused(DataError, "the same images"):
            paired.acr_difference(table, other, confidence=0.95)
        with refused(DataError, "the same images"):
            paired.agreement(table, other)
