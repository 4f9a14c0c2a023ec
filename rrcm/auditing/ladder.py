"""The ladder of quantiles Phi^-1(p) of the Clopper-Pearson bounds p of n votes, and its rungs."""

from functools import lru_cache

import numpy as np
from scipy.special import ndtr, ndtri
from scipy.stats import binom

from rrcm.certification.votes.bounds import beta_quantile

_TOPS = 1_000  # largest rungs, which are computed once


def rung(k: np.ndarray, n: int, alpha: float) -> np.ndarray:
    """Phi^-1 of the Clopper-Pearson bound of k hits; -inf for none."""
    some = np.maximum(k, 1)
    return np.where(k > 0, -ndtri(beta_quantile(n - some + 1, some, alpha)), -np.inf)


@lru_cache(maxsize=1 << 10)
def tops(n: int, alpha: float) -> np.ndarray:
    """`rung` of the most hits, ascending."""
    return rung(np.arange(max(0, n - _TOPS), n + 1), n, alpha)


def around(
    z: np.ndarray, step: np.ndarray, n: int, alpha: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The most hits k whose `rung` is at most z, that rung and the next; the last two for k = n.

    Where rungs lie closer than ``step``, z and z + step stand for them.
    """
    most = tops(n, alpha)
    place = np.searchsorted(most, z, side="right") - 1
    lower = np.clip(place, 0, len(most) - 2)
    k, low, high = place + n + 1 - len(most), most[lower], most[lower + 1]
    close = (place < 0) & (most[1] - most[0] <= step)  # rungs are the closer the lower
    low, high = np.where(close, z, low), np.where(close, z + step, high)
    if (deep := (place < 0) & ~close).any():
        k[deep] = np.clip(binom.isf(alpha, n, ndtr(z[deep])), 0, n - 1)
        low[deep], high[deep] = rung(k[deep], n, alpha), rung(k[deep] + 1, n, alpha)
    return k, low, high
