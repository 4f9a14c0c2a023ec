"""Schedules against the golden numbers of the literature, and what holds for any setting."""

import dataclasses
import itertools
import math
import operator

import pytest
from helpers import few
from hypothesis import given
from hypothesis import strategies as st

from rrcm.config.sections import Momentum
from rrcm.core.errors import ConfigError
from rrcm.noise import levels
from rrcm.training.engine import schedules

PAPER = {"t_min": 0.002, "t_max": 80.0, "rho": 7.0}
STEPS = 600_000


def test_karras_grid_has_the_paper_s_levels():
    """And those nearest to the times of certification, .5, 1 and 2."""
    for points, place, level in [
        *[(21, 0, 80.0), (21, 1, 60.557), (21, 2, 45.314)],
        *[(21, -3, 0.016721), (21, -2, 0.0062659), (21, -1, 0.002)],
        *[(41, 1, 69.699), (81, 1, 74.698), (81, -2, 0.0027090), (81, -1, 0.002)],
    ]:
        grid = levels.karras_grid(points, **PAPER)
        assert grid[place].item() == pytest.approx(level, rel=1e-4)
    for points, nearest in [(41, [0.56663, 0.96542, 2.00365]), (81, [0.49271, 0.96542, 2.00365])]:
        grid = levels.karras_grid(points, **PAPER)
        found = [grid[(grid - t).abs().argmin()].item() for t in (0.5, 1.0, 2.0)]
        assert found == pytest.approx(nearest, abs=5e-6)


def test_lognormal_weights_are_their_equation():
    """p_i in proportion to a difference of error functions, as iCT writes it."""
    grid = levels.karras_grid(21, **PAPER)
    place = [math.erf((math.log(t) + 1.1) / (math.sqrt(2) * 2.0)) for t in grid.tolist()]
    share = [upper - lower for upper, lower in itertools.pairwise(place)]

    found = levels.lognormal_weights(grid, mean=-1.1, std=2.0)

    assert found.tolist() == pytest.approx([each / sum(share) for each in share], abs=1e-12)
    with pytest.raises(ConfigError, match=r"^mean, std: ln t = 90.0 \+- 0.1 is on no part of"):
        levels.lognormal_weights(grid, mean=90.0, std=0.1)


def test_grid_grows_when_it_should():
    for rule, step, points in [
        *[("reference", 0, 21), ("reference", 1, 41), ("reference", 258_406, 41)],
        *[("reference", 258_407, 81), ("reference", STEPS, 81)],
        *[("ict", 0, 21), ("ict", 199_999, 21), ("ict", 200_000, 41), ("ict", 399_999, 41)],
        *[("ict", 400_000, 81), ("ict", STEPS, 81)],
    ]:
        assert levels.grid_points(step, steps=STEPS, first=20, last=80, rule=rule) == points


def test_ict_grid_is_its_equation_when_the_last_is_not_a_doubling_of_the_first():
    """K' = floor(K / (log2 floor(s1 / s0) + 1)): the logarithm itself is not rounded."""
    steps, first, last = 900, 20, 70
    stage_steps = math.floor(steps / (math.log2(last // first) + 1))

    for step in range(0, steps, 50):
        expected = min(first * 2 ** (step // stage_steps), last) + 1

        assert expected == levels.grid_points(step, steps=steps, first=first, last=last, rule="ict")


@pytest.mark.parametrize(
    ("steepness", "momenta"),
    [
        (10.0, [0.99, 0.992436, 0.994592, 0.998411, 0.999769, 0.999889, 0.999899]),
        (15.0, [0.99, 0.993563, 0.996308, 0.999451, 0.999889, 0.9999, 0.9999]),
    ],
)
def test_momentum_is_the_paper_s_sigmoid(steepness, momenta):
    target = Momentum(start=0.99, end=0.9999, steepness=steepness, steps=0)
    found = [
        schedules.ema_momentum(step, steps=100, target=target)
        for step in (0, 5, 10, 25, 50, 75, 100)
    ]

    assert found == pytest.approx(momenta, abs=1e-6)


def test_the_target_averages_over_the_same_share_of_a_run_of_any_length():
    """A 30th of the paper's run, at its end; with the paper's momenta, 936 steps lag by .8."""
    target = Momentum(start=0.99, end=0.9999, steepness=15.0, steps=300_000)

    def lag(steps, target):
        back = range(steps - 1, -1, -1)
        momenta = (schedules.ema_momentum(step, steps=steps, target=target) for step in back)
        return sum(itertools.accumulate(momenta, operator.mul)) / steps

    for steps in (500, 5_000, 300_000):
        assert lag(steps, target) == pytest.approx(1 / 30, rel=0.05)
    assert lag(936, dataclasses.replace(target, steps=0)) > 0.8


def test_learning_rate_climbs_then_falls_like_a_cosine():
    shares = [schedules.warmup_cosine(step, steps=12, warmup=4) for step in range(13)]

    assert shares[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert shares[6] == pytest.approx((1 + math.sqrt(0.5)) / 2)  # a quarter of the way down
    assert shares[8] == pytest.approx(0.5)
    assert shares[12] == 0


@few
@given(st.integers(1, 300), st.data())
def test_learning_rate_is_a_share_of_the_peak_and_never_zero(steps, data):
    """Even at the first step and at the last: no step is wasted."""
    warmup = data.draw(st.integers(0, steps - 1))

    shares = [schedules.warmup_cosine(step, steps=steps, warmup=warmup) for step in range(steps)]

    assert all(0 < share <= 1 for share in shares)
    assert max(shares) == 1
    assert shares[warmup:] == sorted(shares[warmup:], reverse=True)
