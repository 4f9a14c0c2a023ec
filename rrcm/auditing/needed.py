"""The least alpha that a certificate needs: no votes give more than unanimous ones do.

If all of n draws vote for a class, its probability is above p except with probability p^n (eq. 11).
Every rule and certificate of this project gives that or less, at its full alpha. So it also limits
radii of which the level, the rule or the runner-up's votes are unknown.
"""

import numpy as np
import pandas as pd
from scipy.special import betainc, log_ndtr, ndtri

from rrcm.certification.certify import DIGITS

STEP = 10.0**-DIGITS  # by which p_A and radius may be rounded down
SLACK = 1e-10  # relative error of special functions
LAXEST = 0.5  # no certificate has an alpha above it: it would be wrong more often than right
COLUMNS = ("radius", "radius_cohen", "radius_two_class")


def of_rows(table: pd.DataFrame, *, adaptive: bool, sigma: float | None) -> np.ndarray:
    """The least alpha [N] that each row needs for its ``p_A``, and at ``sigma`` for its radii.

    If drawing was ``adaptive``, an earlier look may have had all votes for the class and no other.
    """
    k, n, p = (numbers(table[name]) for name in ("n_A", "n", "p_A"))
    claims = (k > 0) & (k <= n) & (p > 0) & (p <= 1)
    hits, draws, bound = (np.where(claims, one, 1.0) for one in (k, n, p))
    alphas = bound**hits if adaptive else betainc(hits, draws - hits + 1, bound)
    alphas = np.where(claims, alphas, 0.0)
    if sigma is None:
        return alphas
    for name in COLUMNS:
        if name in table:
            r = numbers(table[name])
            alphas = np.where(r > 0, np.maximum(alphas, _unanimous(r / sigma, n)), alphas)
    z = ndtri(np.where(claims, np.minimum(p + STEP, 1), 0.5))
    r = numbers(table["radius"]) / sigma
    larger = claims & (r * (1 - SLACK) > z * (1 + SLACK))  # as two_class with few other votes
    of_two = np.where(k < n, _unanimous(2 * r - z, n), 1.0)  # without any, it has the same bound
    return np.where(larger, np.maximum(alphas, of_two), alphas)


def numbers(column: pd.Series) -> np.ndarray:
    """A column of any type as float64 [N]; NaN where it has no number."""
    return pd.to_numeric(column, errors="coerce").to_numpy(dtype=np.float64)


def _unanimous(z: np.ndarray, n: np.ndarray) -> np.ndarray:
    """The alpha at which n unanimous votes give Phi^-1(p) = z."""
    return np.exp(n * log_ndtr(z * (1 - SLACK)))
