"""How a stopping rule divides alpha among its looks: bounds hold at less than the table does."""

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.special import betainc

from rrcm.auditing.findings import NOTE, Finding
from rrcm.auditing.recount import STEP, Recount
from rrcm.auditing.usual import COMMON
from rrcm.bounds import mixture_complement

MOST = 0.5  # share of rows, of those that stopped early, that show by what bound they did
IMAGES = 40  # of which bounds are computed again


@dataclass(frozen=True, kw_only=True, slots=True)
class Spent:
    """The alpha of a table is ``times`` that of its bounds; ``findings`` say why, in words."""

    times: int
    findings: list[Finding]


def spent(table: pd.DataFrame, again: Recount, alpha: float | None) -> Spent:
    """What the stopping rule divides, as far as bounds show it; somebody stated ``alpha``."""
    once = Spent(times=1, findings=[])
    if again.level is None:
        return once
    level = float(np.sqrt(again.level[0] * again.level[1]))
    votes = (table["n_A"] > 0) & (table["n_A"] <= table["n"])
    claims = votes & (table["p_A"] > 0) & (table["p_A"] < 1)
    early = _some(table[claims & (table["n"] < again.n)])
    late = _some(table[claims & (table["n"] == again.n)])
    mixed, kept = _mixture(early, level), _exact(late, level) & ~_mixture(late, level)
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
            "the stopping rule horvath divides alpha among them"
        )
        return Spent(times=stages, findings=[_note(text)])
    return once if len(early) else Spent(times=1, findings=perhaps(level, alpha))


def perhaps(alpha: float, stated: float | None = None) -> list[Finding]:
    """A note where ``alpha``, at which all bounds hold, is half of the stated or a common one."""
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


def _some(table: pd.DataFrame) -> pd.DataFrame:
    """A few rows, evenly chosen."""
    return table.iloc[:: max(1, len(table) // IMAGES)]


def _mixture(table: pd.DataFrame, level: float) -> np.ndarray:
    """Which bounds are those of the mixture martingale (eq. 17) at ``level``."""
    rows = zip(table["n_A"], table["n"], table["p_A"], strict=True)
    return np.array(
        [-1e-9 <= 1 - mixture_complement(int(k), int(n), level) - p < STEP for k, n, p in rows],
        dtype=bool,
    )


def _exact(table: pd.DataFrame, level: float) -> np.ndarray:
    """Which bounds are Clopper and Pearson's (eq. 11) at ``level``."""
    k, n, p = (table[name].to_numpy(dtype=np.float64) for name in ("n_A", "n", "p_A"))
    least = betainc(k, n - k + 1, p)
    most = betainc(k, n - k + 1, np.minimum(p + STEP * (1 + 1e-6), 1.0))
    return (least <= level * (1 + 1e-6)) & (level <= most * (1 + 1e-6))
