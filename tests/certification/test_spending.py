"""The rule `spending` spends alpha and beta, exactly, and no radius is claimed twice as often."""

import itertools

import numpy as np
import pytest
from builders import refused
from scipy.stats import binom, norm

from benchmarks import futility
from rrcm.certification.certificates import cohen, two_class
from rrcm.certification.stopping import spending
from rrcm.certification.votes.counts import Claim
from rrcm.core.errors import ConfigError

ALPHA, BETA, SIGMA = 0.001, 0.01, 0.5
RADII = [0.0, 0.25, 0.5, 0.75]
SMALL, LEVELS = (2, 4, 7, 9, 12), (0.5, 0.4, 0.25, 0.1)  # all 4,096 orders can be tried


def make(n=1000, radii=RADII, alpha=ALPHA, beta=BETA, certificate=cohen):
    cfg = spending.Config(radii=radii, beta=beta)
    return spending.Rule(cfg, n=n, claim=Claim(certificate=certificate, sigma=SIGMA, alpha=alpha))


def misses_of_all_orders():
    """Misses [4096, L] at the looks of SMALL, in all orders of hits and misses, and their total."""
    orders = np.array(list(itertools.product([0, 1], repeat=SMALL[-1])))
    return orders.cumsum(axis=1)[:, np.array(SMALL) - 1]


def probability(chosen, q):
    """Of the ``chosen`` orders, if each draw misses with probability ``q``."""
    total = misses_of_all_orders()[chosen, -1]
    return float((q**total * (1 - q) ** (SMALL[-1] - total)).sum())


def error(looks, most, q):
    """The probability that misses of probability ``q`` are at most ``most`` at some look."""
    alive, before = np.ones(1), 0
    for look, end in zip(looks, most, strict=True):
        alive = np.convolve(alive, binom.pmf(np.arange(look - before + 1), look - before, q))
        alive[: end + 1], before = 0, look
    return 1 - alive.sum()


@pytest.mark.parametrize("alpha", [0.001, 0.05, 0.3])
def test_boundaries_spend_what_they_may_and_one_miss_more_would_be_too_much(alpha):
    """Against all orders of twelve draws, one by one."""
    misses, done = misses_of_all_orders(), np.array(SMALL) / SMALL[-1]
    for q in LEVELS:
        (most,) = spending.boundaries(SMALL, (q,), alpha)
        allowed = alpha * np.where(done < 1, spending.SHARE * done**spending.POWER, 1.0)
        for i, limit in enumerate(allowed):
            before = (misses[:, :i] <= most[:i]).any(axis=1)
            assert probability(before | (misses[:, i] <= most[i]), q) <= limit
            assert probability(before | (misses[:, i] <= most[i] + 1), q) > limit


@pytest.mark.parametrize(("most", "beta"), [(0, 0.01), (1, 0.2), (3, 0.01), (6, 0.2)])
def test_few_images_are_given_up_whatever_p_is(most, beta):
    """Of those with as few misses in the end as certify; those with just as few lose most."""
    misses = misses_of_all_orders()
    fewest = spending.hopeless(SMALL, most, beta)
    enough = misses[:, -1] <= most
    given_up = enough & (misses[:, :-1] >= fewest[:-1]).any(axis=1)

    for q in (0.01, 0.1, 0.3, 0.5, 0.9):
        assert probability(given_up, q) <= beta * probability(enough, q)
    assert fewest[-1] == most + 1
    just = misses[:, -1] == most
    sooner = (misses[:, :-1] >= fewest[:-1] - 1).any(axis=1)
    assert (just & sooner).sum() > beta * just.sum()


def test_alpha_is_spent_to_the_last_tenth_at_every_radius_of_the_table():
    rule = make()
    qs = [float(norm.sf(r / SIGMA)) for r in RADII]
    most = [fewest_misses(rule, q) for q in qs]

    errors = [error(rule.looks, one, q) for one, q in zip(most, qs, strict=True)]

    assert all(0.9 * ALPHA < one <= ALPHA for one in errors), errors


def fewest_misses(rule, q):
    """The most misses at each look whose bound is below ``q``."""
    return [
        look - futility.fewest(look, lambda k, t=look: rule.complement([(t, k)], ALPHA) < q)
        for look in rule.looks
    ]


def test_a_larger_radius_is_never_certified_without_the_smaller_ones():
    qs = tuple(np.linspace(0.5, 0.01, 200))
    most = spending.boundaries(spending.looks(1000), qs, ALPHA)

    assert (np.diff(most, axis=0) <= 0).all()


def test_other_certificates_are_refused():
    with refused(ConfigError, "spending does not go with the certificate two_class", "grid"):
        make(certificate=two_class)


def test_so_few_draws_that_a_radius_cannot_be_had_give_it_up():
    rule = make(n=10, radii=[2.0])

    assert rule.stop(futility.seen([(10, 10)])) == "futile"
