"""Stopping rules may stop whenever they like, and what is claimed then still holds."""

import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest
from builders import many, refused
from helpers import few
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.stats import binom, norm

from benchmarks import limit
from benchmarks.futility import fewest, seen
from rrcm.certification import certify
from rrcm.certification.certificates import cohen, two_class
from rrcm.certification.stopping import anytime, grid, none, proportional, spending
from rrcm.certification.votes import boundaries, bounds, counts, sequential
from rrcm.certification.votes.counts import Claim
from rrcm.core.errors import ConfigError
from rrcm.core.registry import names
from rrcm.core.schema import parse

N, ALPHA, SIGMA = 1000, 0.05, 0.5
RADII = [0.0, 0.25, 0.5, 0.75]
CONSTANTS = {
    none: {},
    grid: {"radii": RADII, "beta": 0.001},
    anytime: {"tolerance": 0.02, "beta": 0.001},
    spending: {"radii": RADII, "beta": 0.01},
    proportional: {"radii": RADII, "beta": 0.3},
}


def make(module, n=N, alpha=ALPHA, sigma=SIGMA, certificate=cohen, **changes):
    cfg = parse(CONSTANTS[module] | changes, module.Config, where="stopping")
    claim = Claim(certificate=certificate, sigma=sigma, alpha=alpha)
    return module.Rule(cfg, n=n, claim=claim)


def test_every_rule_is_tested_here():
    assert {module.__name__.rpartition(".")[2] for module in CONSTANTS} == {*names("stopping")}


every_rule = pytest.mark.parametrize("module", CONSTANTS, ids=lambda m: m.__name__.split(".")[-1])
both = pytest.mark.parametrize("module", [spending, proportional], ids=["spending", "proportional"])


# Looks.


@many
@given(st.integers(1, 10**7))
def test_the_ladder_ascends_to_n_by_preferred_numbers(n):
    ladder = "100 125 160 200 250 315 400 500 630 800 1000 1250 1300"
    assert counts.look_schedule(1300) == tuple(map(int, ladder.split()))
    ladder = counts.look_schedule(n)

    assert ladder[-1] == n
    assert all(1.2 < b / a < 1.3 for a, b in itertools.pairwise(ladder[:-1]))
    assert ladder[0] == min(n, 100)
    assert all(a < b for a, b in itertools.pairwise(ladder))


# Soundness.


def error(rule, p, alpha):
    """P[1 - p is above the bound at any look], exactly, by the distribution of hits at the looks.

    The bound of a history must be the least of the bounds of its looks; a test below says so.
    """
    false = [
        fewest(look, lambda k, look=look: rule.complement([(look, k)], alpha) < 1 - p)
        for look in rule.looks
    ]
    alive, before = np.ones(1), 0  # P[hits, no false bound yet]
    for look, least in zip(rule.looks, false, strict=True):
        steps = binom.pmf(np.arange(look - before + 1), look - before, p)
        alive, before = np.convolve(alive, steps), look
        alive[least:] = 0
    return 1 - alive.sum()


@every_rule
def test_bounds_fail_with_at_most_alpha_wherever_one_stops(module):
    """Even if an adversary may look at all votes and stop at the worst look; at any level."""
    for p in (0.5, 0.501, 0.7, 0.9, 0.999, 1.0):
        assert error(make(module), p, ALPHA) <= ALPHA + 1e-12
    assert error(make(module, alpha=0.3), 0.9, 0.01) <= 0.01
    assert error(make(module, alpha=0.001), 0.5, 0.2) <= 0.2


def test_little_of_alpha_is_wasted():
    assert error(make(none), 0.7, ALPHA) > 0.8 * ALPHA
    assert error(make(grid), 0.7, ALPHA) > 0.5 * ALPHA


@both
def test_alpha_is_spent_to_the_last_tenth_at_every_radius_of_the_table(module):
    rule = make(module, n=5000, alpha=0.001)

    errors = [error(rule, norm.cdf(radius / SIGMA), 0.001) for radius in RADII]

    assert all(0.9 * 0.001 < one <= 0.001 for one in errors), errors


