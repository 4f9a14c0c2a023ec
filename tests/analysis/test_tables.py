"""Tables of a report are the statistics, as numbers and as text."""

import dataclasses
import re

import numpy as np
import pandas as pd
import pytest
from builders import certificates, random_votes, refused
from helpers import few
from hypothesis import given
from hypothesis import strategies as st
from report_entries import RADII, entry
from sampling_runs import CONSTANTS

from rrcm.analysis.estimation import intervals, paired, statistics
from rrcm.analysis.presentation import tables
from rrcm.certification import certify
from rrcm.certification.certify import DOWN, UP, printed
from rrcm.core.errors import DataError

TINY = 1e-9
SHOWN = {"radii": RADII, "confidence": 0.95}


PAIR = [entry(0), entry(1, method="gaussian")]


def test_every_entry_is_a_row():
    made = tables.accuracy_table(PAIR, **SHOWN)

    assert list(made) == ["σ", "method", "r = 0", "r = 0.25", "r = 0.5", "ACR", "abstain %"]
    assert made["method"].tolist() == ["rrcm", "gaussian"]
    for one, row in zip(PAIR, made.to_dict("records"), strict=True):
        shares = statistics.certified_accuracy(one.table, **SHOWN).to_numpy()
        for radius, *share in shares:
            assert row[f"r = {radius:g}"] == f"≥ {tables.percent(*share)}"
        mean = statistics.average_certified_radius(one.table)
        assert row["ACR"] == f"≥ {printed(mean, DOWN, places=3)}"
        assert row["abstain %"] == "≤ " + printed(
            statistics.abstention(one.table), UP, places=1, scale=100
        )
    assert tables.text(PAIR, **SHOWN).startswith("certified accuracy, % [95 % Wilson interval]\n\n")


def ends(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"[+-]?\d+(?:\.\d+)?", text)]


@few
@given(st.integers(0, 2**32 - 1), st.integers(1, 2000), st.floats(0.001, 0.999))
def test_no_table_says_more_than_was_certified(seed, images, confidence):
    """Each number of each table is at most the bound that it stands for, or at least."""
    rng = np.random.default_rng(seed)
    found = [
        dataclasses.replace(
            PAIR[0],
            name=name,
            method=name,
            votes=None,
            alpha=float(10 ** rng.uniform(-12, -1)),
            table=certificates(
                np.where(rng.random(images) < rng.random(), 0, -1).tolist(),
                np.round(rng.exponential(size=images), 6).tolist(),
            ),
        )
        for name in ("a", "b")
    ]
    shown = {"radii": [0.0, 0.5], "confidence": confidence}
    accuracy = tables.accuracy_table(found, **shown).to_dict("records")
    for one, row in zip(found, accuracy, strict=True):
        shares = statistics.certified_accuracy(one.judged, [0.0], confidence=confidence)
        (share,) = shares.itertuples()
        value, low, high = ends(row["r = 0"])
        assert value <= 100 * share.value + TINY and low <= 100 * share.low + TINY
        assert high >= 100 * share.high - TINY
        assert float(row["ACR"]) <= statistics.average_certified_radius(one.judged)
        assert float(row["abstain %"]) >= 100 * statistics.abstention(one.table) - TINY
    for one in found:
        (row,) = tables.failure_table([one]).to_dict("records")
        (_, alpha, expected, some, most, points), key = row.values(), [*row][4]
        assert float(alpha) == one.alpha and float(expected) >= images * one.alpha * (1 - 1e-12)
        assert ends(some)[0] >= 100 * intervals.any_false(images, alpha=one.alpha)
        assert ends(key)[0] < 100 and 100 - ends(key)[0] >= 99.99 * one.alpha
        assert float(points) >= 100 * int(most.replace(",", "")) / images - TINY


def test_radii_beyond_the_first_that_nothing_certifies_are_left_out():
    """They would be zeros, and the table wider; tables with numbers have all of them."""
    most = max(statistics.credited(one.table).max() for one in PAIR)
    beyond = [most + 0.25, most + 0.5, most + 1.0]

    made = tables.accuracy_table(PAIR, radii=[0.0, most, *beyond], confidence=0.95)

    assert [name for name in made if name.startswith("r = ")] == [
        f"r = {radius:g}" for radius in (0.0, most, beyond[0])
    ]
    assert made[f"r = {beyond[0]:g}"].str.startswith("≥ 0.0 [").all()
    everything = tables.accuracy(PAIR, radii=beyond, confidence=0.95)
    assert {*everything["radius"]} >= {*beyond}


