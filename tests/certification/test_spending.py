"""The rules that spend alpha and beta, exactly; and no radius is claimed twice as often."""

import itertools

import numpy as np
import pytest
from builders import refused
from scipy.stats import norm

from benchmarks import futility, limit
from rrcm.certification.certificates import cohen, two_class
from rrcm.certification.stopping import proportional, spending
from rrcm.certification.votes import boundaries
from rrcm.certification.votes.counts import Claim
from rrcm.core.errors import ConfigError

ALPHA, BETA, SIGMA = 0.001, 0.01, 0.5
RADII = [0.0, 0.25, 0.5, 0.75]
SMALL, LEVELS = (2, 4, 7, 9, 12), (0.5, 0.4, 0.25, 0.1)  # all 4,096 orders can be tried


both = pytest.mark.parametrize("module", [spending, proportional], ids=["spending", "proportional"])


def make(module=spending, n=1000, radii=RADII, alpha=ALPHA, beta=BETA, certificate=cohen):
    cfg = module.Config(radii=radii, beta=beta)
    return module.Rule(cfg, n=n, claim=Claim(certificate=certificate, sigma=SIGMA, alpha=alpha))


def misses_of_all_orders():
    """Misses [4096, L] at the looks of SMALL, in all orders of hits and misses, and their total."""
    orders = np.array(list(itertools.product([0, 1], repeat=SMALL[-1])))
    return orders.cumsum(axis=1)[:, np.array(SMALL) - 1]


def probability(chosen, q):
    """Of the ``chosen`` orders, if each draw misses with probability ``q``."""
    total = misses_of_all_orders()[chosen, -1]
    return float((q**total * (1 - q) ** (SMALL[-1] - total)).sum())


@both
def test_how_fast_alpha_is_spent(module):
    """Votes files name the rule only, so its pace must never change."""
    assert module.Rule.pace == {spending: (0.9, 0.9, 0.5), proportional: (0.7, 1.0, 1.0)}[module]


@both
@pytest.mark.parametrize("alpha", [0.001, 0.05, 0.3])
def test_boundaries_spend_what_they_may_and_one_miss_more_would_be_too_much(module, alpha):
    """Against all orders of twelve draws, one by one."""
    misses, done, pace = misses_of_all_orders(), np.array(SMALL) / SMALL[-1], module.Rule.pace
    for q in LEVELS:
        (most,) = boundaries.boundaries(SMALL, (q,), alpha, pace)
        allowed = alpha * np.where(done < 1, pace.alpha * done**pace.power, 1.0)
        for i, level in enumerate(allowed):
            before = (misses[:, :i] <= most[:i]).any(axis=1)
            assert probability(before | (misses[:, i] <= most[i]), q) <= level
            assert probability(before | (misses[:, i] <= most[i] + 1), q) > level


@both
@pytest.mark.parametrize(("most", "beta"), [(0, 0.01), (1, 0.2), (3, 0.01), (6, 0.2)])
def test_few_images_are_given_up_whatever_p_is(module, most, beta):
    """Of those with as few misses in the end as certify; those with just as few lose most."""
    misses = misses_of_all_orders()
    fewest = boundaries.hopeless(SMALL, most, beta, module.Rule.pace)
    enough = misses[:, -1] <= most
    given_up = enough & (misses[:, :-1] >= fewest[:-1]).any(axis=1)

    for q in (0.01, 0.1, 0.3, 0.5, 0.9):
        assert probability(given_up, q) <= beta * probability(enough, q)
    assert fewest[-1] == most + 1
    just, done, pace = misses[:, -1] == most, np.array(SMALL[:-1]) / SMALL[-1], module.Rule.pace
    for i, allowed in enumerate(beta * pace.beta * done**pace.power * just.sum()):
        before = just & (misses[:, :i] >= fewest[:i]).any(axis=1)
        assert (before | just & (misses[:, i] >= fewest[i])).sum() <= allowed
        assert (before | just & (misses[:, i] >= fewest[i] - 1)).sum() > allowed


def test_proportional_draws_less_and_certifies_more_next_to_a_radius():
    """With the beta of the presets; images at 1.05 times the radius 0.25, by exact recursion."""
    p = float(norm.cdf(1.05 * 0.25 / SIGMA))
    tables = [
        limit.Table(make(spending, 10_000)),
        limit.Table(make(proportional, 10_000, beta=0.3)),
    ]

    (draws, certified), (fewer, more) = [table.followed(p) for table in tables]

    assert fewer < 0.95 * draws and more[1] > certified[1]


@both
def test_a_larger_radius_is_never_certified_without_the_smaller_ones(module):
    qs = tuple(np.linspace(0.5, 0.01, 200))
    most = boundaries.boundaries(boundaries.looks(1000), qs, ALPHA, module.Rule.pace)

    assert (np.diff(most, axis=0) <= 0).all()


@both
def test_other_certificates_are_refused(module):
    name = module.__name__.rpartition(".")[2]
    with refused(ConfigError, f"rule {name} does not go with the certificate two_class", "grid"):
        make(module, certificate=two_class)


def test_so_few_draws_that_a_radius_cannot_be_had_give_it_up():
    rule = make(n=10, radii=[2.0])

    assert rule.stop(futility.seen([(10, 10)])) == "futile"
