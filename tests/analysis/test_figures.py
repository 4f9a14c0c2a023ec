"""Figures draw the numbers that they are given."""

import itertools

import numpy as np
import pandas as pd
import pytest
from builders import certificates

from rrcm.analysis.estimation import statistics
from rrcm.analysis.presentation import figures

TABLES = {
    "one": certificates([0, 0, 0, 1, -1], [0.1, 0.33, 0.5, 0.4, 0.0]),
    "two": certificates([0, 0, 1, 0, 0], [0.7, 0.7, 0.2, 0.1, 0.9]),
}


def curves(*sigmas):
    drawn = {
        name: figures.Curve(band=statistics.band(table, confidence=0.95))
        for name, table in TABLES.items()
    }
    return {sigma: drawn for sigma in sigmas}


def test_radii_that_a_rule_settled_are_marks_and_the_rest_is_dashed():
    """Steps between settled radii are steps of stopping: no line through them looks like data."""
    settled = pd.DataFrame(
        {"radius": [0.0, 0.5], "value": [0.8, 0.2], "low": [0.5, 0.1], "high": [0.9, 0.4]}
    )
    plain = curves("0.5")["0.5"]["one"]
    cut = figures.Curve(band=plain.band, settled=settled)

    (axis,) = figures.certified_accuracy({"0.5": {"cut": cut}}, what="certified accuracy").axes

    dashed, marks, *_ = axis.get_lines()
    assert dashed.is_dashed() and dashed.get_linewidth() < 1
    assert marks.get_marker() == "o" and marks.get_linestyle() == "None"
    assert (marks.get_xdata().tolist(), marks.get_ydata().tolist()) == ([0.0, 0.5], [80.0, 20.0])
    assert [text.get_text() for text in axis.get_legend().get_texts()] == ["cut"]
    assert not axis.patches  # a band around a lower bound would claim an upper end
    whole = figures.certified_accuracy({"0.5": {"whole": plain}}, what="certified accuracy")
    assert not whole.axes[0].get_lines()[0].is_dashed() and whole.axes[0].patches


@pytest.mark.parametrize("count", [1, 4])
def test_the_figure_has_a_panel_per_sigma_and_a_staircase_per_method(count):
    """Drawn up to and including a radius: a step before its point."""
    sigmas = [str(sigma) for sigma in range(count)]

    axes = figures.certified_accuracy(curves(*sigmas), what="certified accuracy").axes

    assert [axis.get_title() for axis in axes] == [f"σ = {sigma}" for sigma in sigmas]
    for axis in axes:
        one, two = axis.get_lines()  # told apart without colour, and the first is bold
        assert one.get_linestyle() != two.get_linestyle()
        assert one.get_linewidth() > two.get_linewidth()
        for (name, table), line in zip(TABLES.items(), axis.get_lines(), strict=True):
            x, y = line.get_xdata(), line.get_ydata()
            assert (line.get_label(), line.get_drawstyle()) == (name, "steps-pre")
            for radius in (0.0, 0.1, 0.33, 0.7, x[-1]):
                if radius <= x[-1]:
                    share = statistics.certified(table, radius).mean()
                    assert y[np.searchsorted(x, radius)] == pytest.approx(100 * share)
            assert y[-1] == 0


def test_bands_lie_around_the_staircase():
    (axis,) = figures.certified_accuracy(curves("0.5"), what="certified accuracy").axes
    bands = [patch.get_data() for patch in axis.patches]

    assert len(bands) == 3 * len(TABLES)  # outlines of the wide band, and the shaded one
    for name, table in enumerate(TABLES.values()):
        band = statistics.band(table, confidence=0.95)
        low, high, shaded = bands[3 * name : 3 * name + 3]
        assert low.values.tolist() == (100 * band["all_low"][1:]).tolist()
        assert high.values.tolist() == (100 * band["all_high"][1:]).tolist()
        assert shaded.values.tolist() == (100 * band["high"][1:]).tolist()
        assert shaded.baseline.tolist() == (100 * band["low"][1:]).tolist()
        assert low.edges.tolist() == shaded.edges.tolist() == band["radius"].tolist()


