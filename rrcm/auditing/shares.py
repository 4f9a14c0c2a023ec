"""Detects a rule that keeps half of alpha for its last look, by bounds at half of alpha."""

import math

import numpy as np

from rrcm.auditing.findings import NOTE, Finding
from rrcm.auditing.recount import Recount, has_mixture, levels, some
from rrcm.auditing.usual import COMMON

HALF = 0.5  # share of the rows stopped early that must have the same kind of bound


def spent(again: Recount, alpha: float | None) -> tuple[int, list[Finding]]:
    """How many times the level of its bounds a table's alpha is, and why.

    Compares the bounds of rows that stopped early with those of the last look. ``alpha`` is the
    stated one, or None.
    """
    both = 2 if again.two_classes else 1  # half of alpha for each of both bounds
    if again.level is None or (again.two_classes and not again.adaptive):
        return both, []
    level = float(np.sqrt(again.level[0] * again.level[1]))
    stopped = again.claims["n"] < again.n
    early, late = some(again.claims[stopped]), some(again.claims[~stopped])
    if not len(early):
        return both, perhaps(both * level, alpha)
    if has_mixture(early, level).mean() <= HALF:
        return both, []
    low, high = levels(late)
    exact = (low <= level * (1 + 1e-6)) & (level <= high * (1 + 1e-6))
    if (exact & ~has_mixture(late, level)).any():
        text = (
            f"bounds hold at alpha = {both * level:.4g}: with the stopping rule grid, half of "
            f"alpha = {2 * both * level:.4g} is kept for the last look"
        )
        return 2 * both, [Finding(level=NOTE, text=text)]
    return both, [] if len(late) else [_half(both * level)]  # else `anytime`: the same at all looks


def perhaps(alpha: float, stated: float | None = None) -> list[Finding]:
    """A note if ``alpha``, the level of all bounds, is half of the stated or of a common alpha."""
    undivided = COMMON["alpha"] if stated is None else (stated,)
    halved = any(math.isclose(2 * alpha, level, rel_tol=1e-3) for level in undivided)
    return [_half(alpha)] if halved else []


def _half(level: float) -> Finding:
    text = (
        f"alpha = {level:.4g} may be half of {2 * level:.4g}, which the table does not show: the "
        "stopping rule grid keeps half for the last look, two_class has half for each of two bounds"
    )
    return Finding(level=NOTE, text=text)
