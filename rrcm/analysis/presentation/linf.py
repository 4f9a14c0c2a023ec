"""What L2 radii say in L-infinity: a consequence, and no certificate of its own (eq. 61)."""

from collections.abc import Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal

from rrcm.certification.certify import DOWN, printed
from rrcm.core.ranges import COUNT, require

LEVELS = 255  # steps from black to white of 8-bit pixels
DOWNWARDS, UPWARDS = Context(prec=40, rounding=ROUND_FLOOR), Context(rounding=ROUND_CEILING)


def radius(r: float, values: int) -> Decimal:
    """``r`` / sqrt(``values``), rounded down.

    Guarantee: a change of an image of so many ``values`` by less than this at each is shorter than
    the L2 radius ``r``.

    Raises:
        ConfigError: ``values`` is not positive.
    """
    require(0 < values <= COUNT, f"linf: the values of an image, such as 3072, got {values}")
    root = Decimal(values).sqrt(UPWARDS)  # to the nearest of 28 digits, whatever the context
    root = root if root * root >= values else root.next_plus(UPWARDS)
    return DOWNWARDS.divide(Decimal(repr(float(r))), root)


def levels(r: float, values: int) -> int:
    """By how many of 255 levels each value may change: the ball of L2 radius ``r`` is open."""
    return max(0, int((LEVELS * radius(r, values)).to_integral_value(ROUND_CEILING)) - 1)


def notes(radii: Sequence[float], values: int) -> list[str]:
    """A line for below a table: what its ``radii`` are in L-infinity; none if all are 0."""
    said = [
        f"{r:g} is {printed(float(radius(r, values)), DOWN, digits=4)} ({levels(r, values)})"
        for r in radii
        if r > 0
    ]
    return [
        f"ℓ∞, as a consequence of ℓ₂: r is r/√{values} at each of {values:,} values (so many of "
        f"{LEVELS} levels): {', '.join(said)}"
    ] * bool(said)
