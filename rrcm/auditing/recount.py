"""Our own table, computed again: n_A, n and p_A give alpha, and p_A and the radius give sigma."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.special import betainc, betainccinv, ndtri

from rrcm.auditing.findings import ERROR, NOTE, WARNING, Finding, at
from rrcm.auditing.usual import ALPHAS
from rrcm.bounds import mixture_complement
from rrcm.certify import DIGITS
from rrcm.evidence import ABSTAIN

STEP = 10.0**-DIGITS  # by which p_A and radius may be rounded down
MOST = 0.95  # share of rows that must agree before the others are to blame
FIXED = {"n", "futile", "skipped"}  # reasons to stop of rules that claim after n draws only


@dataclass(frozen=True, kw_only=True, slots=True)
class Recount:
    """What our table shows: the level of its bounds, its sigma, whether it stopped early.

    ``level`` and ``sigma`` are intervals, or None where no value explains most rows.
    """

    n: int
    adaptive: bool
    level: tuple[float, float] | None
    sigma: tuple[float, float] | None
    rows: int
    findings: list[Finding]


def recount(table: pd.DataFrame, lines: np.ndarray) -> Recount:
    """Recompute what can be of a table of `rrcm.certify`, rows at ``lines`` [N] of their file."""
    hits, draws, p = (table[name].to_numpy() for name in ("n_A", "n", "p_A"))
    possible = (hits >= 0) & (hits <= draws) & (p >= 0) & (p < 1)
    found = at(ERROR, lines, ~possible, "n_A, n and p_A are not votes, draws and a bound of theirs")
    claims = possible & (hits > 0) & (p > 0)
    found += at(
        ERROR, lines, claims & (p * draws > hits), "p_A is above the share of votes that it bounds"
    )
    stops = table["stop"].to_numpy(dtype=str)
    n = int(draws.max(initial=0))
    adaptive = bool((~np.isin(stops, [*FIXED]) | ((draws < n) & (stops != "n") & (p > 0))).any())
    if not adaptive:
        other = (stops == "n") & (draws != n)
        found += at(ERROR, lines, other, f"draws are fewer than the {n:,} of other rows: mixed n")
    level, exact, more = _level(hits, draws, p, claims, lines, adaptive=adaptive)
    sigma, even_more = _sigma(table, exact, claims, lines)
    return Recount(
        n=n,
        adaptive=adaptive,
        level=level,
        sigma=sigma,
        rows=int(claims.sum()),
        findings=found + more + even_more + _others(table, lines),
    )


def common(low: np.ndarray, high: np.ndarray) -> tuple[float, float, np.ndarray]:
    """The interval that lies in most of the intervals [low, high], [R], and which those are.

    Where a short decimal lies in nearly as many, it is the interval: people choose such values.
    """
    starts, ends = np.sort(low), np.sort(high)
    count = np.searchsorted(starts, starts, "right") - np.searchsorted(ends, starts, "left")
    best = starts[count.argmax()]
    inside = (low <= best) & (high >= best)
    left, right = float(best), float(high[inside].min())
    for digits in range(1, 4):
        short = float(f"{(left + right) / 2:.{digits - 1}e}")
        within = (low <= short) & (high >= short)
        if within.sum() >= inside.sum() - max(3, 0.02 * len(low)):
            return short, short, within
    return left, right, inside


def _level(
    hits: np.ndarray,
    draws: np.ndarray,
    p: np.ndarray,
    claims: np.ndarray,
    lines: np.ndarray,
    *,
    adaptive: bool,
) -> tuple[tuple[float, float] | None, np.ndarray, list[Finding]]:
    """The level of the bounds, and complements at its ends, [2, N]; NaN where it does not hold."""
    unknown = np.full((2, len(p)), np.nan)
    exact = unknown.copy()
    if claims.sum() == 0:
        return None, exact, []
    k, n = hits[claims].astype(np.float64), draws[claims].astype(np.float64)
    # Clopper-Pearson's bound is the p at which k hits or more have probability alpha (eq. 11).
    low = betainc(k, n - k + 1, p[claims])
    high = betainc(k, n - k + 1, np.minimum(p[claims] + STEP * (1 + 1e-6), 1.0))
    left, right, inside = common(low, high)
    agree = np.zeros(len(p), dtype=bool)
    agree[claims] = inside
    middle = float(np.sqrt(left * right))
    for end, alpha in enumerate((left, right)):
        exact[end, agree] = betainccinv((draws - hits + 1)[agree], hits[agree], alpha)
    if inside.mean() >= MOST and left > 0:
        text = f"p_A is not the bound of n_A votes that other rows have, at alpha = {middle:.4g}"
        odd = claims & ~agree
        return (left, right), exact, [] if adaptive else at(ERROR, lines, odd, text)
    if adaptive:
        level = _mixture(hits[claims], draws[claims], p[claims])
        return (None if level is None else (level, level)), unknown, []
    rest = ~inside
    other, _, also = common(low[rest], high[rest])
    if inside.mean() + also.sum() / len(k) >= MOST and also.sum() > 3:
        odd = claims.copy()
        odd[claims] = rest
        text = f"p_A is at alpha = {other:.4g}, in other rows at {middle:.4g}: mixed alpha"
        return (left, right), exact, at(ERROR, lines, odd, text)
    text = "p_A is no Clopper–Pearson bound of n_A votes at any one alpha; of soft votes, perhaps"
    return None, unknown, [Finding(level=NOTE, text=text)]


def _mixture(hits: np.ndarray, draws: np.ndarray, p: np.ndarray) -> float | None:
    """The usual alpha at which most rows, of a few, have the mixture's bound."""
    chosen = np.linspace(0, len(p) - 1, min(len(p), 40)).astype(int)
    rows = [(int(hits[i]), int(draws[i]), float(p[i])) for i in chosen]
    shares = {
        alpha: np.mean(
            [-1e-9 <= 1 - mixture_complement(k, n, alpha) - b < STEP for k, n, b in rows]
        )
        for alpha in ALPHAS
    }
    level = max(shares, key=lambda alpha: shares[alpha])
    return level if shares[level] > 0.5 else None


