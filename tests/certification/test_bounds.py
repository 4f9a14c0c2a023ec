"""Bounds of a probability are sound, as tight as they say, and precise where p is near 1."""

import math

import mpmath
import numpy as np
import pytest
from builders import many, refused
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import binom, binomtest, norm

from rrcm.certification.votes import bounds
from rrcm.core.errors import CertificateError


def bound(k, n, alpha):
    """The lower bound of p."""
    return 1 - bounds.complement(k, n, alpha)


alphas = st.floats(1e-6, 0.5)
counts = st.integers(1, 100_000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


@many
@given(counts, alphas)
def test_bounds_agree_with_scipy(kn, alpha):
    k, n = kn

    interval = binomtest(k, n).proportion_ci(1 - 2 * alpha, method="exact")

    assert bound(k, n, alpha) == pytest.approx(interval.low, abs=1e-9)


def exact_complement(misses, n, alpha):
    """The q with P[Binomial(n, q) <= misses] = alpha, to 40 digits."""

    def excess(q):
        term = mpmath.binomial(n, misses) * q**misses * (1 - q) ** (n - misses)
        total = mpmath.mpf(0)
        for j in range(misses, -1, -1):
            total += term
            if term < total * mpmath.mpf(10) ** -35:
                break
            term *= j * (1 - q) / ((n - j + 1) * q)
        return mpmath.log(total / mpmath.mpf(alpha))

    start = mpmath.mpf(bounds.complement(n - misses, n, alpha))
    return mpmath.findroot(excess, (start, start * (1 + mpmath.mpf(10) ** -9)), verify=False)


@pytest.mark.parametrize("n", [*(10**power for power in range(2, 9)), 10_089, 87_576])
def test_complements_are_rounded_up_at_every_n(n):
    """Above the exact bound, as scipy's inverse alone is not from n = 10^5 on, and by a hair.

    At 999 misses of 10,089 it is 0.25, not 0.11.
    """
    with mpmath.workdps(40):
        for misses in (1, 10, 99, 999):
            for alpha in (0.05, 0.001, 0.0005, 1e-5):
                if misses < n // 2:
                    exact = exact_complement(misses, n, alpha)
                    share = bounds.complement(n - misses, n, alpha) / exact - 1
                    assert 0 <= share <= 1e-11


@pytest.mark.parametrize("n", [1, 2, 29, 1000, 10**5, 10**8])
def test_complements_of_unanimous_votes_are_rounded_up(n):
    """Also of no vote, and where the bound is nearer to 1 than float64 can tell."""
    with mpmath.workdps(50):
        for alpha in (0.999, 0.5, 0.05, 0.001, 0.0005, 1e-5, 1e-12):
            exact = 1 - mpmath.mpf(alpha) ** (mpmath.mpf(1) / n)
            assert 0 <= bounds.complement(n, n, alpha) / exact - 1 <= 2e-15
            assert bounds.complement(0, n, alpha) == 1
    assert bounds.complement(1, 10**7, 1e-12) == 1


@pytest.mark.parametrize("of", [bounds.complement, bounds.mixture_complement])
def test_a_bound_needs_its_conditions(of):
    with refused(CertificateError, "need 0 <= k <= n", "got k='5', n=10, alpha=0.1"):
        of("5", 10, 0.1)
    for k, n, alpha in [
        (11, 10, 0.1),
        (9.5, 10, 0.1),
        (-1, 10, 0.1),
        (0, 0, 0.1),
        (5, 10, 1.0),
        (5, 10, math.nan),
    ]:
        with refused(CertificateError, "need 0 <= k <= n", f"got k={k}, n={n}, alpha={alpha}"):
            of(k, n, alpha)


# The one-sided mixture.


@pytest.mark.parametrize(("H", "T"), [(1, 1), (9, 10), (30, 40), (12, 40)])
@pytest.mark.parametrize("p", [0.05, 0.5, 0.97])
def test_wealth_is_the_average_likelihood_ratio_over_larger_p(H, T, p):
    """Of the arcsine prior, cut off below p: p' = sin^2(a), with a uniform."""
    least = math.asin(math.sqrt(p))

    def ratio(a):
        larger = math.sin(a) ** 2
        return (larger / p) ** H * ((1 - larger) / (1 - p)) ** (T - H)

    expected = quad(ratio, least, math.pi / 2)[0] / (math.pi / 2 - least)
    got = math.exp(bounds.log_wealth(H, T, 1 - p))

    assert got == (pytest.approx(expected, rel=1e-9) if H > T * p else 0)


@pytest.mark.parametrize("p", [0.05, 0.5, 0.999])
@pytest.mark.parametrize("share", [1.0, 0.9])
def test_wealth_is_at_most_one_on_average_if_p_is_no_larger(p, share):
    """So it is never large for long: the fair game that Ville's inequality is about."""
    for T in (1, 7, 300):
        H = np.arange(T + 1)
        wealth = np.array([bounds.log_wealth(h, T, 1 - p) for h in H.tolist()])
        mean = np.exp(wealth + binom.logpmf(H, T, share * p)).sum()

        assert mean <= 1 + 1e-9
        assert mean > 0.5 or share < 1  # little is given away at the edge itself


@many
@given(counts, st.floats(-12, 12), st.floats(0.01, 4))
def test_evidence_grows_with_hits_and_as_p_falls(kn, logit, step):
    """Where there is any; so a threshold is crossed once, and all smaller p are excluded too."""
    H, T = kn
    q, larger = 1 / (1 + math.exp(-logit)), 1 / (1 + math.exp(-logit - step))
    wealth = bounds.log_wealth(H, T, q)
    rounding = 1e-13 * T
    assume(wealth > 1e-6)

    assert bounds.log_wealth(H, T, larger) >= wealth - rounding
    assert H == T or bounds.log_wealth(H + 1, T, q) >= wealth - rounding
    assert bounds.log_wealth(H + 1, T + 1, q) >= wealth - rounding


@many
@given(counts, st.floats(1e-6, 0.9))
def test_mixture_bound_is_where_the_evidence_is_enough(kn, alpha):
    H, T = kn

    q = bounds.mixture_complement(H, T, alpha)

    assert q >= bounds.complement(H, T, alpha)  # Clopper-Pearson is for one T only
    assert q == 1 or bounds.log_wealth(H, T, q) >= -math.log(alpha)
    assert q > 0.999 or bounds.log_wealth(H, T, q * (1 - 1e-6)) < -math.log(alpha)


# Radius.


@many
@given(st.floats(1e-300, 1 - 1e-9), st.floats(0.01, 10))
def test_radius_is_precise_for_tiny_complements(q, sigma):
    assert bounds.radius(q, sigma=sigma) == pytest.approx(sigma * norm.isf(q), rel=1e-12, abs=1e-14)


def test_sigma_must_be_positive():
    for sigma in (0.0, math.nan, "0.5"):
        with refused(CertificateError, f"sigma must be positive, got {sigma!r}"):
            bounds.radius(0.1, sigma=sigma)
