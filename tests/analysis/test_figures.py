"""Figures draw the numbers that they are given."""

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


def test_the_figure_has_a_panel_per_sigma_and_a_staircase_per_method():
    """Drawn up to and including a radius: a step before its point."""
    sigmas = [str(sigma) for sigma in range(4)]

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


def test_many_methods_have_curves_of_their_own_colour_one_legend_and_no_bands():
    band = statistics.band(next(iter(TABLES.values())), confidence=0.95)
    many = {f"method {number}": figures.Curve(band=band) for number in range(10)}

    figure = figures.certified_accuracy({"0.5": many, "1": many}, what="certified accuracy")

    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [*many]
    for axis in figure.axes:
        assert axis.get_legend() is None and not axis.patches
        assert len({line.get_color() for line in axis.get_lines()}) == 10
