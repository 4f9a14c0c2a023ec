"""Which (n, alpha, sigma) made a table of radii: those of n votes are the rungs of a ladder.

n votes can only give the radii sigma * Phi^-1(p) for the n Clopper-Pearson bounds p (eq. 11, 12).
Where the rungs lie further apart than the table's last decimal, a radius on a rung is evidence for
the ladder, and one between two rungs is evidence against it. Elsewhere a radius says nothing.
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

ENOUGH = 4.0  # log of the odds for a ladder, with those before any radius was seen
ALIKE = 7.0  # log of the odds below which two ladders count as equally good
FEWEST = 5  # different radii, with fewer of which no ladder is claimed
_SOME, _MORE = 16, 300  # radii, the largest ones, that choose candidates and then judge them
_TOPS = 1_000  # rungs that are computed once
_FEW = 60  # candidates that are judged by more of them


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


def fit(
    radii: np.ndarray,
    unit: np.ndarray,
    *,
    n: int,
    alpha: float,
    sigma: np.ndarray,
    heaped: np.ndarray | bool = False,
) -> Fit:
    """Compare radii [R] of last places ``unit`` [R] with the ladders of sigma, [..., 1] or one.

    Those ``heaped`` hit only if they are the ladder's ceiling, wherever it might be by chance.
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
    return Fit(
        hit={name: np.where(heaped, ceiling[name], hit[name]) for name in ROUNDINGS},
        chance=np.minimum(1.0, chance),
    )


def infer(radii: np.ndarray, unit: np.ndarray, tried: Prior | None = None) -> list[Ladder]:
    """The ladders that explain radii [R] best and equally well; none where they do not tell.

    Claimed are those that the radii make ``ENOUGH`` likelier than chance, after what is usual. If
    no sigma of ``tried`` explains all radii, others are tried, such that the largest radius is one
    of the top rungs.
    """
    seen = written(radii, unit)
    if len(seen.values) < FEWEST:
        return []
    tried = tried or prior()
    pairs = [(n, alpha) for n in tried.draws for alpha in tried.alphas if alpha ** (1 / n) > 0.5]
    hopeful = [found for pair in pairs for found in _hopeful(seen, *pair, tried)]
    best = _best(hopeful, seen, tried)
    if best and _explains_all(best[0], seen):
        return best
    # Parts of two ladders may agree, so one that explains a part must be the best of them all.
    return _best([*hopeful, *_unusual(seen, pairs, tried)], seen, tried)


def _rung(k: np.ndarray, n: int, alpha: float) -> np.ndarray:
    """Phi^-1 of the Clopper-Pearson bound of k hits; -inf for none."""
    some = np.maximum(k, 1)
    return np.where(k > 0, -ndtri(betainccinv(n - some + 1, some, alpha)), -np.inf)


@lru_cache(maxsize=1 << 10)
def _tops(n: int, alpha: float) -> np.ndarray:
    """The rungs of the most hits, ascending."""
    return _rung(np.arange(max(0, n - _TOPS), n + 1), n, alpha)


