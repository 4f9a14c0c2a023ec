"""Infers n, alpha and sigma from a table of radii, by the few radii that n votes can give.

n votes can only give the radii sigma * Phi^-1(p) for the n Clopper-Pearson bounds p (eq. 11, 12).
Where these lie further apart than the table's last decimal, a radius at one of them is evidence for
(n, alpha, sigma), and a radius between two of them is evidence against. Elsewhere, where they lie
closer, a radius is no evidence either way.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from scipy.special import betainccinv, ndtr, ndtri
from scipy.stats import binom

from rrcm.auditing.usual import Prior, prior
from rrcm.auditing.written import ROUNDINGS, SLIP, Written, written

ENOUGH = 4.0  # log posterior odds from which (n, alpha, sigma) are claimed
ALIKE = 7.0  # difference of log odds below which two explanations count as equally good
FEWEST = 5  # different radii; from fewer nothing is inferred
_SOME, _MORE = 16, 300  # the largest radii, which select candidates and then score them
_TOPS = 1_000  # largest attainable radii, which are computed once
_FEW = 60  # candidates that are scored by `_MORE` radii


@dataclass(frozen=True, kw_only=True, slots=True)
class AttainableRadii:
    """The radii that n votes at level alpha can give under noise sigma, and how they are rounded.

    ``rounding`` is one of ``ROUNDINGS``; radii written in full count as ``nearest``.
    """

    n: int
    alpha: float
    sigma: float
    rounding: str

    def __str__(self) -> str:
        """``n = 1,000, alpha = 0.001, sigma = 0.5``."""
        return f"n = {self.n:,}, alpha = {self.alpha:g}, sigma = {self.sigma:g}"

    def ceiling(self) -> float:
        """The radius of unanimous votes; no other is larger."""
        return float(self.sigma * _rung(np.array(self.n), self.n, self.alpha))


@dataclass(frozen=True, kw_only=True, slots=True)
class Match:
    """Which radii are attainable under each rounding, ``hit`` [..., R], and how likely by chance.

    ``chance`` is the probability that an unrelated radius is attainable too: 1 where attainable
    radii lie closer than decimals.
    """

    hit: dict[str, np.ndarray]
    chance: np.ndarray

    def near(self) -> np.ndarray:
        """The radii that are attainable under some rounding, bool [..., R]."""
        return np.any([*self.hit.values()], axis=0)


def match(
    radii: np.ndarray,
    unit: np.ndarray,
    *,
    n: int,
    alpha: float,
    sigma: np.ndarray | np.float64,
    heaped: np.ndarray | bool = False,
) -> Match:
    """Compare radii [R] of last places ``unit`` [R] with the attainable ones at sigma, [..., 1].

    ``heaped`` radii, bool [R], match only the largest attainable one.
    """
    sigma = np.asarray(sigma, dtype=np.float64)
    z = np.minimum((radii + SLIP) / sigma, 9.0)
    k, low, high = _around(z, unit / sigma, n, alpha)
    low, high = sigma * low, sigma * high
    below, above = np.where(k == n, high, low), np.where(k == n, np.inf, high)
    hit = {
        "down": (below >= radii - SLIP) | (above < radii + unit),
        "nearest": (below >= radii - unit / 2 - SLIP) | (above <= radii + unit / 2 + SLIP),
        "up": below > radii - unit - SLIP,
    }
    over = sigma * _tops(n, alpha)[-1] - radii
    ceiling = {
        "down": (over >= -SLIP) & (over < unit),
        "nearest": np.abs(over) <= unit / 2 + SLIP,
        "up": (over > -unit - SLIP) & (over <= SLIP),
    }
    chance = np.where(heaped, unit / np.maximum(radii, unit), (unit + 2 * SLIP) / (high - low))
    return Match(
        hit={name: np.where(heaped, ceiling[name], hit[name]) for name in ROUNDINGS},
        chance=np.minimum(1.0, chance),
    )


def infer(radii: np.ndarray, unit: np.ndarray, tried: Prior | None = None) -> list[AttainableRadii]:
    """The explanations of radii [R] that are best and equally good; none without enough evidence.

    They are those with posterior log odds against chance of at least ``ENOUGH``; ``tried`` is the
    prior. If no sigma of the prior explains all radii, further ones are tried: those at which the
    largest radius is one of the largest attainable ones.
    """
    seen = written(radii, unit)
    if len(seen.values) < FEWEST:
        return []
    tried = tried or prior()
    pairs = [(n, alpha) for n in tried.draws for alpha in tried.alphas if alpha ** (1 / n) > 0.5]
    likely = [found for pair in pairs for found in _likely(seen, *pair, tried)]
    best = _best(likely, seen, tried)
    if best and _explains_all(best[0], seen):
        return best
    # A mixed table has parts that agree with several; one that explains a part must be the best.
    return _best([*likely, *_unusual(seen, pairs, tried)], seen, tried)


def _rung(k: np.ndarray, n: int, alpha: float) -> np.ndarray:
    """Phi^-1 of the Clopper-Pearson bound of k hits; -inf for none."""
    some = np.maximum(k, 1)
    return np.where(k > 0, -ndtri(betainccinv(n - some + 1, some, alpha)), -np.inf)


@lru_cache(maxsize=1 << 10)
def _tops(n: int, alpha: float) -> np.ndarray:
    """`_rung` of the most hits, ascending."""
    return _rung(np.arange(max(0, n - _TOPS), n + 1), n, alpha)


def _around(
    z: np.ndarray, step: np.ndarray, n: int, alpha: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The most hits k whose `_rung` is at most z, that rung and the next; the last two for k = n.

    Where rungs lie closer than ``step``, z and z + step stand for them.
    """
    tops = _tops(n, alpha)
    place = np.searchsorted(tops, z, side="right") - 1
    lower = np.clip(place, 0, len(tops) - 2)
    k, low, high = place + n + 1 - len(tops), tops[lower], tops[lower + 1]
    close = (place < 0) & (tops[1] - tops[0] <= step)  # rungs are the closer the lower
    low, high = np.where(close, z, low), np.where(close, z + step, high)
    if (deep := (place < 0) & ~close).any():
        k[deep] = np.clip(binom.isf(alpha, n, ndtr(z[deep])), 0, n - 1)
        low[deep], high[deep] = _rung(k[deep], n, alpha), _rung(k[deep] + 1, n, alpha)
    return k, low, high


