"""Schedules of EMA momentum, learning rate and loss weights.

Equation numbers are those of docs/theory.md.
"""

import math

from rrcm.config.sections import Momentum


def ema_momentum(step: int, *, steps: int, target: Momentum) -> float:
    """Momentum of the EMA target at ``step`` of ``steps`` (eq. 5).

    A sigmoid that starts at ``start`` and covers the share tanh(steepness / 2) of the way to
    ``end``. Those of a run of ``target.steps`` are raised to the power ``target.steps / steps``, so
    that the target averages over the same share of a run of any length.
    """
    power = target.steps / steps if target.steps else 1.0
    start, end = target.start**power, target.end**power
    span = end - start
    level = math.sqrt(min(step, steps) / steps * (end**2 - start**2) + start**2)
    a = 2 / (1 + math.exp(-target.steepness * (level - start) / span)) - 1
    return a * end + (1 - a) * start


def warmup_cosine(step: int, *, steps: int, warmup: int) -> float:
    """Share of the peak learning rate at ``step``: linear warm-up, then half a cosine to 0."""
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))


def ramp(done: float, *, warmup: float) -> float:
    """Factor of a loss weight or a radius that rises linearly to 1 over a share ``warmup``.

    ``done`` is the share of the training that has passed.
    """
    return min(1.0, done / warmup) if warmup else 1.0
