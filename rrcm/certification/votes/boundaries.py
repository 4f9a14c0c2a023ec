"""Rules that stop once each radius of a table is decided, and spend alpha exactly over all looks.

For each of a list of radii, hits are compared with a boundary at every look. The boundaries are
computed by a recursion over the hits that are still undecided, so that their joint error is alpha
and nothing is lost to inequalities (eq. 56). Source of the idea: Lan & DeMets (1983), Biometrika
70; of testing a list of radii in order, each at full alpha: fixed-sequence tests. The rules differ
in their `Pace`.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy.special import gammaln

from rrcm.certification.votes.bounds import complement
from rrcm.certification.votes.bounds import radius as radius_of
from rrcm.certification.votes.counts import Claim, History, ImageVotes
from rrcm.certification.votes.sequential import OfTable, Table, efficacy_bound
from rrcm.core.errors import ConfigError

FIRST, PER_DECADE = 100, 80  # the first look, and looks while draws grow tenfold,
LEAST_STEP = 16  # but not after every few draws
MOST_DRAWS = 10**7
BEND = 0.8  # looks become a little denser towards n, where most draws are made
PER_SIGMA = 64  # radii that can be certified between those of the table
WIDTH = 9.5, 60.0  # deviations and draws around the mean beyond which all is neglected:
NEGLECTED = 1e-13  # less than that, of all looks together
ROUNDING = 1e-9  # relative error of the recursion's sums in float64, generously


class Pace(NamedTuple):
    """How fast alpha and beta are spent: a share (t / n)^``power`` of each after t < n draws."""

    alpha: float
    beta: float
    power: float


class Rule(OfTable):
    """Draws while a radius of the table is neither certified nor out of reach."""

    nested = False
    packed = True
    pace: Pace

    def __init__(self, cfg: Table, *, n: int, claim: Claim) -> None:
        name = type(self).__module__.rpartition(".")[2]
        if claim.certificate.READS != {"hits"} or hasattr(claim.certificate, "NORM"):
            other = claim.certificate.__name__.rpartition(".")[2]
            raise ConfigError(
                f"stopping rule {name} does not go with the certificate {other}: its boundaries "
                "are those of radii of the certificate cohen; use the rule grid"
            )
        if n > MOST_DRAWS:
            raise ConfigError(
                f"n: boundaries of the rule {name} take minutes beyond {MOST_DRAWS:,} draws, got "
                f"{n:,}; use the rule anytime"
            )
        self.cfg, self.claim = cfg, claim
        self.looks = looks(n)
        self._place = {look: i for i, look in enumerate(self.looks)}

    def gives_up(self, radius: float, votes: ImageVotes) -> bool:
        """Whether a look so far gives up a radius."""
        levels, q = self.levels(self.claim.alpha), _q(radius, sigma=self.claim.sigma)
        if q not in levels.qs:  # not even n hits among n draws certify it
            return True
        most = int(levels.most[levels.qs.index(q), -1])
        at, misses = self._seen(votes.history(votes.c_A))
        return bool((misses >= hopeless(self.looks, most, self.cfg.beta, self.pace)[at]).any())

    def complement(self, history: History, alpha: float) -> float:
        """Upper bound of 1 - p: that of the last radius that the boundaries certify (eq. 56).

        Nothing is claimed of numbers of draws that are no look of the rule.
        """
        levels, (at, misses) = self.levels(alpha), self._seen(history)
        # What certifies a radius certifies all smaller ones, so counting finds the largest.
        passed = int((misses <= levels.most[:, at]).sum(axis=0).max(initial=0))
        return levels.qs[passed - 1] if passed else 1.0

    def levels(self, alpha: float) -> "Levels":
        """What can be claimed at ``alpha``, and from how few misses."""
        return _levels(self.looks, tuple(self.cfg.radii), self.claim.sigma, alpha, self.pace)

    def _seen(self, history: History) -> tuple[np.ndarray, np.ndarray]:
        """Places of the looks, and misses there."""
        seen = [(self._place[t], t - hits) for t, hits in history if t in self._place]
        at, misses = np.array(seen, dtype=np.int64).reshape(-1, 2).T
        return at, misses


@lru_cache(maxsize=64)
def looks(n: int) -> tuple[int, ...]:
    """Numbers of draws at which to look: `FIRST` to n, denser towards n."""
    if n <= FIRST:
        return (n,)
    count, found = math.ceil(PER_DECADE * math.log10(n / FIRST)) + 1, [FIRST]
    for i in range(1, count):
        look = round(FIRST * (n / FIRST) ** ((i / count) ** BEND))
        if found[-1] + LEAST_STEP <= look <= n - LEAST_STEP:
            found.append(look)
    return (*found, n)


def _q(radius: float, *, sigma: float) -> float:
    """The largest bound of 1 - p that certifies ``radius``, rounded down."""
    return efficacy_bound(radius, sigma=sigma) * (1 - 1e-12)


@dataclass(frozen=True, slots=True)
class Levels:
    """Bounds ``qs`` [Q] of 1 - p, descending, and the most misses [Q, L] that certify each."""

    qs: tuple[float, ...]
    most: np.ndarray


@lru_cache(maxsize=64)
def _levels(
    looks: tuple[int, ...], table: tuple[float, ...], sigma: float, alpha: float, pace: Pace
) -> Levels:
    least = complement(looks[-1], looks[-1], alpha)  # nothing below it can be certified
    end = max(0.0, radius_of(least, sigma=sigma))
    between = (i * sigma / PER_SIGMA for i in range(int(end / sigma * PER_SIGMA) + 1))
    qs = {_q(radius, sigma=sigma) for radius in (*table, *between)}
    found = tuple(sorted((q for q in qs if q > least), reverse=True))
    return Levels(found, boundaries(looks, found, alpha, pace))


def boundaries(
    looks: tuple[int, ...], qs: tuple[float, ...], alpha: float, pace: Pace
) -> np.ndarray:
    """The most misses [Q, L] at each look that certify 1 - p <= q, descending; -1 where none do.

    Guarantee: for each q, if the true 1 - p is q or more, the probability that any look has so few
    misses is at most ``alpha``. Non-increasing along Q, so that what certifies one q also certifies
    all larger ones.
    """
    rows = [_most_misses(looks, q, alpha, pace) for q in qs]
    most = np.array(rows, dtype=np.int64).reshape(len(qs), len(looks))
    return np.minimum.accumulate(most, axis=0)


def _most_misses(looks: tuple[int, ...], q: float, alpha: float, pace: Pace) -> list[int]:
    """m [L] of eq. 56a, for one ``q``."""
    m, n, spent = [], looks[-1], 0.0
    for t, walk in _undecided(looks, q):
        reached = np.cumsum(walk.p)
        pace_t = pace.alpha * (t / n) ** pace.power if t < n else 1.0
        a = (1 - ROUNDING) * alpha * pace_t - NEGLECTED
        count = int(np.searchsorted(reached, a - spent, side="right"))
        m.append(walk.first + count - 1 if count else -1)
        spent += float(reached[count - 1]) if count else 0.0
        walk.p[:count] = 0.0
    return m


@lru_cache(maxsize=1 << 10)
def hopeless(looks: tuple[int, ...], most: int, beta: float, pace: Pace) -> np.ndarray:
    """The fewest misses [L] at each look that give up certifying with ``most`` misses in the end.

    Guarantee: an image with ``most`` misses or fewer among n draws has as many at any look with
    probability at most ``beta``, whatever p is.
    """
    n = looks[-1]
    if not 0 <= most < n:
        return np.zeros(len(looks), dtype=np.int64)
    q = max(most, 1e-9) / n
    log_p_total, boundary, spent_beta = _log_pmf(np.array(most), n, q), [], 0.0
    for t, walk in _undecided(looks, q):
        misses = walk.first + np.arange(len(walk.p))
        left = np.where(misses <= most, most - misses, 0)
        after = np.where(misses <= most, np.exp(_log_pmf(left, n - t, q) - log_p_total), 0.0)
        lost = np.cumsum((walk.p * after)[::-1])  # most misses first
        pace_t = pace.beta * (t / n) ** pace.power
        level = beta * pace_t * (1 - ROUNDING) - NEGLECTED - spent_beta
        count = int(np.searchsorted(lost, level, side="right")) if t < n else 0
        end = len(walk.p) - count
        boundary.append(min(walk.first + end, most + 1) if t < n else most + 1)
        spent_beta += float(lost[count - 1]) if count else 0.0
        walk.p[end:] = 0.0
    return np.array(boundary, dtype=np.int64)


@dataclass(slots=True)
class _Walk:
    """The probability ``p`` [i] of ``first + i`` misses, without having been decided before."""

    first: int
    p: np.ndarray


def _undecided(looks: Sequence[int], q: float) -> Iterator[tuple[int, _Walk]]:
    """Each look, with the misses of probability ``q``; what the caller sets to 0 is decided."""
    walk, before = _Walk(0, np.ones(1)), 0
    for t in looks:
        low, high = _window(t - before, q)
        pmf = np.exp(_log_pmf(np.arange(low, high + 1), t - before, q))
        walk.p, walk.first = np.convolve(walk.p, pmf), walk.first + low
        low, high = _window(t, q)
        start = max(0, low - walk.first)
        walk.p = walk.p[start : max(start, high - walk.first) + 1]
        walk.first += start
        yield t, walk
        before = t


def _window(draws: int, q: float) -> tuple[int, int]:
    """Misses outside of which less than NEGLECTED / 1000 lies, by Bernstein's inequality."""
    deviations, more = WIDTH
    width = deviations * math.sqrt(draws * q * (1 - q)) + more
    return max(0, math.floor(draws * q - width)), min(draws, math.ceil(draws * q + width))


def _log_pmf(misses: np.ndarray, draws: int, q: float) -> np.ndarray:
    ways = gammaln(draws + 1) - gammaln(misses + 1) - gammaln(draws - misses + 1)
    return ways + misses * math.log(q) + (draws - misses) * math.log1p(-q)