def _around(
    z: np.ndarray, step: np.ndarray, n: int, alpha: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The most hits with a rung at or below z, that rung and the next; of all hits, the last two.

    Where rungs lie closer than ``step``, any two that do.
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
    """For each rounding, the log odds [S] of each sigma against radii off any ladder.

    The ``most`` largest of the radii that a ladder reaches are judged, and a heap anyway; a share
    of them, small or half, may be others' all the same.
    """
    values, places = seen.values, seen.places
    ceilings = sigmas * _tops(n, alpha)[-1]
    ends = np.searchsorted(values - places, ceilings + SLIP)
    chosen = ends[:, None] - 1 - np.arange(min(most, len(values)))  # [S, most]
    there, chosen = chosen >= 0, np.maximum(chosen, 0)
    found = fit(
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


def _hopeful(seen: Written, n: int, alpha: float, tried: Prior) -> Iterator[tuple[float, Ladder]]:
    """Ladders of the sigmas to try, and their log odds by the largest radii, where above 0."""
    sigmas = np.array([*tried.sigmas])
    before = np.array([tried.log(n=n, alpha=alpha, sigma=sigma) for sigma in tried.sigmas])
    for rounding, scores in _scores(seen, n, alpha, sigmas, _SOME):
        odds = scores + before
        for i in np.flatnonzero(odds > 0):
            ladder = Ladder(n=n, alpha=alpha, sigma=float(sigmas[i]), rounding=rounding)
            yield float(odds[i]), ladder


def _best(candidates: list[tuple[float, Ladder]], seen: Written, tried: Prior) -> list[Ladder]:
    """Of ladders with log odds by some radii, those that are best by more of them."""
    judged: dict[tuple[int, float, float], tuple[float, Ladder]] = {}
    for _, ladder in sorted(candidates, key=lambda pair: -pair[0])[:_FEW]:
        key = ladder.n, ladder.alpha, ladder.sigma
        if key in judged:
            continue
        scores = _scores(seen, *key[:2], np.array([ladder.sigma]), _MORE)
        score, rounding = max(
            ((float(s[0]), name) for name, s in scores),
            key=lambda pair: (round(pair[0], 6), -ROUNDINGS.index(pair[1])),
        )
        best = Ladder(n=key[0], alpha=key[1], sigma=key[2], rounding=rounding)
        judged[key] = score + _before(best, tried), best
    ranked = sorted(judged.values(), key=lambda pair: -pair[0])
    if not ranked or ranked[0][0] < ENOUGH:
        return []
    alike = [ladder for score, ladder in ranked if score > ranked[0][0] - ALIKE]
    whole = [ladder for ladder in alike if _explains_all(ladder, seen)] or alike
    shortest: dict[tuple[int, float], Ladder] = {}  # one sigma, of those next to each other
    for ladder in sorted(whole, key=lambda one: len(repr(one.sigma))):
        shortest.setdefault((ladder.n, ladder.alpha, round(math.log(ladder.sigma), 1)), ladder)
    return [ladder for ladder in whole if ladder in shortest.values()]


def _before(ladder: Ladder, tried: Prior) -> float:
    return tried.log(n=ladder.n, alpha=ladder.alpha, sigma=ladder.sigma)


def _explains_all(ladder: Ladder, seen: Written) -> bool:
    found = fit(
        seen.values,
        seen.places,
        n=ladder.n,
        alpha=ladder.alpha,
        sigma=np.float64(ladder.sigma),
        heaped=seen.heaped,
    )
    return bool(found.hit[ladder.rounding].all())


def _unusual(
    seen: Written, pairs: list[tuple[int, float]], tried: Prior
) -> Iterator[tuple[float, Ladder]]:
    """Ladders of whatever sigma puts the largest radius on one of the top rungs."""
    top = seen.largest(_SOME)
    values, places = top.values, top.places
    shifts = np.array([0.0, -0.5, -1.0])  # from a written radius to the least that is meant
    rough = []
    for n, alpha in pairs:
        tops = _rung(n - np.arange(4), n, alpha)
        tops = tops[tops > 0.1]
        for shift, rounding in zip(shifts, ROUNDINGS, strict=True):
            lows = (values[-1] + shift * places[-1]) / tops
            # Sigma is known to a last place, so that radii are to as much: look for twice that.
            middles = lows + places[-1] / tops / 2
            wide = replace(top, values=values + (shift - 0.5) * places, places=2 * places)
            found = dict(_scores(wide, n, alpha, middles, _SOME))
            for score, low, rung in zip(found["down"], lows, tops, strict=True):
                rough.append((score, n, alpha, rounding, shift, low, low + places[-1] / rung))
    for _, n, alpha, rounding, shift, low, high in sorted(rough, key=lambda r: -r[0])[:20]:
        sigma = _narrowed(values, places, n, alpha, low, high, shift)
        scores = dict(_scores(top, n, alpha, np.array([sigma]), _SOME))
        ladder = Ladder(n=n, alpha=alpha, sigma=sigma, rounding=rounding)
        yield float(scores[rounding][0]) + _before(ladder, tried), ladder


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
