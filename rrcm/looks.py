"""When votes are looked at, and what stopping rules share."""

import math
from bisect import bisect_left
from collections.abc import Callable
from functools import lru_cache

from scipy.special import ndtr
from scipy.stats import hypergeom

from rrcm.bounds import complement
from rrcm.errors import ConfigError
from rrcm.evidence import History

R10 = (100, 125, 160, 200, 250, 315, 400, 500, 630, 800)  # preferred numbers, ISO 3
# Tables round radii down to a millionth: who wants a radius in the table must certify a bit more.
MARGIN = 2e-6


def ladder(n: int) -> tuple[int, ...]:
    """Ten looks to a decade from 100 draws on, all below n, and n itself."""
    steps = (10**decade * step for decade in range(len(str(n))) for step in R10)
    return (*(look for look in steps if look < n), n)


def target(radius: float, *, sigma: float) -> float:
    """The complement that shows as ``radius`` in a table: 1 - p for p = Phi(radius / sigma)."""
    return float(ndtr(-(radius + MARGIN) / sigma))


def fewest(draws: int, enough: Callable[[int], bool]) -> int:
    """The fewest hits among ``draws`` that are enough, or draws + 1; more are enough as well."""
    return bisect_left(range(draws + 1), True, key=enough)


@lru_cache(maxsize=1 << 12)
def hope(draws: int, n: int, needed: int, beta: float) -> int:
    """The fewest hits among ``draws`` with which there is hope for ``needed`` among n (eq. 15b).

    Guarantee: of images that would get ``needed`` hits or more, at most a share ``beta`` has fewer
    than this, whatever p is.
    """
    if needed > n:
        return draws + 1
    # Given its hits among n, any order of them is as likely: misses so far are hypergeometric.
    return fewest(draws, lambda k: hypergeom.sf(draws - k - 1, n, n - needed, draws) >= beta)


def needs(looks: tuple[int, ...], q: float, *, alpha: float) -> dict[int, int]:
    """For each look, the last first, the fewest hits that show p > 1 - q there (eq. 11)."""
    return {t: fewest(t, lambda k, t=t: complement(k, t, alpha) < q) for t in reversed(looks)}


def hopeless(draws: int, hits: int, needed: dict[int, int], beta: float) -> bool:
    """Whether there is no hope for what is ``needed`` at any look from now on, n among them.

    So a rule that is laid out for fewer draws gives up no later, and its votes are among those of
    more draws, which can be cut (rrcm/analysis/truncation.py).
    """
    return all(hits < hope(draws, look, k, beta) for look, k in needed.items() if look >= draws)


def at_the_end(history: History, n: int, alpha: float) -> float:
    """Clopper-Pearson after exactly n draws, and no claim, 1, after fewer (eq. 11)."""
    draws, hits = history[-1]
    return complement(hits, draws, alpha) if draws == n else 1.0


def require_level(beta: float) -> None:
    """Refuse a ``beta`` that is no probability of error."""
    if not 0 < beta < 1:
        raise ConfigError(f"beta: must lie in (0, 1), got {beta}")


def require_radius(radius: float, *, key: str) -> None:
    """Refuse a radius that is negative, infinite or not a number."""
    if not 0 <= radius < math.inf:
        raise ConfigError(f"{key}: must be 0 or more pixels, got {radius}")
