"""Certificates are sound, as large as their theorems allow, and keep to their terms."""

from functools import cache

import numpy as np
import pytest
from builders import many, refused
from helpers import few
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from rrcm.certification.certificates import cohen, two_class
from rrcm.certification.stopping import grid, none
from rrcm.certification.votes import bounds
from rrcm.certification.votes.counts import ABSTAIN, Claim, ImageVotes, require_enough
from rrcm.core import registry
from rrcm.core.errors import CertificateError

tables = st.lists(st.integers(0, 500), min_size=2, max_size=9).filter(lambda c: sum(c) >= 20)
every = pytest.mark.parametrize(
    "certificate",
    [registry.load("certificates", name) for name in registry.names("certificates")],
    ids=lambda module: module.__name__.split(".")[-1],
)


def evidence(counts0, counts, *, draws=None):
    """Of final counts [K], or of cumulative counts [L, K] at looks."""
    votes = np.atleast_2d(counts)
    draws = draws or tuple(votes.sum(axis=1).tolist())
    return ImageVotes(idx=7, selection=np.array(counts0), draws=draws, counts=votes)


@cache
def fixed(n):
    return none.Rule(none.Config(), n=n, claim=Claim(certificate=cohen, sigma=1.0, alpha=0.001))


@cache
def stopping(n, alpha, sigma=1.0):
    cfg = grid.Config(radii=[0.0, 0.25, 0.5], beta=0.001)
    return grid.Rule(cfg, n=n, claim=Claim(certificate=cohen, sigma=sigma, alpha=alpha))


def by(certificate, seen, rule=None, *, sigma=1.0, alpha=0.001):
    rule = rule or fixed(seen.draws[-1])
    require_enough(certificate, rule, alpha=alpha)
    return certificate.certify(seen, rule, sigma=sigma, alpha=alpha)


def certify(counts0, counts, sigma=1.0, alpha=0.001):
    return by(cohen, evidence(counts0, counts), sigma=sigma, alpha=alpha)


# Cohen et al.


def test_it_abstains_exactly_where_half_cannot_be_excluded():
    n, alpha = 60, 0.05
    for k in range(n + 1):
        got = certify([0, 1], [n - k, k], alpha=alpha)
        p_A = 1 - bounds.complement(k, n, alpha)

        assert (got.n_A, got.n) == (k, n)
        assert got.p_A == pytest.approx(p_A, abs=1e-15)
        assert (got.label == ABSTAIN) == (p_A <= 0.5)
        assert got.radius == pytest.approx(max(0, norm.ppf(p_A)) if k else 0, rel=1e-12)
        assert got.label in (ABSTAIN, 1)


def test_the_class_is_chosen_by_the_first_votes_only():
    """However the others vote: the bound would not hold for a class that they chose."""
    assert certify([3, 2], [0, 100]).label == ABSTAIN
    assert certify([3, 2], [0, 100]).n_A == 0
    assert certify([3, 2], [100, 0]) == certify([50, 0], [100, 0])
    assert certify([5, 5], [100, 0]).label == 0  # a tie goes to the lowest


# Two classes.