@pytest.mark.parametrize(
    ("stop", "draws", "short"),
    [
        ("certified", 200, True),  # more could have enlarged the radius
        ("futile", 200, True),  # given up, and a share beta of these would have had a radius
        ("budget", 0, True),
        ("n", 500, False),
    ],
)
def test_acr_is_a_lower_bound_where_a_radius_was_cut_short(stop, draws, short):
    """And then no difference of two is known."""
    head, rows = random_votes(0, images=4, n=500, n0=20, stop="none", stopping={})
    whole = certify.certify(head, rows, certificates=["cohen"], alpha=0.001)
    other = dataclasses.replace(PAIR[0], votes=(head, [*rows]), table=whole.assign(radius=0.1))
    looks = [look for look in rows[1].looks if look[0] <= draws]
    rows[1] = dataclasses.replace(rows[1], looks=looks, stop=stop)
    made = certify.certify(head, rows, certificates=["cohen"], alpha=0.001)
    one = dataclasses.replace(PAIR[0], votes=(head, rows), table=made)

    (row,) = tables.accuracy_table([one], **SHOWN).to_dict("records")

    assert one.cut_short == short
    assert row["ACR"].startswith("≥ ") == short
    for pair in ((one, other), (other, one)):
        assert (tables.acr_difference(*pair, confidence=0.95) == "") == short
    assert dataclasses.replace(one, votes=None).cut_short == short  # certificates say it, too


def test_certificates_alone_are_lower_bounds_if_a_rule_stopped_all_at_the_same_draws():
    """How many were asked for is then unknown: the rule may have ended at its first look."""
    full = certificates([0] * 20, [0.335] * 20)
    one, other = (
        dataclasses.replace(PAIR[0], votes=None, table=table)
        for table in (full.assign(stop="certified"), full)
    )

    assert one.cut_short and one.undecided([0.0, 0.25]) == [True, True]
    assert [tables.acr(one), tables.acr(other)] == ["≥ 0.335", "0.335"]
    assert tables.acr_difference(one, other, confidence=0.95) == ""


def test_where_stops_are_not_recorded_a_difference_of_acr_is_on_a_condition():
    known = dataclasses.replace(PAIR[0], votes=None, table=certificates([0] * 4, [0.5] * 4))
    unknown = dataclasses.replace(known, table=known.table.drop(columns="stop"))

    assert tables.acr_difference(known, known, confidence=0.95) == "+0.000 [?, ?]"
    for pair in ((known, unknown), (unknown, known)):
        said = tables.acr_difference(*pair, confidence=0.95)
        assert said.endswith("] if no drawing stopped early")


@pytest.mark.parametrize("stop", ["none", "grid", "anytime"])
@pytest.mark.parametrize(("certificate", "alpha"), [("cohen", 0.001), ("two_class", 0.01)])
def test_what_stopping_did_not_decide_is_a_lower_bound(stop, alpha, certificate):
    """At radii of the table, for the certificate and alpha that the rule was laid out for.

    A rule that divides alpha has lower bounds there, too: `none` may certify more.
    """
    drawn = random_votes(0, images=15, n=500, n0=20, stop=stop, stopping=CONSTANTS[stop])
    made = certify.certify(*drawn, certificates=[certificate], alpha=alpha)
    one = dataclasses.replace(
        PAIR[0], votes=drawn, table=made, certificate=certificate, alpha=alpha
    )
    asked = (certificate, alpha) == ("cohen", 0.001)
    decided = {"none": [0, 0.25, 0.3], "grid": [0, 0.25], "anytime": []}

    assert one.cut_short == (stop != "none")
    for radius in (0, 0.25, 0.3):
        known = stop == "none" or (asked and radius in decided[stop])
        assert one.undecided([radius]) == [not known]
        assert one.lower_bounds([radius])[0] == (not known or stop != "none")
    (row,) = tables.accuracy_table([one], radii=[0.25], confidence=0.95).to_dict("records")
    assert row["r = 0.25"].startswith("≥ ") == one.lower_bounds([0.25])[0]
    assert row["abstain %"].startswith("≤ ") == one.lower_bounds([0])[0]
    (number,) = tables.accuracy([one], radii=[0.25], confidence=0.95).to_dict("records")
    assert number["lower_bound"] == one.lower_bounds([0.25])[0]


