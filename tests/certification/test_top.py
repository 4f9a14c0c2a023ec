"""Certificates of top k classes: golden values, the theorem, its guarantee, and what it is not."""

from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest
from builders import header, many, refused, row
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.stats import norm

from rrcm.certification.certificates import _top, cohen, two_class
from rrcm.certification.stopping import anytime, none
from rrcm.certification.votes import bounds
from rrcm.certification.votes.counts import ABSTAIN, Claim, ImageVotes
from rrcm.core.errors import CertificateError
from rrcm.core.labels import NO_CLASS

A = [2, 2, 334, 93642, 2, 5279, 737, 0, 2, 0]
B = [0, 13453, 50, 0, 113, 36952, 1, 49328, 0, 103]
C = [8333, 0, 157, 0, 91506, 0, 0, 0, 2, 2]
D = [126, 1, 0, 0, 0, 0, 0, 0, 99873, 0]
E = [30000, 25000, 20000, 15000, 10000, 0, 0, 0, 0, 0]
GOLDEN = [  # counts, class, k, radius at alpha / K, radius at alpha / (k + 1)
    (A, 3, 1, 0.3870507294, 0.3877291297),
    (A, 3, 2, 0.4865250666, 0.4872772182),
    (A, 3, 3, 0.5504707425, 0.5510554808),
    (A, 3, 5, 0.6767966997, 0.6781933068),
    (B, 7, 1, 0.03580963165, 0.03623839079),
    (B, 7, 3, 0.3650141197, 0.3659040254),
    (C, 4, 3, 0.6232501766, 0.6259711966),
    (D, 8, 1, 0.7305496141, 0.7332173611),
    (D, 8, 5, 0.9721442407, 0.972956745),
    (E, 2, 2, 0.0, 0.0),
    (E, 2, 3, 0.01999591282, 0.02027456045),
    (E, 2, 5, 0.3601622702, 0.3620262592),
]
counts = st.lists(st.integers(0, 300), min_size=3, max_size=8).filter(lambda c: sum(c) >= 30)


@cache
def fixed(n, kind=none.Rule, **constants):
    claim = Claim(certificate=cohen, sigma=1.0, alpha=0.001)
    module = none if kind is none.Rule else anytime
    return kind(module.Config(**constants), n=n, claim=claim)


def votes(counts, first=(0, 1)):
    table = np.atleast_2d(counts)
    draws = tuple(table.sum(axis=1).tolist())
    return ImageVotes(idx=0, selection=np.array(first), draws=draws, counts=table)


def certify(counts, k, label, rule=None, *, sigma=1.0, alpha=0.001):
    seen = votes(counts)
    rule = rule or fixed(seen.draws[-1])
    return _top.certify(seen, rule, k=k, label=label, sigma=sigma, alpha=alpha)


@pytest.mark.parametrize(("counted", "label", "k", "of_all", "of_k"), GOLDEN)
def test_golden_radii(counted, label, k, of_all, of_k):
    """From the formula of Jia et al., solved elsewhere; each of K bounds, or of k + 1."""
    n = sum(counted)
    level = 0.001 / len(counted)
    others = [bounds.complement(n - c, n, level) for i, c in enumerate(counted) if i != label]
    most = sorted(others, reverse=True)[:k]
    q = bounds.complement(counted[label], n, level)

    assert max(0, _top.radius(q, most, sigma=0.25)) == pytest.approx(of_all, rel=1e-8)
    got = certify(counted, k, label, sigma=0.25)
    assert got.radius == pytest.approx(of_k, rel=1e-8)
    assert got.label == (label if of_k else ABSTAIN)


def test_the_authors_own_example():
    """Top 3 of their `result.txt`, with three digits."""
    for counted, label, said in ((A, 3, 0.55), (B, 7, 0.365), (C, 4, 0.623)):
        assert certify(counted, 3, label, sigma=0.25).radius == pytest.approx(said, abs=4e-3)


@many
@given(counts)
def test_top_1_is_two_classes(counted):
    label = int(np.argmax(counted))
    seen = votes(counted, first=np.eye(len(counted), dtype=int)[label])

    wanted = two_class.certify(seen, fixed(sum(counted)), sigma=1.0, alpha=0.01)

    got = certify(counted, 1, label, alpha=0.01)
    assert got.radius == pytest.approx(wanted.radius, rel=1e-12, abs=1e-12)
    assert (got.label, got.p_A) == (wanted.label, wanted.p_A)


@many
@given(counts, st.data())
def test_it_grows_with_k_and_with_the_votes_of_its_class(counted, data):
    """With k at equal levels of each bound; at one alpha in all, further bounds cost."""
    label = data.draw(st.integers(0, len(counted) - 1))
    reached = [
        certify(counted, k, label, alpha=0.01 * (k + 1)).radius for k in range(1, len(counted))
    ]
    more = [c + 10 * (i == label) for i, c in enumerate(counted)]

    assert all(np.diff(reached) >= -1e-12)
    assert certify(more, 2, label).radius >= certify(counted, 2, label).radius - 1e-12


def equation(p, others, t, r):
    """Naively: the class's probability less the bound of the least of t others, at distance r."""
    together = min(sum(sorted(others)[:t]), 1 - p)
    return norm.cdf(norm.ppf(p) - r) - norm.cdf(norm.ppf(together) + r) / t