def test_many_methods_have_curves_of_their_own_colour_one_legend_and_no_bands():
    band = statistics.band(next(iter(TABLES.values())), confidence=0.95)
    many = {f"method {number}": figures.Curve(band=band) for number in range(10)}

    figure = figures.certified_accuracy({"0.5": many, "1": many}, what="certified accuracy")

    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [*many]
    for axis in figure.axes:
        assert axis.get_legend() is None and not axis.patches
        assert len({line.get_color() for line in axis.get_lines()}) == 10


def test_probabilities_have_a_line_for_each_classifier():
    found = {
        (sigma, name): statistics.distribution(table)
        for sigma in ("0.25", "0.5")
        for name, table in TABLES.items()
    }

    (axis,) = figures.probabilities(found).axes

    for ((sigma, name), steps), line in zip(found.items(), axis.get_lines(), strict=True):
        assert line.get_label() == f"σ = {sigma}, {name}"
        assert line.get_ydata().tolist() == [*(100 * steps["share"]), 100]
    dashes = {line.get_label().split(",")[0]: line.get_linestyle() for line in axis.get_lines()}
    assert len({*dashes.values()}) == 2


def test_the_budget_has_a_line_for_each_radius():
    rows = [(100, 0.0, 0.5), (1000, 0.0, 0.7), (100, 0.5, 0.0), (1000, 0.5, 0.2)]
    numbers = pd.DataFrame(rows, columns=["n", "radius", "value"])
    numbers["lower_bound"] = numbers["radius"] > 0

    (axis,) = figures.budget({"a": numbers}).axes

    assert [line.get_label() for line in axis.get_lines()] == ["r = 0", "r = 0.5"]
    assert [line.get_ydata().tolist() for line in axis.get_lines()] == [[50, 70], [0, 20]]
    assert [line.is_dashed() for line in axis.get_lines()] == [False, True]
    assert axis.get_xscale() == "log"


def test_the_envelope_says_that_it_is_no_classifier():
    (axis,) = figures.envelopes({"tiny rrcm": statistics.curve(TABLES["one"])}).axes

    assert "several classifiers, not one" in axis.get_title()
    assert [line.get_label() for line in axis.get_lines()] == ["tiny rrcm"]
    assert axis.get_lines()[0].get_linestyle() == "--"


def test_heat_maps_show_the_classes_with_the_lowest_accuracy():
    """25 classes in an order of their own: the 20 lowest at the least radius, lowest first."""
    values = np.random.default_rng(0).permutation(25) / 100
    rows = [(f"c{k}", k, r, v / (1 + r)) for k, v in enumerate(values) for r in (0.0, 0.5)]
    numbers = pd.DataFrame(rows, columns=["class", "label", "radius", "value"])

    (axis,) = figures.per_class({"a": numbers}).axes
    (image,) = axis.get_images()

    order = np.argsort(values)[:20]
    assert [tick.get_text() for tick in axis.get_yticklabels()] == [f"c{k}" for k in order]
    assert image.get_array()[:, 0].tolist() == pytest.approx(values[order].tolist())
    assert image.get_array()[:, 1].tolist() == pytest.approx((values[order] / 1.5).tolist())
    assert len(axis.texts) == 40


# Machado, Oliveira and Fernandes (2009), severity 1: linear RGB as people see it.
SEEN = {
    "all cones": np.eye(3),
    "no green cones": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
    "no red cones": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
}
XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
NOTICED = 2.3  # distance in CIELAB that is just noticed


def cielab(colour: str, eyes: np.ndarray) -> np.ndarray:
    """L*, a*, b* of ``#rrggbb``, as seen with these eyes."""
    srgb = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    xyz = XYZ @ np.clip(eyes @ linear, 0, 1) / XYZ.sum(axis=1)
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("eyes", SEEN)
@pytest.mark.parametrize(("first", "apart"), [(4, 40.0), (len(figures.COLOURS), 5 * NOTICED)])
def test_colours_are_apart_for_all_eyes(eyes: str, first: int, apart: float):
    seen = [cielab(colour, SEEN[eyes]) for colour in figures.COLOURS[:first]]

    assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2)) > apart