def _scores(
    seen: Written, n: int, alpha: float, sigmas: np.ndarray, most: int
) -> Iterator[tuple[str, np.ndarray]]:
    """For each rounding, the log likelihood ratio [S] of each sigma against unrelated radii.

    It uses the ``most`` largest radii up to the largest attainable one, and a heap in any case. A
    share of the radii, small or half, may be of another origin.
    """
    values, places = seen.values, seen.places
    ceilings = sigmas * _tops(n, alpha)[-1]
    ends = np.searchsorted(values - places, ceilings + SLIP)
    chosen = ends[:, None] - 1 - np.arange(min(most, len(values)))  # [S, most]
    there, chosen = chosen >= 0, np.maximum(chosen, 0)
    found = match(
        values[chosen],
        places[chosen],
        n=n,
        alpha=alpha,
        sigma=sigmas[:, None],
        heaped=seen.heaped[chosen],
    )
    missed = seen.heaped.any() & (ends <= seen.heaped.argmax())
    for rounding, hit in found.hit.items():
        odds = [
            (there * np.log(np.where(hit, (1 - share) / found.chance + share, share))).sum(axis=1)
            + missed * math.log(share)
            for share in (0.02, 0.5)
        ]
        yield rounding, np.max(odds, axis=0) + seen.roundings[rounding]


def _likely(
    seen: Written, n: int, alpha: float, tried: Prior
) -> Iterator[tuple[float, AttainableRadii]]:
    """Candidates at the sigmas of the prior with positive log odds by the largest radii."""
    sigmas = np.array([*tried.sigmas])
    before = np.array([tried.log(n=n, alpha=alpha, sigma=sigma) for sigma in tried.sigmas])
    for rounding, scores in _scores(seen, n, alpha, sigmas, _SOME):
        odds = scores + before
        for i in np.flatnonzero(odds > 0):
            candidate = AttainableRadii(n=n, alpha=alpha, sigma=float(sigmas[i]), rounding=rounding)
            yield float(odds[i]), candidate


