"""What L2 radii say in L-infinity: a consequence, and no certificate of its own (eq. 61)."""

import math
from collections.abc import Sequence

from rrcm.certification.certify import DIGITS, DOWN, printed
from rrcm.core.ranges import COUNT, require

LEVELS, ROUNDING = 255, 1e-12  # steps from black to white; more than that of a root


def levels(r: float, values: int) -> int:
    """By how many of 255 levels each of ``values`` may change: the ball of L2 radius r is open."""
    return max(0, math.ceil(LEVELS * r / math.sqrt(values) * (1 - ROUNDING)) - 1)


def radius(r: float, values: int) -> float:
    """The L-infinity ball within that of L2 radius r, rounded down."""
    return float(printed(r / math.sqrt(values), DOWN, places=DIGITS))


def notes(radii: Sequence[float], values: int) -> list[str]:
    """A line for below a table: its ``radii`` over sqrt(``values``); none if all are 0."""
    require(0 < values <= COUNT, f"--linf: the values of an image, such as 3072, got {values}")
    said = [
        f"{r:g} is {printed(r / math.sqrt(values), DOWN, digits=4)} ({levels(r, values)})"
        for r in radii
        if r > 0
    ]
    return [
        f"ℓ∞, as a consequence of ℓ₂: r is r/√{values} at each of {values:,} values (so many of "
        f"{LEVELS} levels): {', '.join(said)}"
    ] * bool(said)
