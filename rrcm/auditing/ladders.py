"""Which (n, alpha, sigma) made a table of radii: those of n votes are the rungs of a ladder.

n votes can only give the radii sigma * Phi^-1(p) for the n Clopper-Pearson bounds p (eq. 11, 12).
Where the rungs lie further apart than the table's last decimal, a radius on a rung is evidence for
the ladder, and one between two rungs is evidence against it. Elsewhere a radius says nothing.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal

import numpy as np
from scipy.special import betainccinv, ndtr, ndtri
from scipy.stats import binom

DRAWS = (*(step * 10**power for power in range(2, 6) for step in (1, 2, 5)), 10**6)
ALPHAS = (0.05, 0.025, 0.01, 0.005, 0.0025, 0.001, 0.0005, 0.00025, 0.0001, 0.00005, 0.00001)
SIGMAS = (
    *(0.06, 0.1, 0.12, 0.125, 0.15, 0.2, 0.25, 0.3, 0.35, 0.375, 0.4, 0.5, 0.6, 0.7, 0.75),
    *(0.8, 0.9, 1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0),
)
ROUNDINGS = ("down", "nearest", "up")
ENOUGH = 16.0  # log of the odds that make up for trying 10^4 ladders, and 10^3 besides
ALIKE = 7.0  # log of the odds below which two ladders count as equally good
FEWEST = 5  # different radii, with fewer of which no ladder is claimed
SLIP = 1e-9  # pixels by which special functions may differ
_SOME, _MORE = 16, 300  # radii, the largest ones, that choose candidates and then judge them


@dataclass(frozen=True, kw_only=True, slots=True)
class Ladder:
    """All radii that n votes at level alpha can give under noise sigma, and how they are rounded.

    ``rounding`` is one of ``ROUNDINGS``; a ladder of radii written in full counts as ``nearest``.
    """

    n: int
    alpha: float
    sigma: float
    rounding: str

    def __str__(self) -> str:
        """As people write it."""
        return f"n = {self.n:,}, alpha = {self.alpha:g}, sigma = {self.sigma:g}"

    def ceiling(self) -> float:
        """The radius of unanimous votes; no other is larger."""
        return float(self.sigma * _rung(np.array(self.n), self.n, self.alpha))


@dataclass(frozen=True, kw_only=True, slots=True)
class Fit:
    """Radii against a ladder: hit or not under each rounding, [..., R], and hits by chance.

    ``chance`` is how likely a radius hits that has nothing to do with the ladder, 1 where rungs are
    closer than decimals.
    """

    hit: dict[str, np.ndarray]
    chance: np.ndarray

    def near(self) -> np.ndarray:
        """Which radii are on the ladder under some rounding."""
        return np.any([*self.hit.values()], axis=0)


def units(radii: np.ndarray) -> np.ndarray:
    """The last place to which each radius [R] is written, judged by all of them.

    Either all have the same decimals or the same significant digits: the coarser that fits. Radii
    with more than nine decimals count as written in full, in float32 at least.
    """
    decimals = [Decimal(repr(float(radius))).normalize() for radius in radii]
    places = max((-d.as_tuple().exponent for d in decimals), default=0)
    if places > 9:
        return 2e-7 * radii
    digits = max((len(d.as_tuple().digits) for d in decimals), default=1)
    fixed = np.full(len(radii), 10.0 ** -max(places, 0))
    significant = np.array([10.0 ** (d.adjusted() + 1 - digits) for d in decimals])
    return significant if np.log(significant).sum() > np.log(fixed).sum() + SLIP else fixed


def fit(radii: np.ndarray, unit: np.ndarray, *, n: int, alpha: float, sigma: np.ndarray) -> Fit:
    """Compare radii [R] of last places ``unit`` [R] with the ladders of sigma, [..., 1] or one."""
    sigma = np.asarray(sigma, dtype=np.float64)
    z = np.minimum((radii + SLIP) / sigma, 9.0)
    k = np.clip(binom.isf(alpha, n, ndtr(z)), 0, n)  # the most hits with a bound at or below z
    lower = np.minimum(k, n - 1)
    low, high = sigma * _rung(lower, n, alpha), sigma * _rung(lower + 1, n, alpha)
    below, above = np.where(k == n, high, low), np.where(k == n, np.inf, high)
    hit = {
        "down": (below >= radii - SLIP) | (above < radii + unit),
        "nearest": (below >= radii - unit / 2 - SLIP) | (above <= radii + unit / 2 + SLIP),
        "up": below > radii - unit - SLIP,
    }
    return Fit(hit=hit, chance=np.minimum(1.0, (unit + 2 * SLIP) / (high - low)))


def infer(
    radii: np.ndarray,
    unit: np.ndarray,
    *,
    draws: tuple[int, ...] = DRAWS,
    alphas: tuple[float, ...] = ALPHAS,
    sigmas: tuple[float, ...] = SIGMAS,
) -> list[Ladder]:
    """The ladders that explain radii [R] best and equally well; none where they do not tell.

    What one of 1,000 tables without a ladder would seem to have is not claimed. If no usual sigma
    explains all radii, others are tried, such that the largest radius is one of the top rungs.
    """
    values, first = np.unique(radii, return_index=True)
    if len(values) < FEWEST:
        return []
    places = unit[first]
    pairs = [(n, alpha) for n in draws for alpha in alphas if alpha ** (1 / n) > 0.5]
    usual = np.array(sigmas)
    hopeful = [
        (score, Ladder(n=n, alpha=alpha, sigma=float(sigma), rounding=rounding))
        for n, alpha in pairs
        for rounding, scores in _scores(values, places, n, alpha, usual, _SOME)
        for sigma, score in zip(usual, scores, strict=True)
    ]
    best = _best(hopeful, values, places)
    if best and _explains_all(best[0], values, places):
        return best
    # Parts of two ladders may agree, so one that explains a part must be the best of them all.
    return _best([*hopeful, *_unusual(values, places, pairs)], values, places)


def _rung(k: np.ndarray, n: int, alpha: float) -> np.ndarray:
    """Phi^-1 of the Clopper-Pearson bound of k hits; -inf for none."""
    some = np.maximum(k, 1)
    return np.where(k > 0, -ndtri(betainccinv(n - some + 1, some, alpha)), -np.inf)


def _scores(
    values: np.ndarray,
    places: np.ndarray,
    n: int,
    alpha: float,
    sigmas: np.ndarray,
    most: int,
) -> Iterator[tuple[str, np.ndarray]]:
    """For each rounding, the log odds [S] of each sigma against radii off any ladder.

    The ``most`` largest of the ascending values [R] that a ladder reaches are judged; a share of
    them, small or half, may be others' all the same.
    """
    ceilings = sigmas * _rung(np.array(n), n, alpha)
    ends = np.searchsorted(values - places, ceilings + SLIP)
    chosen = ends[:, None] - 1 - np.arange(min(most, len(values)))  # [S, most]
    there, chosen = chosen >= 0, np.maximum(chosen, 0)
    found = fit(values[chosen], places[chosen], n=n, alpha=alpha, sigma=sigmas[:, None])
    for rounding, hit in found.hit.items():
        odds = [
            (there * np.log(np.where(hit, (1 - share) / found.chance + share, share))).sum(axis=1)
            for share in (0.02, 0.5)
        ]
        yield rounding, np.max(odds, axis=0)


def _best(
    candidates: list[tuple[float, Ladder]], values: np.ndarray, places: np.ndarray
) -> list[Ladder]:
    """Of ladders with a score from some radii, those that are best by more of them."""
    promising = sorted(candidates, key=lambda pair: -pair[0])[:40]
    judged: dict[tuple[int, float, float], tuple[float, Ladder]] = {}
    for ladder in (ladder for score, ladder in promising if score > ENOUGH / 2):
        key = ladder.n, ladder.alpha, ladder.sigma
        if key in judged:
            continue
        scores = _scores(values, places, *key[:2], np.array([ladder.sigma]), _MORE)
        score, rounding = max(
            ((float(s[0]), name) for name, s in scores),
            key=lambda pair: (round(pair[0], 6), -ROUNDINGS.index(pair[1])),
        )
        judged[key] = (
            score,
            Ladder(n=key[0], alpha=key[1], sigma=key[2], rounding=rounding),
        )
    ranked = sorted(judged.values(), key=lambda pair: -pair[0])
    if not ranked or ranked[0][0] < ENOUGH:
        return []
    alike = [ladder for score, ladder in ranked if score > ranked[0][0] - ALIKE]
    whole = [ladder for ladder in alike if _explains_all(ladder, values, places)] or alike
    shortest: dict[tuple[int, float], Ladder] = {}  # one sigma, of those next to each other
    for ladder in sorted(whole, key=lambda one: len(repr(one.sigma))):
        shortest.setdefault((ladder.n, ladder.alpha, round(math.log(ladder.sigma), 1)), ladder)
    return [ladder for ladder in whole if ladder in shortest.values()]


def _explains_all(ladder: Ladder, values: np.ndarray, places: np.ndarray) -> bool:
    found = fit(values, places, n=ladder.n, alpha=ladder.alpha, sigma=ladder.sigma)
    return bool(found.hit[ladder.rounding].all())


def _unusual(
    values: np.ndarray, places: np.ndarray, pairs: list[tuple[int, float]]
) -> Iterator[tuple[float, Ladder]]:
    """Ladders of whatever sigma puts the largest radius on one of the top rungs."""
    values, places = values[-_SOME:], places[-_SOME:]
    shifts = np.array([0.0, -0.5, -1.0])  # from a written radius to the least that is meant
    rough = []
    for n, alpha in pairs:
        tops = _rung(n - np.arange(4), n, alpha)
        tops = tops[tops > 0.1]
        for shift, rounding in zip(shifts, ROUNDINGS, strict=True):
            lows = (values[-1] + shift * places[-1]) / tops
            # Sigma is known to a last place, so that radii are to as much: look for twice that.
            middles = lows + places[-1] / tops / 2
            wide = values + (shift - 0.5) * places
            found = dict(_scores(wide, 2 * places, n, alpha, middles, _SOME))
            for score, low, top in zip(found["down"], lows, tops, strict=True):
                rough.append((score, n, alpha, rounding, shift, low, low + places[-1] / top))
    for _, n, alpha, rounding, shift, low, high in sorted(rough, key=lambda r: -r[0])[:20]:
        sigma = _narrowed(values, places, n, alpha, low, high, shift)
        scores = dict(_scores(values, places, n, alpha, np.array([sigma]), _SOME))
        ladder = Ladder(n=n, alpha=alpha, sigma=sigma, rounding=rounding)
        yield float(scores[rounding][0]), ladder


def _narrowed(
    values: np.ndarray,
    places: np.ndarray,
    n: int,
    alpha: float,
    low: float,
    high: float,
    shift: float,
) -> float:
    """The shortest decimal between two sigmas that puts most radii, from the top, on rungs."""
    for value, place in zip(values[::-1], places[::-1], strict=True):
        middle = (low + high) / 2
        z = (value + (shift + 0.5) * place) / middle
        k = np.clip(binom.isf(alpha, n, ndtr(z)) + np.arange(2), 1, n)
        rungs = _rung(k, n, alpha)
        rung = rungs[np.abs(rungs - z).argmin()]
        if not rung > 0.1:
            break
        a, b = (value + shift * place) / rung, (value + (shift + 1) * place) / rung
        if max(low, a) <= min(high, b):
            low, high = max(low, a), min(high, b)
    for digits in range(1, 9):
        step = 10.0 ** (math.floor(math.log10(high)) + 1 - digits)
        if (sigma := math.ceil(low / step - SLIP) * step) <= high * (1 + SLIP):
            return round(sigma, 12)
    return (low + high) / 2
