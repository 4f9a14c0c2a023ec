"""The certificate of Cohen et al. (2019) is sound, tight, and keeps to its terms."""

import math
from functools import cache

import numpy as np
import pytest
from builders import many, refused
from helpers import few
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest, norm

from rrcm.certificates import cohen
from rrcm.errors import CertificateError

bound = cohen.lower_confidence_bound
alphas = st.floats(1e-6, 0.5)
counts = st.integers(1, 100_000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))
tables = st.lists(st.integers(0, 500), min_size=2, max_size=9).filter(lambda c: sum(c) >= 20)


def certify(counts0, counts, sigma=1.0, alpha=0.001):
    return cohen.certify(np.array(counts0), np.array(counts), sigma=sigma, alpha=alpha)


def test_bound_is_sound_and_tight_against_simulation():
    """At p = bound, k or more successes happen with probability alpha: no more, no less."""
    rng = np.random.default_rng(0)
    for k, n, alpha in [(70, 100, 0.05), (950, 1000, 0.01), (500, 1000, 0.001)]:
        p = bound(k, n, alpha)

        assert (rng.binomial(n, p, size=1_000_000) >= k).mean() == pytest.approx(alpha, rel=0.1)


@many
@given(counts, alphas)
def test_bound_agrees_with_scipy(kn, alpha):
    k, n = kn

    expected = binomtest(k, n).proportion_ci(1 - 2 * alpha, method="exact").low

    assert bound(k, n, alpha) == pytest.approx(expected, abs=1e-9)


@many
@given(counts, alphas)
def test_more_votes_never_lower_the_bound(kn, alpha):
    k, n = kn

    assert bound(k, n, alpha) <= bound(k + 1, n + 1, alpha)
    assert k == n or bound(k, n, alpha) <= bound(k + 1, n, alpha)


@many
@given(counts, alphas, alphas)
def test_more_certainty_never_raises_the_bound(kn, a, b):
    assert bound(*kn, min(a, b)) <= bound(*kn, max(a, b)) <= kn[0] / kn[1]


@many
@given(st.integers(1, 10**6), alphas)
def test_bound_has_closed_forms_at_its_ends(n, alpha):
    assert bound(n, n, alpha) == pytest.approx(alpha ** (1 / n), rel=1e-15)
    assert bound(0, n, alpha) == 0


@many
@given(counts, alphas)
def test_complement_is_one_minus_the_bound(kn, alpha):
    assert cohen.complement(*kn, alpha) == pytest.approx(1 - bound(*kn, alpha), abs=1e-12)


@pytest.mark.parametrize("n", [10, 10**4, 10**7])
def test_complement_is_precise_where_one_minus_the_bound_is_not(n):
    """With q = complement(n - 1, n), n - 1 or n successes have a probability of alpha exactly."""
    q = cohen.complement(n - 1, n, 0.001)

    at_least = math.exp(n * math.log1p(-q)) * (1 + n * q / (1 - q))

    assert at_least == pytest.approx(0.001, rel=1e-10)
    assert cohen.complement(n, n, 0.001) == pytest.approx(-math.expm1(math.log(0.001) / n))


@pytest.mark.parametrize(
    ("n", "ceiling"), [(1_000, 2.4632626), (10_000, 3.1985775), (100_000, 3.8114566)]
)
def test_a_unanimous_vote_has_the_largest_radius(n, ceiling):
    """Golden: R / sigma = ndtri(alpha^(1/n)), the end of every published curve."""
    assert certify([0, 1], [0, n]).radius == pytest.approx(ceiling, abs=1e-7)
    assert certify([0, 1], [1, n - 1]).radius < ceiling - 0.05


def test_curves_at_a_quarter_end_where_published_ones_do():
    votes = [0, 100_000]

    assert certify(votes, votes, sigma=0.25).radius == pytest.approx(0.9529, abs=5e-5)


@cache
def of(chosen, votes, n, alpha):
    """The certificate when ``chosen`` of two classes leads and class 1 has ``votes`` of n."""
    return certify([1 - chosen, chosen], [n - votes, votes], alpha=alpha)


def share_of_false_certificates(p, *, alpha, peek=False):
    """Of many images on which class 1 has probability p, smoothed at sigma = 1, whose margin is
    ndtri(p). ``peek`` chooses the class from the votes that bound its probability.
    """
    rng, n0, n, repeats = np.random.default_rng(0), 20, 1000, 100_000
    votes0, votes = rng.binomial(n0, p, repeats), rng.binomial(n, p, repeats)
    chosen = votes > n / 2 if peek else votes0 > n0 / 2
    cases, times = np.unique(np.stack([chosen, votes]), axis=1, return_counts=True)
    margin = norm.ppf([1 - p, p])  # of class 0, of class 1
    false = 0
    for (side, k), repeated in zip(cases.T.tolist(), times.tolist(), strict=True):
        got = of(side, k, n, alpha)
        false += repeated * (got.label != cohen.ABSTAIN and got.radius > margin[got.label])
    return false / repeats


