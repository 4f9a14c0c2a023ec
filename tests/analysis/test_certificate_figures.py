"""The figures of docs/certificates.md show the numbers that were computed, and claim no more."""

import numpy as np
import pytest

from benchmarks import reach
from rrcm.certification.answers import Answer
from rrcm.certification.votes.counts import ABSTAIN

X = np.random.default_rng(1).random((1, 12, 12), dtype=np.float32)
OTHER = np.random.default_rng(2).random((1, 12, 12), dtype=np.float32)


def answer(label: int, radius: float) -> Answer:
    numbers = {"p_A": 0.7, "n_A": 80, "n": 100, "draws": 110, "alpha": 0.001, "idx": 0, "seed": 0}
    name = "" if label == ABSTAIN else f"class-{label}"
    return Answer(label=label, name=name, radius=radius, stop="n", rule="none", **numbers)


@pytest.mark.parametrize("radius", [0.1, 0.5])
def test_two_changes_are_just_within_the_radius_and_are_pictures(radius: float):
    noise, towards, *others = reach.images(X, OTHER, "7", radius=radius).values()

    for pixels in (noise, towards):
        assert reach.distance(X, pixels) == pytest.approx(reach.INSIDE * radius, rel=1e-4)
        assert 0 <= pixels.min() and pixels.max() <= 1
    assert np.array_equal(others[0], OTHER)
    assert all(reach.distance(X, pixels) > radius for pixels in others)


def test_the_figure_says_certified_below_the_radius_only():
    """A distance equal to the radius is outside of the open ball."""
    places = {"near": 0.4, "at it": 0.5, "far": 2.0}
    found = [answer(1, 0.1), answer(2, 0.3), answer(ABSTAIN, 0.0)]
    changes = [
        reach.Change(name, X, place, got)
        for (name, place), got in zip(places.items(), found, strict=True)
    ]

    *images, axis = reach.drawn(X, answer(1, 0.5), changes).get_axes()

    assert [image.get_title() for image in images] == [
        "the image\nclass class-1 within 0.500",
        "1: near\nℓ₂ 0.40, certified: class class-1",
        "2: at it\nℓ₂ 0.50, not covered: class class-2",
        "3: far\nℓ₂ 2.00, not covered: abstains",
    ]
    marks = [(line.get_xdata()[0], line.get_marker()) for line in axis.get_lines()]
    assert marks == [(0.4, "o"), (0.5, "s"), (2.0, "s")]
