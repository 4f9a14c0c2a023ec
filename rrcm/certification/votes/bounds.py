"""Confidence bounds of a probability from votes, in float64.

Large radii need p near 1, where 1 - p must be precise: most functions take and return complements,
q = 1 - p. Equation numbers are those of docs/theory.md.
"""

import math
from functools import lru_cache
from numbers import Real

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq
from scipy.special import betainc, betaincc, betainccinv, betaln, ndtri

from rrcm.core.errors import CertificateError

ROUGH = 0.1  # relative error of alpha at which a quantile is not taken as it is
EXACT = 1e-12  # relative error of alpha at which Newton's iteration ends
UP = 1 + 2**-50  # more than the rounding of a closed form, which is two or three units of 2^-53


def complement(k: int, n: int, alpha: float) -> float:
    """Clopper–Pearson (eq. 11): P[1 - p <= bound] >= 1 - alpha, whatever p is; rounded up.

    For k ~ Binomial(n, p). One minus the lower bound of p, without cancellation where k is near n.

    Raises:
        CertificateError: k, n or alpha are outside the conditions of the theorem.
    """
    _require(k, n, alpha)
    if k == 0:
        return 1.0
    if k == n:
        return min(1.0, -math.expm1(math.log(alpha) / n) * UP)
    # scipy's inverse errs by up to 6e-8 of the bound at n = 10^7 and 4e-4 at 10^8, but its beta
    # function by 2e-11 of alpha at 10^9 (tests/certification/test_bounds.py): so Newton's steps
    # refine it.
    a, b = n - k + 1, k
    q = float(beta_quantile(a, b, alpha))
    for _ in range(8):
        if q >= 1:  # as near to it as float64 comes
            return 1.0
        excess = float(betaincc(a, b, q)) / alpha - 1
        if abs(excess) < EXACT:
            break
        density = math.exp((a - 1) * math.log(q) + (b - 1) * math.log1p(-q) - betaln(a, b))
        q += excess * alpha / density
    return min(1.0, q * (1 + 2 * EXACT + 4e-20 * n))  # up by more than its float64 error


def beta_quantile(a: ArrayLike, b: ArrayLike, alpha: ArrayLike) -> np.ndarray:
    """The q of eq. 11, P[Beta(a, b) > q] = alpha, nearly, of arrays; NaN unless 0 < a and 0 < b.

    scipy's inverse is checked, as it is another number for a = 1000 and some b from 9,090 to 86,577
    (scipy 1.17.1).
    """
    a, b, alpha = np.broadcast_arrays(a, b, alpha)
    q = np.array(betainccinv(a, b, alpha))
    wrong = (a > 0) & (b > 0) & ~(np.abs(betaincc(a, b, q) / alpha - 1) < ROUGH)
    for at in map(tuple, np.argwhere(wrong)):
        q[at] = brentq(
            lambda x, at=at: betaincc(a[at], b[at], x) - alpha[at], 0, 1, xtol=1e-300, rtol=1e-12
        )
    return q


def log_wealth(H: int, T: int, q: float) -> float:
    """Evidence against p <= 1 - q after H hits in T draws: log of the mixture of eq. 16.

    Guarantee: if p <= 1 - q, the probability that it ever reaches log(1 / alpha), at any T, is at
    most alpha. Where positive, it is non-decreasing in H and q.
    """
    if T - H >= T * q:  # no evidence; and betainc would underflow
        return -math.inf
    return float(
        betaln(T - H + 0.5, H + 0.5)
        + math.log(betainc(T - H + 0.5, H + 0.5, q))
        - math.log(2 * math.asin(math.sqrt(q)))
        - H * math.log1p(-q)
        - (T - H) * math.log(q)
    )


@lru_cache(maxsize=1 << 16)
def mixture_complement(H: int, T: int, alpha: float) -> float:
    """Upper bound of 1 - p from the mixture (eq. 17), rounded up; never below `complement`.

    Guarantee: it holds for all T simultaneously, hence at any stopping time, with probability at
    least ``1 - alpha``. Decreasing in H and in alpha.
    """
    _require(H, T, alpha)
    # Logarithms of T factors are summed in float64: require their error on top.
    enough = -math.log(alpha) + 1e-13 * T
    low = high = complement(H, T, alpha)
    while high < 1 and log_wealth(H, T, high) < enough:
        low, high = high, min(2 * high, (1 + high) / 2)
    if high >= 1:
        return 1.0
    # brentq needs finite values, also where there is no evidence.
    root = brentq(
        lambda q: max(log_wealth(H, T, q), -1.0) - enough, low, high, xtol=1e-300, rtol=1e-12
    )
    return min(1.0, root * (1 + 4e-12))


def radius(q: float, *, sigma: float) -> float:
    r"""``sigma * Phi^-1(1 - q)`` (eq. 12): the radius for p_A >= 1 - q, in the units of sigma.

    Negative if q > 1/2, infinite for q = 0 or 1.

    Raises:
        CertificateError: sigma is not positive, or one is no number.
    """
    if not (isinstance(q, Real) and isinstance(sigma, Real) and sigma > 0):
        raise CertificateError(f"sigma must be positive, got {sigma!r}; of 1 - p = {q!r}")
    return -sigma * float(ndtri(q))


def _require(k: int, n: int, alpha: float) -> None:
    try:
        valid = 0 <= k <= n and n > 0 and k % 1 == n % 1 == 0 and 0 < alpha < 1
    except TypeError:  # text
        valid = False
    if not valid:
        raise CertificateError(
            f"need 0 <= k <= n, n > 0, whole, and 0 < alpha < 1; got {k=}, {n=}, {alpha=}"
        )
