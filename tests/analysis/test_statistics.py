"""Statistics are their definitions."""

import math

import numpy as np
import pytest
from builders import certificates
from helpers import few
from hypothesis import given
from hypothesis import strategies as st

from rrcm.analysis.estimation import intervals, statistics

answers = st.tuples(st.sampled_from([-1, 0, 1]), st.integers(0, 8).map(lambda i: i / 4))
tables = st.lists(answers, min_size=1, max_size=40).map(
    lambda rows: certificates(*map(list, zip(*rows, strict=True)))
)
radii = st.floats(0, 3) | st.sampled_from([0.25, 0.5, 1.0, 2.0])


def share(table, radius, confidence=0.95):
    (row,) = statistics.certified_accuracy(table, [radius], confidence=confidence).itertuples()
    return row


def accuracy(table, radius):
    return share(table, radius).value


def wilson(k, m, z=1.959963984540054):
    """Certification.md, appendix A; z is the normal quantile of 97.5 %."""
    p, d = k / m, 1 + z * z / m
    centre = (p + z * z / 2 / m) / d
    half = z * math.sqrt(p * (1 - p) / m + z * z / 4 / m / m) / d
    return centre - half, centre + half


@few
@given(tables, radii)
def test_certified_accuracy_is_the_share_of_right_answers_that_reach_the_radius(table, radius):
    hits = sum(
        predict == 0 and reached >= radius
        for predict, reached in zip(table["predict"], table["radius"], strict=True)
    )

    found = share(table, radius)

    assert found.value == pytest.approx(hits / len(table))
    assert (found.low, found.high) == pytest.approx(wilson(hits, len(table)), abs=1e-12)
    assert statistics.certified(table, radius).sum() == hits
    assert statistics.abstention(table) == pytest.approx((table["predict"] == -1).mean())


@few
@given(tables)
def test_average_certified_radius_is_its_definition(table):
    """Zhai et al. (2020): the mean over images of radius x [right], so errors count as zero."""
    expected = sum(table.loc[table["predict"] == 0, "radius"]) / len(table)

    assert statistics.average_certified_radius(table) == pytest.approx(expected)


@few
@given(tables, radii)
def test_the_curve_is_certified_accuracy_at_any_radius(table, radius):
    """Between its steps, the value at the next one to the right; beyond the last, nothing."""
    curve = statistics.curve(table)
    right = np.searchsorted(curve["radius"], radius)  # the first step at the radius or beyond
    value = curve["certified_accuracy"].iloc[right] if right < len(curve) else 0

    assert value == pytest.approx(accuracy(table, radius))


@pytest.mark.parametrize("confidence", [0.9, 0.95])
def test_the_bands_are_those_of_every_radius(confidence):
    """Wilson's at each step, and a constant to either side that is cut off at 0 and 1."""
    table = certificates([0, 0, 0, 1, -1], [0.1, 0.5, 0.5, 0.4, 0.0])

    band = statistics.band(table, confidence=confidence)

    assert band["radius"].tolist() == [0.0, 0.1, 0.5]
    for step in band.to_dict("records"):
        one = share(table, step["radius"], confidence)
        assert (step["low"], step["high"]) == pytest.approx((one.low, one.high))
    apart = intervals.dkw(5, confidence=confidence)
    assert band["all_low"].tolist() == pytest.approx([max(0, v - apart) for v in (0.6, 0.6, 0.4)])
    assert band["all_high"].tolist() == pytest.approx([min(1, v + apart) for v in (0.6, 0.6, 0.4)])


@few
@given(tables, radii)
def test_without_labels_any_answer_counts_and_no_abstention(table, radius):
    hits = ((table["predict"] != -1) & (table["radius"] >= radius)).sum()
    unlabelled = table.assign(label=-1, correct=0)

    assert accuracy(statistics.answered(unlabelled), radius) == pytest.approx(hits / len(table))
    assert accuracy(unlabelled, radius) == 0