def _best(
    candidates: list[tuple[float, AttainableRadii]], seen: Written, tried: Prior
) -> list[AttainableRadii]:
    """The best candidates by ``_MORE`` radii, among the best by ``_SOME``."""
    judged: dict[tuple[int, float, float], tuple[float, AttainableRadii]] = {}
    for _, candidate in sorted(candidates, key=lambda pair: -pair[0])[:_FEW]:
        key = candidate.n, candidate.alpha, candidate.sigma
        if key in judged:
            continue
        scores = _scores(seen, *key[:2], np.array([candidate.sigma]), _MORE)
        score, rounding = max(
            ((float(s[0]), name) for name, s in scores),
            key=lambda pair: (round(pair[0], 6), -ROUNDINGS.index(pair[1])),
        )
        best = AttainableRadii(n=key[0], alpha=key[1], sigma=key[2], rounding=rounding)
        judged[key] = score + _before(best, tried), best
    ranked = sorted(judged.values(), key=lambda pair: -pair[0])
    if not ranked or ranked[0][0] < ENOUGH:
        return []
    alike = [candidate for score, candidate in ranked if score > ranked[0][0] - ALIKE]
    whole = [candidate for candidate in alike if _explains_all(candidate, seen)] or alike
    shortest: dict[
        tuple[int, float, float], AttainableRadii
    ] = {}  # one sigma, of those next to each other
    for candidate in sorted(whole, key=lambda one: len(repr(one.sigma))):
        shortest.setdefault(
            (candidate.n, candidate.alpha, round(math.log(candidate.sigma), 1)), candidate
        )
    return [candidate for candidate in whole if candidate in shortest.values()]


def _before(candidate: AttainableRadii, tried: Prior) -> float:
    return tried.log(n=candidate.n, alpha=candidate.alpha, sigma=candidate.sigma)


def _explains_all(candidate: AttainableRadii, seen: Written) -> bool:
    found = match(
        seen.values,
        seen.places,
        n=candidate.n,
        alpha=candidate.alpha,
        sigma=np.float64(candidate.sigma),
        heaped=seen.heaped,
    )
    return bool(found.hit[candidate.rounding].all())


def _unusual(
    seen: Written, pairs: list[tuple[int, float]], tried: Prior
) -> Iterator[tuple[float, AttainableRadii]]:
    """Candidates at any sigma for which the largest radius is one of the largest attainable."""
    top = seen.largest(_SOME)
    values, places = top.values, top.places
    shifts = np.array([0.0, -0.5, -1.0])  # from a written radius to the smallest exact one
    rough = []
    for n, alpha in pairs:
        tops = _rung(n - np.arange(4), n, alpha)
        tops = tops[tops > 0.1]
        for shift, rounding in zip(shifts, ROUNDINGS, strict=True):
            lows = (values[-1] + shift * places[-1]) / tops
            # Sigma is known to one last place of the largest radius; so compare radii to two.
            middles = lows + places[-1] / tops / 2
            wide = replace(top, values=values + (shift - 0.5) * places, places=2 * places)
            found = dict(_scores(wide, n, alpha, middles, _SOME))
            for score, low, rung in zip(found["down"], lows, tops, strict=True):
                rough.append((score, n, alpha, rounding, shift, low, low + places[-1] / rung))
    for _, n, alpha, rounding, shift, low, high in sorted(rough, key=lambda r: -r[0])[:20]:
        sigma = _narrowed(values, places, n, alpha, low, high, shift)
        scores = dict(_scores(top, n, alpha, np.array([sigma]), _SOME))
        candidate = AttainableRadii(n=n, alpha=alpha, sigma=sigma, rounding=rounding)
        yield float(scores[rounding][0]) + _before(candidate, tried), candidate


def _narrowed(
    values: np.ndarray,
    places: np.ndarray,
    n: int,
    alpha: float,
    low: float,
    high: float,
    shift: float,
) -> float:
    """The shortest decimal between two sigmas at which most of the largest radii are attainable."""
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