def test_the_mixture_may_be_looked_at_after_every_draw():
    """And then it fails nearly as often as it may; the ladder's few looks leave alpha unused."""
    rule = make(anytime)
    rule.looks = tuple(range(1, N + 1))

    assert 0.5 * ALPHA < error(rule, 0.7, ALPHA) <= ALPHA


@every_rule
@few
@given(st.data())
def test_a_bound_is_the_least_of_its_looks_and_falls_with_hits(module, data):
    """The least: so looking again never hurts. Monotone: so `two_class` may bound the runner-up."""
    rule = make(module)
    reached = data.draw(st.integers(1, len(rule.looks)))
    history, hits = [], 0
    for before, look in itertools.pairwise([0, *rule.looks[:reached]]):
        hits += data.draw(st.integers(0, look - before))
        history.append((look, hits))
    more = [(t, data.draw(st.integers(k, t))) for t, k in history]

    got = rule.complement(history, 0.01)

    assert got == min(rule.complement([look], 0.01) for look in history)
    assert rule.complement(more, 0.01) <= got
    if module not in (spending, proportional):  # what it spends at one look, a later one lacks
        assert rule.complement(history, 0.02) <= got


# When to stop.


@every_rule
def test_nothing_is_left_to_say_at_the_end(module):
    """At n a rule that can stop has a reason, unless claims are made there only."""
    for n, share in itertools.product((7, 100, 1300), (0, 0.5, 1)):
        rule = make(module, n=n)
        why = rule.stop(seen([(n, int(share * n))]))
        assert why in ((None, "futile") if rule.fixed else ("certified", "futile"))


@pytest.mark.parametrize("module", [grid, spending, proportional])
@settings(deadline=None, max_examples=5)
@given(st.integers(100, 3000), st.floats(0.05, 2.0), st.floats(0.0, 2.0))
def test_what_a_rule_calls_certified_is_in_the_table(module, n, sigma, share):
    """Also after the radius was rounded down to what is written; and one hit fewer is not."""
    radius = share * sigma
    rule = make(module, n=n, sigma=sigma, radii=[radius], alpha=0.001)
    for look in rule.looks:
        least = fewest(look, lambda k, t=look: rule.stop(seen([(t, k)])) == "certified")
        if least <= look:
            q = rule.complement([(look, least)], 0.001)
            assert q < 0.5
            assert certify.floor(bounds.radius(q, sigma=sigma)) >= radius
        q = rule.complement([(look, least - 1)], 0.001)
        assert bounds.radius(q, sigma=sigma) < radius + sequential.MARGIN


@many
@given(st.data(), st.integers(1, 300), st.floats(0.01, 0.99), st.floats(1e-6, 0.5))
def test_the_most_hits_are_rarely_fewer_than_all_draws_show(data, n, p, beta):
    """Of images that get the hits that they need, whatever p is, a share beta is given fewer."""
    draws, needed = data.draw(st.integers(1, n)), data.draw(st.integers(0, n))
    given_up = np.array(
        [k for k in range(draws + 1) if sequential.futility_bound(k, draws, n, beta) < needed]
    )

    lost = binom.pmf(given_up, draws, p) @ binom.sf(needed - given_up - 1, n - draws, p)

    assert lost <= beta * binom.sf(needed - 1, n, p) * (1 + 1e-9) + 1e-300  # of what underflows