def _sigma(
    table: pd.DataFrame, exact: np.ndarray, claims: np.ndarray, lines: np.ndarray
) -> tuple[tuple[float, float] | None, list[Finding]]:
    """The sigma of radius = sigma * Phi^-1(p_A), and the rows that have another."""
    radius, p = table["radius"].to_numpy(), table["p_A"].to_numpy()
    answered = np.isfinite(radius) & (radius > 0) & (table["predict"].to_numpy() != ABSTAIN)
    bare = answered & ~(claims & (p > 0.5))
    found = at(ERROR, lines, bare, "there is a radius, but p_A is not above ½")
    rows = answered & claims & (p > 0.5)
    if not rows.any():
        return None, found
    r, known = radius[rows], ~np.isnan(exact[0, rows])
    z = np.where(known, -ndtri(exact[0, rows]), ndtri(p[rows]))
    upper = np.where(known, -ndtri(exact[1, rows]), ndtri(np.minimum(p[rows] + STEP, 1.0)))
    low, high = r / upper * (1 - 1e-10), (r + STEP) / z * (1 + 1e-10)
    left, right, inside = common(low, high)
    above, off = low > right, np.zeros(len(radius), dtype=bool)
    off[rows] = ~inside
    if inside.all():
        return (left, right), found
    for shift, how in ((1.0, "up"), (0.5, "to the nearest")):
        least, most = (r - shift * STEP) / upper, (r + (1 - shift) * STEP) / z
        written, _, within = common(least * (1 - 1e-10), most * (1 + 1e-10))
        if inside.mean() < MOST <= within.mean():
            text = f"radii were rounded {how}, beyond the certified ones"
            return (written, written), [*found, Finding(level=ERROR, text=text)]
    other, _, also = common(low[~inside], high[~inside])
    if also.sum() > 3 and also.mean() >= 0.8:
        text = f"the radius is of sigma = {other:.4g}, in other rows of {left:.4g}: mixed sigma"
        return (left, right), found + at(ERROR, lines, off, text)
    if (~inside).sum() > max(3, 0.02 * len(r)) and above[~inside].all():
        text = "radii are larger than sigma * Phi^-1(p_A), as a certificate of two classes may be"
        more = at(ERROR, lines, bare & ~claims, "there is a radius, but no bound")
        return (left, right), [*more, Finding(level=NOTE, text=text)]
    high_up, low_down = off.copy(), off.copy()
    high_up[rows], low_down[rows] = ~inside & above, ~inside & ~above
    text = f"the radius is {{}} sigma * Phi^-1(p_A) at sigma = {left:.6g} of the other rows"
    return (left, right), [
        *found,
        *at(ERROR, lines, high_up, text.format("above")),
        *at(WARNING, lines, low_down, text.format("below")),
    ]


def _others(table: pd.DataFrame, lines: np.ndarray) -> list[Finding]:
    """Impossible radii of the further certificates."""
    found = []
    for name in table.columns:
        if name.startswith("radius_") and (predict := name.replace("radius", "predict")) in table:
            radius = pd.to_numeric(table[name], errors="coerce").to_numpy(dtype=np.float64)
            answer = pd.to_numeric(table[predict], errors="coerce").to_numpy(dtype=np.float64)
            wrong = ~(np.isfinite(radius) & (radius >= 0)) | ((answer < 0) & (radius > 0))
            found += at(ERROR, lines, wrong, f"`{name}` is no radius, or an abstention has one")
    return found