def test_without_labels_nothing_is_called_accuracy():
    """Neither is it reported as 0: it is the share with an answer."""
    blind = dataclasses.replace(PAIR[0], table=PAIR[0].table.assign(label=-1, correct=0))

    (row,) = tables.accuracy_table([blind], **SHOWN).to_dict("records")

    answered = statistics.answered(blind.table)
    shares = statistics.certified_accuracy(answered, [0.25], confidence=0.95)
    (_, *share) = shares.iloc[0]
    assert row["answered, r = 0.25"] == f"≥ {tables.percent(*share)}" and share[0] > 0
    assert float(row["mean radius"].removeprefix("≥ ")) == pytest.approx(
        blind.table["radius"].mean(), abs=1e-3
    )
    assert not {"ACR", "r = 0"} & {*row}
    assert "share (no labels)" in tables.title([blind], confidence=0.95)
    with refused(DataError, "has no labels", "report them apart"):
        tables.accuracy_table([PAIR[1], blind], **SHOWN)


def test_numbers_are_a_row_for_each_entry_or_pair_and_radius():
    made, compared = tables.accuracy(PAIR, **SHOWN), tables.comparisons(PAIR, **SHOWN)

    assert made["entry"].tolist() == ["rrcm-0.5"] * 3 + ["gaussian-0.5"] * 3
    for one in PAIR:
        part = made[made["entry"] == one.name].reset_index(drop=True)
        shares = statistics.certified_accuracy(one.table, **SHOWN)
        pd.testing.assert_frame_equal(part[[*shares]], shares)
        assert {*part["sigma"]} == {0.5} and {*part["images"]} == {15}
    want = paired.compare(*(e.table for e in PAIR), **SHOWN)
    pd.testing.assert_frame_equal(compared[[*want]], want)
    text = tables.comparison_table(PAIR, compared)
    shown = want[want["only_first"] + want["only_second"] > 0]
    assert text["r"].tolist() == [f"{r:g}" for r in shown["radius"]] != []
    assert text["p, Holm"].tolist() == [f"{p:.2g}" for p in shown["p_holm"]]
    assert {*zip(text["A"], text["B"], strict=True)} == {("rrcm", "gaussian")}


def test_of_many_entries_the_first_is_compared_with_each():
    found = [entry(seed, method=f"method {seed}") for seed in range(5)]
    for entries, pairs in ((4, 6), (5, 4)):
        compared = tables.comparisons(found[:entries], radii=[0.0], confidence=0.95)

        assert len(compared) == pairs
        assert {*compared["first"]} == {found[0].name} or entries == 4


def test_what_cannot_be_compared_is_not():
    """Other sigmas and models are other questions, other images have no pairs."""
    for second in (
        entry(1, method="gaussian", sigma=0.25),
        dataclasses.replace(PAIR[1], model="b"),
        dataclasses.replace(PAIR[1], table=PAIR[1].table.iloc[::-1]),
    ):
        found = [PAIR[0], second]

        assert tables.comparisons(found, **SHOWN).empty
        assert tables.comparison_table(found, tables.comparisons(found, **SHOWN)).empty
        assert len(tables.radius_table(found, confidence=0.95)) == 2


def test_what_may_be_false_is_said_once_for_each_alpha():
    """Golden: 39.4 %, 4 images, .8 points for 500 images at .001."""
    many = dataclasses.replace(PAIR[0], table=certificates([0] * 500, [1.0] * 500))
    unknown = dataclasses.replace(PAIR[0], alpha=None)
    some = many.table.assign(label=np.where(np.arange(500) < 40, 0, -1))  # accuracy is of 40

    (row,) = tables.failure_table([many, many, unknown]).to_dict("records")

    assert [*row.values()] == ["500", "0.001", "0.5", "40 %", "4", "0.8"]
    assert tables.failure_table([unknown]).empty
    partly = tables.failure_table([dataclasses.replace(many, table=some)])
    assert partly["images"].tolist() == ["40"]


def test_a_row_of_fewer_images_says_so():
    fewer = dataclasses.replace(PAIR[1], table=PAIR[1].table.iloc[:9])

    made = tables.accuracy_table([PAIR[0], fewer], **SHOWN)
    assert made["images"].tolist() == ["15", "9"]
    assert "images" in tables.text([PAIR[0], fewer], **SHOWN)
