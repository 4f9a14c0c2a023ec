"""Infers n, alpha and sigma from a table of radii, by the few radii that n votes can give.

n votes can only give the radii sigma * Phi^-1(p) for the n Clopper-Pearson bounds p (eq. 11, 12).
Where these lie further apart than the table's last decimal, a radius at one of them is evidence for
(n, alpha, sigma), and a radius between two of them is evidence against. Elsewhere, where they lie
closer, a radius is no evidence either way.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from rrcm.auditing.ladder import around, rung, tops
from rrcm.auditing.sweep import Window, shortest, swept
from rrcm.auditing.usual import Prior, prior
from rrcm.auditing.written import ROUNDINGS, SLIP, Written, written

ENOUGH = 4.0  # log posterior odds from which (n, alpha, sigma) are claimed
ALIKE = 7.0  # difference of log odds below which two explanations count as equally good
# The same of a clean explanation where the best has a fault: that is wrong in exp(-SURE) / RARE,
# 3 in 100,000 tables at most whose sigma is not usual, and less often in others.
SURE = 13.5
FEWEST = 5  # different radii; from fewer nothing is inferred
_SOME, _MORE = 16, 300  # the largest radii, which select candidates and then score them
_ANCHORED = 4  # attainable radii that the largest radius may be
_WINDOWS, _CLOSE = 60, 30.0  # windows of sigma that are narrowed, and their distance in log odds
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

    @property
    def settings(self) -> tuple[int, float, float]:
        """n, alpha and sigma."""
        return self.n, self.alpha, self.sigma

    @property
    def place(self) -> tuple[int, float, float]:
        """The same of explanations whose sigmas are side by side."""
        return self.n, self.alpha, round(math.log(self.sigma), 1)

    def __str__(self) -> str:
        """``n = 1,000, alpha = 0.001, sigma = 0.5``."""
        return f"n = {self.n:,}, alpha = {self.alpha:g}, sigma = {self.sigma:g}"

    def ceiling(self) -> float:
        """The radius of unanimous votes; no other is larger."""
        return float(self.sigma * rung(np.array(self.n), self.n, self.alpha))

    def match(self, r: np.ndarray, unit: np.ndarray, heaped: np.ndarray | bool = False) -> "Match":
        """Like the function `match`."""
        return match(r, unit, n=self.n, alpha=self.alpha, sigma=self.sigma, heaped=heaped)


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
    sigma: np.ndarray | float,
    heaped: np.ndarray | bool = False,
) -> Match:
    """Compare radii [R] of last places ``unit`` [R] with the attainable ones at sigma, [..., 1].

    ``heaped`` radii, bool [R], match only the largest attainable one.
    """
    z = np.minimum((radii + SLIP) / sigma, 9.0)
    k, low, high = around(z, unit / sigma, n, alpha)
    low, high = sigma * low, sigma * high
    below, above = np.where(k == n, high, low), np.where(k == n, np.inf, high)
    top, hit = sigma * tops(n, alpha)[-1], {}
    for rounding, shift in ROUNDINGS.items():
        least, most = radii + shift * unit - SLIP, radii + (shift + 1) * unit + SLIP
        attained = (below >= least) | (above <= most)
        hit[rounding] = np.where(heaped, (least <= top) & (top <= most), attained)
    chance = np.where(heaped, unit / np.maximum(radii, unit), (unit + 2 * SLIP) / (high - low))
    return Match(hit=hit, chance=np.minimum(1.0, chance))


def infer(radii: np.ndarray, unit: np.ndarray, tried: Prior | None = None) -> list[AttainableRadii]:
    """The explanations of radii [R] that are best and equally good; none without enough evidence.

    They are those with posterior log odds against chance of at least ``ENOUGH``; ``tried`` is the
    prior. Unless the best is clean, further sigmas are tried: those at which the largest radius is
    one of the largest attainable ones. It is passed over for a clean one unless e^`SURE` likelier.
    """
    seen = written(radii, unit)
    if len(seen.values) < FEWEST:
        return []
    tried = tried or prior()
    pairs = [(n, alpha) for n in tried.draws for alpha in tried.alphas if alpha ** (1 / n) > 0.5]
    likely = [candidate for pair in pairs for candidate in _likely(seen, *pair, tried)]
    best = _best(likely, seen, tried)
    if best and _clean(best[0], seen, tried):
        return best
    # A mixed table has parts that agree with several; one that explains a part must be the best.
    return _best([*likely, *_unusual(seen, pairs, tried)], seen, tried)


def as_stated(radii: np.ndarray, unit: np.ndarray, tried: Prior) -> list[AttainableRadii]:
    """The stated n, alpha and sigma, and the rounding of most radii; nothing unless all are stated.

    They need no evidence: what they imply is what a table is judged by. A heap of radii below that
    of unanimous votes refutes them, or drawing stopped early.
    """
    n, alpha, (low, high) = tried.n, tried.alpha, tried.meant
    if n is None or alpha is None or low > high or alpha ** (1 / n) <= 0.5:
        return []
    seen = written(radii, unit)
    order = sorted(ROUNDINGS, key=lambda name: -seen.roundings[name])
    sigmas = [low] * len(order)
    if low < high:
        _, parts = swept(seen, n, alpha, [Window(low, high, name) for name in order])
        sigmas = [shortest(part.low, part.high) for part in parts]
    found = [
        AttainableRadii(n=n, alpha=alpha, sigma=sigma, rounding=name)
        for name, sigma in zip(order, sigmas, strict=True)
    ]
    hits = [one.match(seen.values, seen.places, seen.heaped).hit[one.rounding] for one in found]
    best = max(range(len(found)), key=lambda i: hits[i].sum())
    return [found[best]] if hits[best][seen.heaped].all() else []


def _scores(
    seen: Written, n: int, alpha: float, sigmas: np.ndarray, most: int
) -> Iterator[tuple[str, np.ndarray]]:
    """For each rounding, the log likelihood ratio [S] of each sigma against unrelated radii.

    It uses the ``most`` largest radii up to the largest attainable one, and a heap in any case. A
    share of the radii, small or half, may be of another origin.
    """
    values, places = seen.values, seen.places
    ceilings = sigmas * tops(n, alpha)[-1]
    ends = np.searchsorted(values - places, ceilings + SLIP)
    chosen = ends[:, None] - 1 - np.arange(min(most, len(values)))  # [S, most]
    there, chosen = chosen >= 0, np.maximum(chosen, 0)
    matches = match(
        values[chosen],
        places[chosen],
        n=n,
        alpha=alpha,
        sigma=sigmas[:, None],
        heaped=seen.heaped[chosen],
    )
    missed = seen.heaped.any() & (ends <= seen.heaped.argmax())
    for rounding, hit in matches.hit.items():
        odds = [
            (there * np.log(np.where(hit, (1 - share) / matches.chance + share, share))).sum(axis=1)
            + missed * math.log(share)
            for share in (0.02, 0.5)
        ]
        yield rounding, np.max(odds, axis=0) + seen.roundings[rounding]


def _likely(
    seen: Written, n: int, alpha: float, tried: Prior
) -> Iterator[tuple[float, AttainableRadii]]:
    """Candidates at the sigmas of the prior with positive log odds by the largest radii.

    They are infinite if n, alpha and sigma are as stated: such candidates are always judged.
    """
    sigmas = np.array([*tried.sigmas])
    if tried.meant[0] < tried.meant[1] and tried.agrees(n, alpha, tried.meant[0]):
        _, parts = swept(seen, n, alpha, [Window(*tried.meant, name) for name in ROUNDINGS])
        sigmas = np.append(sigmas, [shortest(part.low, part.high) for part in parts])
    before = np.array([tried.log(n, alpha, sigma) for sigma in sigmas])
    stated = np.array([tried.states(n, alpha, sigma) for sigma in sigmas])
    for rounding, scores in _scores(seen, n, alpha, sigmas, _SOME):
        odds = np.where(stated, np.inf, scores + before)
        for i in np.flatnonzero(odds > 0):
            candidate = AttainableRadii(n=n, alpha=alpha, sigma=float(sigmas[i]), rounding=rounding)
            yield float(odds[i]), candidate


def _best(
    candidates: list[tuple[float, AttainableRadii]], seen: Written, tried: Prior
) -> list[AttainableRadii]:
    """The best candidates by ``_MORE`` radii, among the best by ``_SOME``."""
    judged: dict[tuple[int, float, float], tuple[float, AttainableRadii]] = {}
    for _, candidate in sorted(candidates, key=lambda pair: -pair[0])[:_FEW]:
        if (key := candidate.settings) in judged:
            continue
        scores = _scores(seen, *key[:2], np.array(key[2:]), _MORE)
        score, rounding = max(
            ((float(s[0]), name) for name, s in scores),
            key=lambda pair: round(pair[0], 6),  # of equal ones, the first of `ROUNDINGS`
        )
        judged[key] = score + tried.log(*key), replace(candidate, rounding=rounding)
    ranked = sorted(judged.values(), key=lambda pair: -pair[0])
    if not ranked or ranked[0][0] < ENOUGH:
        return []
    top = ranked[0][0]
    close = [candidate for score, candidate in ranked if score > top - ALIKE]
    full = [candidate for candidate in close if _explains_all(candidate, seen)]
    if not any(_clean(candidate, seen, tried) for candidate in full):
        clean = [
            candidate
            for score, candidate in ranked
            if score > top - SURE and _clean(candidate, seen, tried)
        ]
        full += {one.rounding: one for one in reversed(clean)}.values()  # the best of each
    full = full or close[:1]

    def preference(one: AttainableRadii) -> tuple[bool, int]:
        return not tried.agrees(*one.settings), len(repr(one.sigma))

    # Of sigmas side by side it is that as stated, or the short one: the last one written here.
    last_first = sorted(full, key=preference)[::-1]
    chosen = {(*one.place, one.rounding): one for one in last_first}
    return [candidate for candidate in full if candidate in chosen.values()]


def _clean(candidate: AttainableRadii, seen: Written, tried: Prior) -> bool:
    """Whether a table that the candidate explains has no fault, and is as stated."""
    if candidate.rounding == "up" or not _explains_all(candidate, seen):
        return False
    return tried.agrees(*candidate.settings)


def _explains_all(candidate: AttainableRadii, seen: Written) -> bool:
    matches = candidate.match(seen.values, seen.places, seen.heaped)
    return bool(matches.hit[candidate.rounding].all())


def _unusual(
    seen: Written, pairs: list[tuple[int, float]], tried: Prior
) -> Iterator[tuple[float, AttainableRadii]]:
    """Candidates at any real sigma that makes a heap or the largest radius one of the largest.

    Sigma is then known to a few last places of that radius; the other radii narrow it.
    """
    top = seen.largest(_SOME)
    last = len(top.values) - 1
    anchors = [  # a heap is of unanimous votes
        (i, 1 if top.heaped[i] else _ANCHORED)
        for i in range(last + 1)
        if top.heaped[i] or i >= last - 1
    ]
    rough = []
    for n, alpha in pairs:
        rungs = tops(n, alpha)[: -_ANCHORED - 1 : -1]
        rungs = rungs[rungs > 0.1]
        windows = [
            Window.around(top.values[i], top.places[i], rung, rounding)
            for i, most in anchors
            for rung in rungs[:most]
            for rounding in ROUNDINGS
        ]
        if not windows:
            continue
        before = math.log(tried.draws[n] * tried.alphas[alpha])
        odds, _ = swept(top, n, alpha, windows)
        for score, window in zip(odds + before, windows, strict=True):
            rough.append((score + seen.roundings[window.rounding], n, alpha, window))
    rough.sort(key=lambda one: -one[0])
    for score, n, alpha, window in rough[:_WINDOWS]:
        if score < rough[0][0] - _CLOSE:
            break
        _, [best] = swept(seen, n, alpha, [window])
        low, high = max(best.low, tried.meant[0]), min(best.high, tried.meant[1])
        sigma = shortest(low, high) if low <= high else shortest(best.low, best.high)
        candidate = AttainableRadii(n=n, alpha=alpha, sigma=sigma, rounding=window.rounding)
        scores = dict(_scores(top, n, alpha, np.array([sigma]), _SOME))
        yield float(scores[window.rounding][0]) + tried.log(n, alpha, sigma), candidate
