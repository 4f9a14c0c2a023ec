"""Radii as written in text: their last decimal places, their rounding, and heaps of equal ones."""

import math
from dataclasses import dataclass, replace
from decimal import Decimal

import numpy as np

# Last places from a written radius to the least that it stands for; the largest is one further.
ROUNDINGS = {"down": 0.0, "nearest": -0.5, "up": -1.0}
# Programs that write a number of significant digits round to the nearest.
SIGNIFICANT = {"down": 0.05, "nearest": 0.9, "up": 0.05}
SLIP = 1e-9  # pixels; error of the special functions
HEAP = 5  # images of one radius, the least number of a heap
NEAR = 5  # last places below a heap, with which it is compared
ISOLATED = 3  # a heap has so many times the images of such a place


@dataclass(frozen=True, kw_only=True, slots=True)
class Written:
    """Distinct radii, ascending, [R].

    ``places`` are their last decimal places, ``heaped`` marks the one with a heap of images, and
    ``roundings`` has the prior log odds of each way of rounding.
    """

    values: np.ndarray
    places: np.ndarray
    heaped: np.ndarray
    roundings: dict[str, float]

    def largest(self, count: int) -> "Written":
        """The ``count`` largest radii."""
        values, places, heaped = self.values[-count:], self.places[-count:], self.heaped[-count:]
        return replace(self, values=values, places=places, heaped=heaped)


def written(radii: np.ndarray, unit: np.ndarray) -> Written:
    """The distinct values of radii [N] with last places ``unit`` [N]."""
    values, first = np.unique(radii, return_index=True)
    places, top = unit[first], heap(radii, unit)
    some = len(np.unique(places)) > 1 and not in_full(radii, unit)
    return Written(
        values=values,
        places=places,
        heaped=values == (math.nan if top is None else top),
        roundings={
            name: math.log(SIGNIFICANT[name] if some else 1 / len(ROUNDINGS)) for name in ROUNDINGS
        },
    )


def units(radii: np.ndarray) -> np.ndarray:
    """The last decimal place of each radius [R], inferred from all of them.

    Either all have the same decimals or the same significant digits: the coarser that fits. Radii
    with more than nine decimals count as written in full, in float32 at least.
    """
    decimals = [Decimal(repr(float(radius))).normalize() for radius in radii]
    places = max((-int(d.as_tuple().exponent) for d in decimals), default=0)
    if places > 9:
        return 2e-7 * radii
    digits = max((len(d.as_tuple().digits) for d in decimals), default=1)
    fixed = np.full(len(radii), 10.0 ** -max(places, 0))
    significant = np.array([10.0 ** (d.adjusted() + 1 - digits) for d in decimals])
    first = np.unique(radii, return_index=True)[1]  # a heap of one radius is no more evidence
    coarser = np.log(significant[first]).sum() > np.log(fixed[first]).sum() + SLIP
    return significant if coarser else fixed


def in_full(radii: np.ndarray, unit: np.ndarray) -> bool:
    """Whether `units` counts the radii as written in full."""
    return bool((unit == 2e-7 * radii).all())


def heap(radii: np.ndarray, unit: np.ndarray) -> float | None:
    """The radius of unanimous votes, if many images share it at the top of the table; else None.

    Images with few votes against them spread over several radii; all images without any have the
    largest. A few radii may lie above it, by mistake.
    """
    values, counts = np.unique(radii, return_counts=True)
    above = 0
    for value, count in zip(values[::-1], counts[::-1], strict=True):
        if count >= HEAP and above <= count / HEAP:
            place = unit[radii == value][0]
            near = (radii < value) & (radii > value - (NEAR + 0.5) * place)
            return float(value) if count > ISOLATED * near.sum() / NEAR else None
        above += count
        if above > len(radii) / HEAP:
            break
    return None
