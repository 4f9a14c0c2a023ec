"""A plan is the gain per draw that may be expected, worked out by hand."""

import numpy as np
import pytest
from helpers import few
from hypothesis import given
from hypothesis import strategies as st

from rrcm.certification.certificates import cohen
from rrcm.certification.sampling import budget
from rrcm.certification.stopping import anytime, grid
from rrcm.certification.votes import bounds
from rrcm.certification.votes.counts import Claim, ImageVotes
from rrcm.core.schema import parse

N, SIGMA, ALPHA, RADII = 400, 0.5, 0.05, [0.0, 0.25, 0.5]


def rule(module, **constants):
    cfg = parse(constants, module.Config, where="stopping")
    claim = Claim(certificate=cohen, sigma=SIGMA, alpha=ALPHA)
    return module.Rule(cfg, n=N, claim=claim)


GRID = rule(grid, radii=RADII, beta=0.01)
ANYTIME = rule(anytime, tolerance=0.01, beta=0.01)


def seen(selected, *looks):
    """Votes of two classes: hits among 20 of the selection, and (draws, hits) at looks."""
    return ImageVotes(
        idx=0,
        selection=np.array([selected, 20 - selected]),
        draws=tuple(draws for draws, _ in looks),
        counts=np.array([[hits, draws - hits] for draws, hits in looks]).reshape(-1, 2),
        soft=(0, 0),
        paired=(0, 0),
    )


def worth(evidence, rule=GRID, radii=RADII):
    return budget.worth(evidence, rule, radii=radii)


def certified(rule, history):
    """How many radii a history certifies."""
    reached = bounds.radius(rule.complement(history, ALPHA), sigma=SIGMA)
    return sum(reached >= r for r in RADII) if reached > 0 else 0


@pytest.mark.parametrize("selected", [12, 14, 17, 20])
def test_worth_is_the_best_rate_of_all_later_looks(selected):
    """Nothing is certified yet; at each look the share of the selection would have gone on."""
    share = (selected + 0.5) / 21

    expected = max(certified(GRID, [(t, round(share * t))]) / t for t in GRID.looks)

    assert worth(seen(selected)) == pytest.approx(expected)


def test_votes_so_far_count_and_what_is_certified_is_no_gain():
    evidence, history = seen(17, (100, 92)), [(100, 92)]
    share = (92 + 17 + 0.5) / 121
    now = certified(GRID, history)

    later = [
        (certified(GRID, [*history, (t, 92 + round(share * (t - 100)))]) - now) / (t - 100)
        for t in GRID.looks
        if t > 100
    ]

    assert now == 2
    assert worth(evidence) == pytest.approx(max(later))
    assert max(later) > 0


def test_without_a_table_gain_is_radius():
    """In units of sigma, so that plans are the same in any unit."""
    share = 17.5 / 21
    radii = [
        max(0.0, bounds.radius(ANYTIME.complement([(t, round(share * t))], ALPHA), sigma=1.0)) / t
        for t in ANYTIME.looks
    ]

    assert worth(seen(17), ANYTIME, None) == pytest.approx(max(radii))
    assert max(radii) > 0


@pytest.mark.parametrize("looks", [[], [(100, 50)], [(100, 10)]])
def test_a_class_that_is_behind_is_worth_nothing(looks):
    evidence = seen(10, *looks)

    assert worth(evidence) == worth(evidence, ANYTIME, None) == 0


@few
@given(st.integers(0, 20), st.lists(st.floats(0, 1), max_size=7))
def test_worth_is_finite_and_never_negative(selected, shares):
    """Whatever was seen, so that it can be a priority."""
    looks, hits, before = [], 0, 0
    for draws, share in zip(GRID.looks, shares, strict=False):
        hits += round(share * (draws - before))
        before = draws
        looks.append((draws, hits))

    for rule_, radii in ((GRID, RADII), (ANYTIME, None)):
        assert 0 <= worth(seen(selected, *looks), rule_, radii) < np.inf
