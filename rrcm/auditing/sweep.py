"""Finds the real sigma at which most radii are attainable, by sweeping over intervals of sigma.

A radius that is written as r and belongs to the rung z was r / z to (r + 1 place) / z of sigma. So
each radius allows the sigmas of one interval a rung, and the best sigma is in most intervals.
"""

import math
from dataclasses import dataclass

import numpy as np

from rrcm.auditing.ladder import around, rung, tops
from rrcm.auditing.written import ROUNDINGS, Written

_FOREIGN = 0.02  # share of the radii that may be of another origin
_OPEN = 1 - 1e-12  # intervals of neighbouring radii must not meet in an end
_STEPS = np.arange(-2, 4)  # rungs from that below a radius that may be its own


@dataclass(frozen=True, slots=True)
class Window:
    """An interval of sigma, and how radii are rounded."""

    low: float
    high: float
    rounding: str

    @classmethod
    def around(cls, radius: float, place: float, rung: float, rounding: str) -> "Window":
        """The sigmas at which a written radius belongs to a rung, or up to a place next to it."""
        low = max(radius + (ROUNDINGS[rounding] - 1) * place, radius / 4) / rung
        return cls(low, (radius + (ROUNDINGS[rounding] + 2) * place) / rung, rounding)


def swept(
    seen: Written, n: int, alpha: float, windows: list[Window]
) -> tuple[np.ndarray, list[Window]]:
    """The best part of each window, and its log likelihood ratio against unrelated radii, [W]."""
    edges = np.array([(one.low, one.high, ROUNDINGS[one.rounding]) for one in windows])
    low, high, shift = np.split(edges, 3, axis=1)
    rungs, chance = _rungs(seen, n, alpha, low, high, shift)
    gain = np.log((1 - _FOREIGN) / chance / _FOREIGN + 1)
    r, place = seen.values[:, None], seen.places[:, None]
    flat = (len(windows), -1)
    starts = ((r + shift[..., None] * place) / rungs).reshape(flat)
    ends = ((r + (shift[..., None] + 1) * place) / rungs * _OPEN).reshape(flat)
    inside = (starts < high) & (ends > low)
    steps = np.where(inside, np.repeat(gain, len(_STEPS), axis=1), 0.0)
    points = np.concatenate(
        [np.where(inside, np.clip(x, low, high), high) for x in (starts, ends)], 1
    )
    order = np.argsort(points, axis=1, kind="stable")
    points = np.take_along_axis(points, order, axis=1)
    totals = np.take_along_axis(np.concatenate([steps, -steps], 1), order, axis=1).cumsum(axis=1)
    best = totals[:, :-1].argmax(axis=1)
    rows = np.arange(len(windows))
    score = totals[rows, best] + (chance < 1).sum(axis=1) * math.log(_FOREIGN)
    parts = zip(points[rows, best], points[rows, best + 1], windows, strict=True)
    return score, [Window(float(a), float(b), window.rounding) for a, b, window in parts]


def _rungs(
    seen: Written, n: int, alpha: float, low: np.ndarray, high: np.ndarray, shift: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The rungs that each radius may have in a window, [W, R, 6], and their chance, [W, R].

    There are none, NaN, where rungs lie closer than the last place: such a radius tells nothing.
    """
    middle = np.sqrt(low * high)
    place = seen.places / middle
    z = np.minimum((seen.values + (shift + 0.5) * seen.places) / middle, 9.0)
    k, below, above = around(z, place, n, alpha)
    chance = np.where(seen.heaped, seen.places / seen.values, place / (above - below))
    reach = (z * (high - low) / (high + low) + place) / (above - below)
    hits = k[..., None] + _STEPS
    known = (hits > 0) & (hits <= n) & (chance < 1)[..., None]
    known &= np.abs(_STEPS - 0.5) <= 0.5 + 1.2 * reach[..., None]  # rungs are not quite even
    known &= (hits == n) | ~seen.heaped[:, None]
    most = tops(n, alpha)
    deep = known & (hits <= n - len(most))
    rungs = most[np.clip(hits - n - 1, -len(most), -1)]
    rungs[deep] = rung(hits[deep], n, alpha)
    return np.where(known & (rungs > 0), rungs, np.nan), np.minimum(chance, 1.0)


def shortest(low: float, high: float) -> float:
    """The shortest decimal from one number to another, or their middle if it has over 12 digits."""
    for digits in range(1, 13):
        step = 10.0 ** (math.floor(math.log10(high)) + 1 - digits)
        if (short := math.ceil(low / step) * step) <= high:
            return float(f"{short:.{digits}g}")
    return (low + high) / 2
