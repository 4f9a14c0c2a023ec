"""Statistics are their definitions."""

import math

import numpy as np
import pytest
from builders import certificates, many
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ndtr

from rrcm.analysis.estimation import intervals, statistics

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


@pytest.mark.parametrize("confidence", [0.9, 0.95])
def test_the_bands_are_those_of_every_radius(confidence):
    """Wilson's at each step, and a constant to either side that is cut off at 0 and 1."""
    table = certificates([0, 0, 0, 1, -1], [0.1, 0.5, 0.5, 0.4, 0.0])

    band = statistics.band(table, confidence=confidence)

    assert band["radius"].tolist() == [0.0, 0.1, 0.5]
    for step in band.to_dict("records"):
        share = statistics.certified_accuracy(table, step["radius"], confidence=confidence)
        assert (step["low"], step["high"]) == pytest.approx((share.low, share.high))
    apart = intervals.dkw(5, confidence=confidence)
    assert band["all_low"].tolist() == pytest.approx([max(0, v - apart) for v in (0.6, 0.6, 0.4)])
    assert band["all_high"].tolist() == pytest.approx([min(1, v + apart) for v in (0.6, 0.6, 0.4)])


@many
@given(tables, st.floats(0.5, 0.999))
def test_the_distribution_of_p_A_is_certified_accuracy_in_other_units(table, p):
    """With R = sigma Phi^-1(p_A), at most p means not certified beyond sigma Phi^-1(p)."""
    sigma = 0.5
    table = table.assign(p_A=ndtr(table["radius"] / sigma))
    steps = statistics.distribution(table)
    place = np.searchsorted(steps["p_A"], p, side="right") - 1

    beyond = ((table["correct"] == 1) & (table["p_A"] > p)).mean()

    assert steps["share"].iloc[place] == pytest.approx(1 - beyond)
    assert steps["p_A"].iloc[0] == 0.5 and steps["share"].is_monotonic_increasing


@many
@given(tables, radii)
def test_without_labels_any_answer_counts_and_no_abstention(table, radius):
    hits = ((table["predict"] != -1) & (table["radius"] >= radius)).sum()
    unlabelled = table.assign(label=-1, correct=0)

    answered = statistics.answered(unlabelled)
    share = statistics.certified_accuracy(answered, radius, confidence=0.95)

    assert share == intervals.wilson(int(hits), len(table), confidence=0.95)
    assert statistics.certified_accuracy(unlabelled, radius, confidence=0.95).value == 0


@many
@given(st.lists(st.tuples(st.integers(0, 3), answers), min_size=1, max_size=40), radii)
def test_classes_add_up_to_all_images(rows, radius):
    labels, found = zip(*rows, strict=True)
    table = certificates(*map(list, zip(*found, strict=True))).assign(label=labels)

    parts = statistics.per_class(table, radii=[radius], confidence=0.95)

    assert parts["label"].tolist() == sorted({*labels})
    assert parts["images"].sum() == len(table)
    assert (parts["value"] * parts["images"]).sum() / len(table) == pytest.approx(
        accuracy(table, radius)
    )


def test_a_class_has_an_interval_of_its_own():
    table = certificates([0, 0, 1, 1], [1.0, 0.2, 1.0, 1.0]).assign(label=[0, 0, 1, 1])

    parts = statistics.per_class(table.assign(correct=1), radii=[0.0, 0.5], confidence=0.95)

    assert parts[["label", "radius", "value"]].to_numpy().tolist() == [
        *([0, 0.0, 1.0], [0, 0.5, 0.5], [1, 0.0, 1.0], [1, 0.5, 1.0])
    ]
    assert tuple(parts.loc[1, ["low", "high"]]) == pytest.approx(wilson(1, 2))


@many
@given(st.lists(tables, min_size=1, max_size=4), radii)
def test_the_envelope_is_the_best_of_its_curves_at_every_radius(found, radius):
    best = statistics.envelope([statistics.curve(table) for table in found])
    right = np.searchsorted(best["radius"], radius)
    value = best["certified_accuracy"].iloc[right] if right < len(best) else 0

    assert value == pytest.approx(max(accuracy(table, radius) for table in found))