LIMIT = 0.01 + 4 * (0.01 * 0.99 / 100_000) ** 0.5  # four standard errors above alpha


@pytest.mark.parametrize("p", [0.5, 0.501, 0.55, 0.7, 0.9, 0.99, 0.999, 1.0])
def test_at_most_alpha_of_certificates_are_false(p):
    assert share_of_false_certificates(p, alpha=0.01) <= LIMIT


def test_the_simulation_sees_what_is_false():
    """Controls: a level twice as loose, and a class chosen by the votes that certify it."""
    assert share_of_false_certificates(0.7, alpha=0.02) > LIMIT
    assert share_of_false_certificates(0.5, alpha=0.01, peek=True) > LIMIT


def test_linear_classifier_is_never_certified_beyond_its_true_margin():
    """For f(x) = [w.x > b] the smoothed margin is exactly |w.x - b| / |w|."""
    rng = np.random.default_rng(0)
    sigma, alpha, false = 0.5, 0.01, 0
    for margin in rng.uniform(0.01, 1.5, size=500):
        votes = (
            np.bincount(margin + sigma * rng.standard_normal(n) > 0, minlength=2)
            for n in (100, 2_000)
        )
        got = certify(*votes, sigma=sigma, alpha=alpha)
        false += got.label == 0 or (got.label == 1 and got.radius > margin)

    assert false <= 15  # Binomial(500, 0.01): P[> 15] < 1e-4


@pytest.mark.parametrize("alpha", [0.5, 0.05, 0.001])
def test_it_abstains_exactly_where_half_cannot_be_excluded(alpha):
    n = 60
    for k in range(n + 1):
        got = certify([0, 1], [n - k, k], alpha=alpha)

        assert (got.n_A, got.n, got.p_A) == (k, n, bound(k, n, alpha))
        assert (got.label == cohen.ABSTAIN) == (got.p_A <= 0.5)
        assert got.radius == pytest.approx(max(0, norm.ppf(got.p_A)) if k else 0, rel=1e-12)
        assert got.label in (cohen.ABSTAIN, 1)


def test_the_class_is_chosen_by_the_first_votes_only():
    """However the others vote: the bound would not hold for a class that they chose."""
    assert certify([3, 2], [0, 100]).label == cohen.ABSTAIN
    assert certify([3, 2], [0, 100]).n_A == 0
    assert certify([3, 2], [100, 0]) == certify([50, 0], [100, 0])
    assert certify([5, 5], [100, 0]).label == 0  # a tie goes to the lowest


@many
@given(tables, tables, st.floats(0.01, 10))
def test_radius_scales_with_sigma(counts0, counts, sigma):
    """Certification has no unit of length of its own."""
    size = min(len(counts0), len(counts))
    votes = [*counts0[:size]], [20, *counts[1:size]]
    one, scaled = certify(*votes), certify(*votes, sigma=sigma)

    assert (scaled.label, scaled.p_A) == (one.label, one.p_A)
    assert scaled.radius == pytest.approx(sigma * one.radius, rel=1e-12)


@few
@given(st.permutations(range(5)), st.integers(1, 200))
def test_renaming_classes_renames_the_answer(names, lead):
    counts0, counts = np.array([3, 9, 1, 0, 2]), np.array([5, 20 + lead, 0, 9, 1])
    order = np.argsort(names)  # class c becomes names[c]

    plain, renamed = certify(counts0, counts), certify(counts0[order], counts[order])

    assert renamed.label == (names[1] if plain.label == 1 else cohen.ABSTAIN)
    assert (renamed.radius, renamed.p_A) == (plain.radius, plain.p_A)


def test_hopeless_numbers_of_votes_are_refused():
    with refused(CertificateError, "9 votes can never certify at alpha = 0.001"):
        certify([0, 1], [0, 9])

    assert certify([0, 1], [0, 10]).label == 1


@pytest.mark.parametrize("sigma", [0.0, -0.25, float("nan")])
def test_sigma_must_be_positive(sigma):
    with refused(CertificateError, f"sigma must be positive, got {sigma}"):
        certify([0, 1], [0, 100], sigma=sigma)


@pytest.mark.parametrize(
    ("k", "n", "alpha"),
    [
        (11, 10, 0.1),
        (-1, 10, 0.1),
        (0, 0, 0.1),
        (5, 10, 0.0),
        (5, 10, 1.0),
        (5, 10, -0.1),
        (5, 10, float("nan")),
    ],
)
def test_a_bound_needs_its_conditions(k, n, alpha):
    with refused(CertificateError, "need 0 <= k <= n", f"got k={k}, n={n}, alpha={alpha}"):
        bound(k, n, alpha)
