"""What the benchmarks compute of `grid` is what its votes show, and no rule beats the limit."""

import numpy as np
import pytest
from scipy.special import betaincinv
from scipy.stats import binom

from benchmarks import futility, limit, power
from rrcm.certification.votes.sequential import look_schedule

N, ALPHA, BETA, RADIUS = 1_000, 0.001, 0.05, 0.5


def votes(p, images, *, rule, seed):
    rng, steps = np.random.default_rng(seed), np.diff(rule.looks, prepend=0)
    hits = np.cumsum([rng.binomial(t, p, images) for t in steps], axis=0)
    return [[*zip(rule.looks, each, strict=True)] for each in hits.T.tolist()]


def ends(rule, history):
    """Whether the rule ends an image's draws as certified."""
    for i in range(1, len(history) + 1):
        if verdict := rule.stop(futility.seen(history[:i])):
            return verdict == "certified"
    return False


def test_images_lost_are_those_that_the_rule_gives_up():
    """For one p, next to the radius, within four standard errors."""
    rule = futility.laid_out([RADIUS], n=N, alpha=ALPHA, beta=BETA)
    patient = futility.laid_out([RADIUS], n=N, alpha=ALPHA, beta=1e-12)
    enough, below = futility.thresholds(rule, RADIUS, alpha=ALPHA)
    p, images = betaincinv(enough[-1], N - enough[-1] + 1, 0.6), 4_000

    given_up = [
        ends(patient, history) and not ends(rule, history)
        for history in votes(p, images, rule=rule, seed=0)
    ]

    never = (0,) * len(below)
    expected = (
        futility.drawn(p, rule.looks, enough, never)[0]
        - futility.drawn(p, rule.looks, enough, below)[0]
    )
    assert np.mean(given_up) == pytest.approx(expected, abs=4 * (expected / images) ** 0.5)
    worst, _ = futility.lost(RADIUS, n=N, alpha=ALPHA, beta=BETA)
    assert 0.9 * worst < expected <= worst


def test_no_image_loses_more_than_one_with_just_enough_hits():
    """Draws in any order of just enough hits: more are given up than at one look, at any p."""
    rule = futility.laid_out([RADIUS], n=N, alpha=ALPHA, beta=BETA)
    enough, _ = futility.thresholds(rule, RADIUS, alpha=ALPHA)
    one_p, just = futility.lost(RADIUS, n=N, alpha=ALPHA, beta=BETA)
    patient = futility.laid_out([RADIUS], n=N, alpha=ALPHA, beta=1e-12)
    rng, images = np.random.default_rng(1), 2_000

    given_up = 0
    for _ in range(images):
        order = rng.permutation(np.arange(N) < enough[-1])
        history = [(t, int(order[:t].sum())) for t in rule.looks]
        given_up += ends(patient, history) and not ends(rule, history)

    assert given_up / images == pytest.approx(just, abs=4 * (just / images) ** 0.5)
    assert one_p < just


def test_draws_of_a_table_fall_with_beta():
    table = futility.simulated(look_schedule(N), 200, seed=0)
    spent = [
        futility.draws(futility.laid_out([0.0, 0.5], n=N, alpha=ALPHA, beta=beta, sigma=0.5), table)
        for beta in (1e-4, 1e-2, 0.3)
    ]

    assert N > spent[0] > spent[1] > spent[2] > 100


def expected_draws(p, looks, enough, below):
    """The mean draws of a rule for one radius, exactly."""
    left, before, mean = np.ones(1), 0, 0.0
    for look, least, fewest in zip(looks, enough, below, strict=True):
        mean += left.sum() * (look - before)
        left = np.convolve(left, binom.pmf(np.arange(look - before + 1), look - before, p))
        hits, before = np.arange(len(left)), look
        left[(hits >= least) | (hits < fewest)] = 0.0
    return mean


@pytest.mark.parametrize("radius", [0.0, 0.5, 1.0])
def test_no_rule_draws_less_than_the_limit(radius):
    """`grid` of one radius, whose error and power are those that the limit is asked for."""
    beta = 1e-6
    rule = futility.laid_out([radius], n=N, alpha=ALPHA, beta=beta)
    enough, below = futility.thresholds(rule, radius, alpha=ALPHA)
    q = limit.efficacy_bound(radius, sigma=1.0)
    p = 1 - q * np.linspace(0.3, 1.5, 25)
    drawn = np.array([expected_draws(each, rule.looks, enough, below) for each in p])

    least = limit.limit(p, q, enough[-1], n=N, alpha=ALPHA, beta=beta * len(rule.looks))

    assert (least <= drawn).all()
    assert (least > drawn / 3).mean() > 0.5  # it says something


def test_a_rule_that_divides_alpha_certifies_less_than_one_look():
    """Golden: at r = sigma and n = 1,000, `none` certifies with 123 misses, the others with fewer;
    and of images of one p, `spending` loses far more than its beta.
    """
    none, *rules = power.at(1.0, n=N, alpha=ALPHA).values()

    assert [N - rule[1][-1] for rule in (none, *rules)] == [123, 121, 119]
    grid, spending = (power.worst(rule, none) for rule in rules)
    assert grid == pytest.approx((0.474, 0.55), abs=2e-3)
    assert spending == pytest.approx((0.477, 0.6), abs=2e-3)