@pytest.mark.parametrize(
    ("n_A", "n_B", "one", "two"), [(60_000, 20_000, 0.2409, 0.5334), (45_000, 25_000, 0.0, 0.2608)]
)
def test_two_classes_certify_more_than_one(n_A, n_B, one, two):
    """Golden: from the formulas of Cohen et al. and Clopper-Pearson, at n = 100,000."""
    rest = [(100_000 - n_A - n_B) // 2] * 2
    seen = evidence([9, 0, 0, 0], [n_A, n_B, *rest])
    p_A = 1 - bounds.complement(n_A, 100_000, 0.0005)
    p_B = bounds.complement(100_000 - n_B, 100_000, 0.0005)

    got = by(two_class, seen)

    assert by(cohen, seen).radius == pytest.approx(one, abs=5e-5)
    assert got.radius == pytest.approx(two, abs=5e-5)
    assert got.radius == pytest.approx((norm.ppf(p_A) - norm.ppf(p_B)) / 2, rel=1e-9)
    assert (got.label, got.p_A) == (0, pytest.approx(p_A))


@many
@given(tables, tables)
def test_two_classes_never_lose_to_one_at_half_the_level(counts0, counts):
    """And are the same where there is only one other class."""
    size = min(len(counts0), len(counts))
    seen = evidence(counts0[:size], [20, *counts[1:size]])
    one, two = by(cohen, seen, alpha=0.01), by(two_class, seen, alpha=0.02)

    assert two.radius >= one.radius * (1 - 1e-12)
    if size == 2:
        assert two.radius == pytest.approx(one.radius, rel=1e-12)


def test_the_runner_up_may_change_from_look_to_look():
    """At each look, whoever leads the others: here class 1, then class 2."""
    votes = [[80, 15, 5], [100, 15, 10], [120, 20, 20], [150, 20, 30]]
    rule = stopping(1000, 0.001)
    assert rule.looks[:4] == (100, 125, 160, 200)

    got = by(two_class, evidence([9, 0, 0], votes), rule)

    q_A = rule.complement([(100, 80), (125, 100), (160, 120), (200, 150)], 0.0005)
    p_B = rule.complement([(100, 85), (125, 110), (160, 140), (200, 170)], 0.0005)
    assert got.radius == pytest.approx((norm.isf(q_A) - norm.ppf(p_B)) / 2, rel=1e-12)


def multinomial_histories(p, looks, repeats):
    """Cumulative votes [repeats, L, K] at looks."""
    rng = np.random.default_rng(0)
    steps = np.diff([0, *looks])
    return np.stack([rng.multinomial(s, p, repeats) for s in steps], axis=1).cumsum(axis=1)


class Careless:
    """A control: the rule of half the level would do, were the bounds not to fail apart."""

    def __init__(self, rule):
        self.looks, self.rule = rule.looks, rule

    def complement(self, history, alpha):
        return self.rule.complement(history, min(0.9, 5 * alpha))


def false_two_class(p, rule, repeats=2000):
    margin = (norm.ppf(p[0]) - norm.ppf(max(p[1:]))) / 2
    selection = [1] + [0] * (len(p) - 1)
    false = 0
    for votes in multinomial_histories(p, rule.looks, repeats):
        got = by(two_class, evidence(selection, votes, draws=rule.looks), rule, alpha=0.1)
        false += got.label == 0 and got.radius > margin
    return false / repeats


TWO_LIMIT = 0.1 + 4 * (0.1 * 0.9 / 2000) ** 0.5


@pytest.mark.parametrize(
    ("p", "early"),
    [
        ((0.5, 0.5), False),
        ((0.3, 0.3, 0.2, 0.2), True),
        ((0.4, 0.12, 0.12, 0.12, 0.12, 0.12), True),  # whoever is ahead, it is not by much
    ],
)
def test_at_most_alpha_of_two_class_certificates_are_false(p, early):
    """Without a correction for the choice of the runner-up, or for looking often."""
    rule = stopping(200, 0.1) if early else fixed(200)

    assert false_two_class(p, rule) <= TWO_LIMIT


def test_the_two_class_simulation_sees_what_is_false():
    assert false_two_class((0.5, 0.5), Careless(fixed(200))) > TWO_LIMIT


@every
@few
@given(tables, tables, st.floats(0.01, 10))
def test_radius_scales_with_sigma(certificate, counts0, counts, sigma):
    """Certification has no unit of length of its own."""
    size = min(len(counts0), len(counts))
    seen = evidence(counts0[:size], [100, *counts[1:size]])
    one, scaled = (by(certificate, seen, sigma=s, alpha=0.01) for s in (1.0, sigma))

    assert (scaled.label, scaled.p_A) == (one.label, one.p_A)
    assert scaled.radius == pytest.approx(sigma * one.radius, rel=1e-12)


def test_hopeless_numbers_of_votes_are_refused():
    for certificate, hopeless in [(cohen, 9), (two_class, 10)]:
        words = f"{hopeless} votes can never certify at alpha = 0.001", "all would abstain"
        with refused(CertificateError, *words):
            by(certificate, evidence([0, 1], [0, hopeless]))
        assert by(certificate, evidence([0, 1], [0, hopeless + 1])).label == 1
    # The parts of alpha count: with 10 draws Clopper-Pearson at alpha may certify, at half not.
    with refused(CertificateError, "10 votes can never certify at alpha = 0.001"):
        by(cohen, evidence([0, 1], [0, 10]), stopping(10, 0.001))