@many
@given(st.floats(0.2, 0.95), st.lists(st.floats(0.001, 0.3), min_size=1, max_size=5))
def test_the_radius_solves_the_equation(p, others):
    others = sorted(others, reverse=True)

    r = _top.radius(1 - p, others, sigma=1.0)

    ends = [equation(p, others, t, r) for t in range(1, len(others) + 1)]
    assert r <= 0 or max(ends) == pytest.approx(0, abs=1e-10)


# The guarantee: a line cut into classes, whose probabilities under noise are known.

CUTS = np.array([-1.5, -0.25, 0.25, 1.0])  # five classes
FAR, REPEATS, ALPHA, DRAWS = 4.0, 2000, 0.1, 300
LIMIT = ALPHA + 4 * (ALPHA * (1 - ALPHA) / REPEATS) ** 0.5


def sound(counted, k, label, times=1):
    return certify(counted, k, label, alpha=times * ALPHA).radius


def of_counts(counted, k, label):
    """A control: shares of votes for the other classes, in place of their bounds."""
    others = sorted((np.delete(counted, label) / DRAWS + 1e-12).tolist(), reverse=True)[:k]
    return _top.radius(
        bounds.complement(int(counted[label]), DRAWS, ALPHA / (k + 1)), others, sigma=1.0
    )


def false(p, k, label, certificate, true):
    """The share of certificates that reach further than the truth."""
    drawn = np.random.default_rng(0).multinomial(DRAWS, p, size=REPEATS)
    return np.mean([certificate(one, k, label) > true + 1e-9 for one in drawn])


@pytest.mark.parametrize(("x", "label", "k"), [(0.4, 3, 2), (0.2, 2, 3), (-0.3, 0, 2), (1.2, 4, 1)])
def test_at_most_alpha_of_the_certificates_of_a_classifier_are_false(x, label, k):
    def probabilities(x):
        return np.diff([0, *norm.cdf(CUTS - x), 1])

    def ahead(r):
        sides = (probabilities(x + r), probabilities(x - r))
        return min(p[label] - np.sort(np.delete(p, label))[-k] for p in sides)

    far = brentq(ahead, 0, FAR) if ahead(0.0) > 0 > ahead(FAR) else 0.0
    assert false(probabilities(x), k, label, sound, far) <= LIMIT


def attainable(p, k):
    """What exact probabilities certify for class 0: the worst classifier has no larger radius."""
    return max(0.0, _top.radius(1 - p[0], sorted(p[1:], reverse=True)[:k], sigma=1.0))


SEVERAL = [(0.5, 0.5), (0.4, 0.3, 0.3), (0.6, 0.2, 0.2), (0.3, 0.3, 0.3, 0.1)]


@pytest.mark.parametrize("p", SEVERAL)
def test_at_most_alpha_of_the_bounds_are_better_than_the_probabilities(p):
    k = min(2, len(p) - 1)
    assert false(p, k, 0, sound, attainable(p, k)) <= LIMIT


def test_the_simulation_sees_what_is_false():
    """Counts in place of bounds, and bounds that fail five times as often."""
    assert false(SEVERAL[0], 1, 0, of_counts, attainable(SEVERAL[0], 1)) > LIMIT
    careless = partial(sound, times=5)
    assert false(SEVERAL[1], 2, 0, careless, attainable(SEVERAL[1], 2)) > LIMIT


def test_a_table_says_top_k_of_the_label_or_else_of_the_first_round():
    head = header(images=3, classes=["a", "b", "c", "d"], n=1000)
    seen = [400, 300, 250, 50]
    rows = [row(0, 2, [10, 0, 0, 0], seen), row(1, -1, [0, 10, 0, 0], seen)]
    rows.append(row(2, 3, [10, 0, 0, 0], seen))

    found = _top.table(head, rows, k=3, alpha=0.01)

    assert found["predict"].tolist() == [2, 1, ABSTAIN] and found["top"].tolist() == [3, 3, 3]
    assert found["n_A"].tolist() == [250, 300, 50] and found["correct"].tolist() == [1, 0, 0]
    unread = row(3, 0, [], stop="budget")
    assert _top.table(head, [unread], k=3, alpha=0.01)["predict"].tolist() == [ABSTAIN]
    none = replace(head, classes=["a", "b", "c", NO_CLASS])  # its draws were made all the same
    of_none = _top.table(none, [row(0, -1, [0, 0, 0, 9], seen), rows[0]], k=1, alpha=0.01)
    assert of_none["n"].tolist() == [1000, 1000] and of_none["radius"][0] == 0
    for k, alpha, said in ((4, 0.01, "1 to 3"), (0, 0.01, "1 to 3"), (1, 2.0**-1000, "all would")):
        with refused(CertificateError, said):
            _top.table(head, rows, k=k, alpha=alpha)


def test_any_stopping_rule_bounds_each_class_at_its_part_of_alpha():
    rule = fixed(1000, anytime.Rule, tolerance=0.1, beta=0.001)
    looks = [[80, 15, 5], [100, 15, 10], [120, 20, 20]]
    level = 0.001 / 3

    got = certify(looks, 2, 0, rule)

    q = rule.complement([(100, 80), (125, 100), (160, 120)], level)
    one = rule.complement([(100, 85), (125, 110), (160, 140)], level)
    other = rule.complement([(100, 95), (125, 115), (160, 140)], level)
    wanted = _top.radius(q, sorted([one, other], reverse=True), sigma=1.0)
    assert got.radius == pytest.approx(wanted, rel=1e-12) and got.radius > 0