def test_hits_computed_once_give_up_what_the_best_plausible_end_does():
    """For `cohen` a rule compares hits with numbers that hold for all images."""
    each = SimpleNamespace(**vars(cohen) | {"READS": cohen.READS | {"more"}})  # one image at a time
    once, anew = (make(grid, certificate=c) for c in (cohen, each))
    for look in once.looks:
        for hits in {*range(look // 2, look, max(1, look // 40)), look - 1, look}:
            votes = seen([(look, hits)])
            assert once.stop(votes) == anew.stop(votes)


@pytest.mark.parametrize("module", [anytime, grid])
@settings(deadline=None, max_examples=8)
@given(st.integers(102, 2500), st.floats(1e-4, 0.1), st.floats(1e-4, 0.05))
@example(412, 0.1, 0.001)
@example(1010, 0.003, 0.001)
def test_a_rule_for_fewer_draws_gives_up_no_later(module, n, beta, alpha):
    """Also where a few more draws need as many misses: votes of n can be cut at any look."""
    radii = {"radii": [SIGMA * 1.7]} if module is grid else {}
    rule = make(module, n=n, alpha=alpha, beta=beta, **radii)
    fewer = make(module, n=rule.looks[-2], alpha=alpha, beta=beta, **radii)
    for look in fewer.looks:
        least, later = (
            fewest(look, lambda k, r=r, t=look: r.stop(seen([(t, k)])) != "futile")
            for r in (rule, fewer)
        )
        assert least <= later


def test_anytime_leaves_less_than_its_tolerance():
    """In units of sigma, against the same votes drawn to the end."""
    rng, sigma = np.random.default_rng(0), 0.05
    rule = make(anytime, n=10_000, sigma=sigma, tolerance=0.2)
    forgone, stopped = [], 0
    for p in rng.uniform(0.6, 1, 40):
        hits = np.concatenate([[0], rng.random(10_000) < p]).cumsum()
        full = [(t, int(hits[t])) for t in rule.looks]
        end = next(i for i in range(1, len(full) + 1) if rule.stop(seen(full[:i])))
        early, late = (
            max(0, bounds.radius(rule.complement(h, ALPHA), sigma=sigma))
            for h in (full[:end], full)
        )
        forgone.append(late - early)
        stopped += end < len(full)

    assert np.mean(np.array(forgone) >= 0.2 * sigma) <= 0.01
    assert stopped > 30


# Rules that spend alpha and beta, exactly; and no radius is claimed twice as often.


SMALL, LEVELS = (2, 4, 7, 9, 12), (0.5, 0.4, 0.25, 0.1)  # all 4,096 orders can be tried


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
        limit.Table(make(spending, 10_000, alpha=0.001)),
        limit.Table(make(proportional, 10_000, alpha=0.001)),
    ]

    (draws, certified), (fewer, more) = [table.followed(p) for table in tables]

    assert fewer < 0.95 * draws and more[1] > certified[1]


@both
def test_a_larger_radius_is_never_certified_without_the_smaller_ones(module):
    qs = tuple(np.linspace(0.5, 0.01, 200))
    most = boundaries.boundaries(boundaries.looks(1000), qs, 0.001, module.Rule.pace)

    assert (np.diff(most, axis=0) <= 0).all()


@both
def test_other_certificates_are_refused(module):
    name = module.__name__.rpartition(".")[2]
    with refused(ConfigError, f"rule {name} does not go with the certificate two_class", "grid"):
        make(module, certificate=two_class)


def test_so_few_draws_that_a_radius_cannot_be_had_give_it_up():
    rule = make(spending, n=10, radii=[2.0], alpha=0.001)

    assert rule.stop(seen([(10, 10)])) == "futile"


# Bad input.


@pytest.mark.parametrize(
    ("module", "changes", "words"),
    [
        *((m, {"beta": 1.0}, "beta: must be in (0, 1), got 1.0") for m in (grid, anytime)),
        (grid, {"radii": []}, "stopping.radii: must be one or more, got []"),
        (spending, {"radii": [-0.5]}, "stopping.radii: must be 0 or more pixels, got -0.5"),
        (grid, {"radii": [math.nan]}, "stopping.radii[0]: expected a finite number, got nan"),
        (anytime, {"tolerance": 0.0}, "stopping.tolerance: must be positive, got 0.0"),
        (anytime, {"tolerance": math.inf}, "tolerance: expected a finite number, got inf"),
        (none, {"beta": 0.1}, "stopping: unknown key 'beta'"),
    ],
)
def test_constants_that_mean_nothing_are_refused(module, changes, words):
    with refused(ConfigError, words):
        make(module, **changes)
