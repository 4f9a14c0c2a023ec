"""Detects a stopping rule that divides alpha among looks, by bounds at a part of alpha."""

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd

from rrcm.auditing.findings import NOTE, Finding
from rrcm.auditing.recount import Recount, has_mixture, levels, some
from rrcm.auditing.usual import COMMON

MOST = 0.5  # share of the rows stopped early that must have the same kind of bound


@dataclass(frozen=True, kw_only=True, slots=True)
class Spent:
    """The alpha of a table as a multiple, ``times``, of its bounds' alpha, and why."""

    times: int
    findings: list[Finding]


def spent(table: pd.DataFrame, again: Recount, alpha: float | None) -> Spent:
    """Compare the bounds of rows that stopped early with those of the last look.

    ``alpha`` is the stated one, or None.
    """
    once = Spent(times=1, findings=[])
    if again.level is None:
        return once
    level = float(np.sqrt(again.level[0] * again.level[1]))
    votes = (table["n_A"] > 0) & (table["n_A"] <= table["n"])
    claims = votes & (table["p_A"] > 0) & (table["p_A"] < 1)
    early = some(table[claims & (table["n"] < again.n)])
    late = some(table[claims & (table["n"] == again.n)])
    mixed, kept = has_mixture(early, level), _exact(late, level) & ~has_mixture(late, level)
    if len(early) and mixed.mean() > MOST:
        if kept.any():
            return Spent(times=2, findings=[_note(_grid(level))])
        if len(late):
            return once  # at all looks the same mixture: `anytime`
        return Spent(times=1, findings=[_note(_half(level))])
    if len(early) and _exact(early, level).mean() > MOST:
        stages = table.loc[claims, "n"].nunique()
        text = (
            f"bounds hold at alpha = {level:.4g} in each of {stages} stages, and all together at "
            f"alpha = {stages * level:.4g}, or more if there are stages where no image stopped: "
            "the stopping rule divides alpha among them"
        )
        return Spent(times=stages, findings=[_note(text)])
    return once if len(early) else Spent(times=1, findings=perhaps(level, alpha))


def perhaps(alpha: float, stated: float | None = None) -> list[Finding]:
    """A note if ``alpha``, the level of all bounds, is half of the stated or of a common alpha."""
    wholes = COMMON["alpha"] if stated is None else (stated,)
    halved = any(math.isclose(2 * alpha, whole, rel_tol=1e-3) for whole in wholes)
    return [_note(_half(alpha))] if halved else []


def _grid(level: float) -> str:
    return (
        f"bounds hold at alpha = {level:.4g}: with the stopping rule grid, half of alpha = "
        f"{2 * level:.4g} is kept for the last look"
    )


def _half(level: float) -> str:
    return (
        f"alpha = {level:.4g} may be half of {2 * level:.4g}, which the table does not show: the "
        "stopping rule grid keeps half for the last look, two_class has half for each of two bounds"
    )


def _note(text: str) -> Finding:
    return Finding(level=NOTE, text=text)


def _exact(table: pd.DataFrame, level: float) -> np.ndarray:
    """Which p_A are Clopper and Pearson's bound at ``level``, bool [R]."""
    low, high = levels(table)
    return (low <= level * (1 + 1e-6)) & (level <= high * (1 + 1e-6))
