"""The certificate of Cohen et al. (2019), arXiv:1902.02918: votes to a radius, in float64.

Symbols are the paper's: c_A the class, n_A its votes among n, p_A a lower bound of its probability.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import betainccinv, betaincinv, ndtri

from rrcm.errors import CertificateError

ABSTAIN = -1


@dataclass(frozen=True, kw_only=True, slots=True)
class Certified:
    """The answer for one image; ``label`` is ABSTAIN and ``radius`` 0 where nothing is certain."""

    label: int
    radius: float
    n_A: int
    n: int
    p_A: float


def lower_confidence_bound(k: int, n: int, alpha: float) -> float:
    """Clopper–Pearson: P[p >= bound] >= 1 - alpha, whatever p is, for k ~ Binomial(n, p)."""
    if not (0 <= k <= n and n > 0 and 0 < alpha < 1):
        raise CertificateError(
            f"need 0 <= k <= n, n > 0 and 0 < alpha < 1; got k={k}, n={n}, alpha={alpha}"
        )
    if k == 0:
        return 0.0
    return alpha ** (1 / n) if k == n else float(betaincinv(k, n - k + 1, alpha))


def complement(k: int, n: int, alpha: float) -> float:
    """``1 - lower_confidence_bound(k, n, alpha)``, without the cancellation where k is near n."""
    if k == n:
        return -math.expm1(math.log(alpha) / n)
    return float(betainccinv(n - k + 1, k, alpha)) if k > 0 else 1.0


def certify(counts0: np.ndarray, counts: np.ndarray, *, sigma: float, alpha: float) -> Certified:
    r"""Certify one image from two independent rounds of noisy votes.

    Guarantee: with probability at least ``1 - alpha`` over ``counts``, either this abstains or the
    smoothed classifier answers ``label`` on the whole open L2 ball of radius (theory.md, eq. 12)

    .. math:: R = \sigma\, \Phi^{-1}(\underline{p_A}).

    Args:
        counts0: Votes that choose the class, [K]. Must be independent of ``counts``.
        counts: Votes that bound its probability, [K].
        sigma: Noise level of both rounds, in the units the radius is wanted in (pixels in [0, 1]).
        alpha: Failure probability.

    Raises:
        CertificateError: No outcome of this many votes could certify anything, or sigma <= 0.
    """
    n = int(counts.sum())
    if not sigma > 0:
        raise CertificateError(f"sigma must be positive, got {sigma}")
    if lower_confidence_bound(n, n, alpha) <= 0.5:
        raise CertificateError(f"{n} votes can never certify at alpha = {alpha}: all would abstain")
    c_A = int(counts0.argmax())
    n_A = int(counts[c_A])
    p_A = lower_confidence_bound(n_A, n, alpha)
    if p_A <= 0.5:
        return Certified(label=ABSTAIN, radius=0.0, n_A=n_A, n=n, p_A=p_A)
    return Certified(
        label=c_A, radius=-sigma * float(ndtri(complement(n_A, n, alpha))), n_A=n_A, n=n, p_A=p_A
    )
