"""What certificates cost, beside what they say."""

import pandas as pd
import pytest
from report_entries import RADII, entry
from workspace import ROOT

from benchmarks.results import put
from pipeline.project.latency import ROUNDS, _measured
from rrcm.analysis import latency
from rrcm.analysis.estimation import statistics
from rrcm.analysis.latency import Cost
from rrcm.config import params as parameters

FOUND = [entry(0), entry(1, method="dds"), entry(2, method="dds", sigma=0.25)]
COSTS = {
    "rrcm-0.5": Cost(seconds=0.002, calls={"denoiser": 0, "classifier": 1}),
    "dds-0.5": Cost(seconds=0.005, calls={"denoiser": 1, "classifier": 1}),
    "dds-0.25": Cost(seconds=0.004, calls={"denoiser": 1, "classifier": 1}),
}


@pytest.fixture(scope="module")
def measured() -> pd.DataFrame:
    return latency.numbers(FOUND, COSTS, draws=1000, radii=RADII, confidence=0.95)


def test_an_image_takes_its_draws_times_the_seconds_of_one(measured: pd.DataFrame):
    assert len(measured) == len(FOUND) * len(RADII)
    for row in measured.to_dict("records"):
        (one,) = (e for e in FOUND if e.name == row["entry"])
        share = statistics.certified_accuracy(one.table, row["radius"], confidence=0.95)
        assert row["seconds_per_image"] == 1000 * COSTS[one.name].seconds
        assert (row["value"], row["low"], row["high"]) == (share.value, share.low, share.high)
        assert row["denoiser_calls"] == (one.method == "dds")


def test_ratios_are_to_the_reference_of_the_same_sigma(measured: pd.DataFrame):
    shown = latency.table(measured, reference="rrcm")

    assert shown["× rrcm"].tolist() == ["1.00", "2.50", "–"]
    assert shown["ms a draw"].tolist() == ["2.000", "5.000", "4.000"]
    assert shown["s an image"].tolist() == ["2.00", "5.00", "4.00"]


def test_the_figure_has_a_point_for_each_entry(measured: pd.DataFrame):
    drawn = latency.figure(measured, radius=0.25, what="certified accuracy")

    assert [axis.get_title() for axis in drawn.axes] == ["σ = 0.25", "σ = 0.5"]
    for axis in drawn.axes:
        part = measured[
            (measured["sigma"] == float(axis.get_title()[4:])) & (measured["radius"] == 0.25)
        ]
        points = [tuple(bar[0].get_xydata()[0]) for bar in axis.containers]
        assert points == [*zip(part["seconds_per_image"], 100 * part["value"], strict=True)]


def test_everybody_has_a_turn_in_each_round():
    """So that what else the machine does falls on all alike."""
    turns = []

    def turn(name: str) -> int:
        turns.append(name)
        return 4

    found = _measured({n: lambda n=n: turn(n) for n in "abc"}, seconds=0.0)

    assert turns == ["a", "b", "c"] * ROUNDS
    assert found.keys() == {*"abc"} and all(seconds > 0 for seconds in found.values())


def test_calls_are_counted_through_what_stands_behind_what():
    whole = parameters.load(ROOT / "presets/digits-diffusion.yaml")
    counted = {name: tuple(whole.calls(name).values()) for name in whole.classifiers()}

    assert counted["tiny-rrcm-s025"] == (0, 1)
    assert counted["tiny-dds-s025"] == counted["tiny-denoised-s025"] == (1, 1)
    assert counted["tiny-densepure1-s025"] == (5, 1)
    assert counted["tiny-densepure5-s025"] == (25, 5)
    assert counted["tiny-diffsmooth15-s025"] == (1, 15)


def test_a_chapter_of_results_takes_the_place_of_its_title():
    page = put("", "One", "# One\n\nold\n")
    page = put(page, "Two", "# Two\n\nkept\n")

    page = put(page, "One", "# One\n\nnew\n")

    assert page == "# One\n\nnew\n\n# Two\n\nkept\n"
