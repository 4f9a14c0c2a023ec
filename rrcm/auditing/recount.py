"""Recomputes a table of this project: n_A, n and p_A give alpha, p_A and the radius give sigma."""

import math
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from scipy.special import betainc, ndtri

from rrcm.auditing import needed, usual, written
from rrcm.auditing.findings import ERROR, FEW, NOTE, WARNING, Finding, Stated, at
from rrcm.auditing.ladder import around
from rrcm.auditing.needed import SLACK, STEP
from rrcm.auditing.usual import ALPHAS
from rrcm.certification.votes.bounds import beta_quantile, mixture_complement
from rrcm.certification.votes.counts import ABSTAIN
from rrcm.certification.votes.records import END

MAJORITY = 0.95  # share of rows from which the others count as wrong
COINCIDENCE = 1e-4  # relative difference of a real number and one of a digit; a tenth for two
FIXED = {"n", "futile"}  # reasons to stop that claim nothing before n draws
LARGER = "radii are larger than sigma * Phi^-1(p_A), as those of the certificate two_class are"
SAMPLE = 40  # rows, or up to twice as many, whose bounds are computed by a slow formula

Interval = tuple[float, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Recount:
    """The alpha of a table's bounds, its sigma, and whether drawing stopped early.

    ``n`` are the most draws of a row; ``early``: no row says that it has all that were asked for.
    ``level`` and ``sigma`` are intervals, or None where no value explains most rows. Radii of
    ``two_classes`` depend on votes of the runner-up, which a table does not have. ``claims`` are
    the rows with a bound of votes. No row without a finding needs a larger alpha than ``least``.
    """

    n: int
    adaptive: bool
    early: bool
    level: Interval | None
    least: float
    sigma: Interval | None
    claims: pd.DataFrame
    two_classes: bool
    findings: list[Finding]


def recount(table: pd.DataFrame, stated: Stated) -> Recount:
    """Recompute a table of `certify`; its index are lines of its file.

    Guarantee: no `p_A` or radius above that of unanimous votes is without an error, at the stated
    alpha and sigma, or else at the sigma of most rows and at `needed.LAXEST`.
    """
    hits, draws, p = (table[name].to_numpy() for name in ("n_A", "n", "p_A"))
    lines = table.index
    possible = (hits >= 0) & (hits <= draws) & (p >= 0) & (p < 1)
    findings = at(
        ERROR, lines, ~possible, "n_A, n and p_A are not votes, draws and a bound of theirs"
    )
    claims = possible & (hits > 0) & (p > 0)
    findings += at(
        ERROR, lines, claims & (p * draws > hits), "p_A is above the share of votes that it bounds"
    )
    stops = table["stop"].to_numpy(dtype=str)
    n = int(draws.max(initial=0))
    adaptive = bool((~np.isin(stops, [*FIXED]) | ((draws < n) & (stops != "n") & (p > 0))).any())
    other = (stops == "n") & (draws != n)
    findings += at(ERROR, lines, other, f"draws are fewer than the {n:,} of other rows: mixed n")
    level = None
    if claims.any():
        level, more = _level(table[claims], adaptive=adaptive)
        findings += more
    radius = table["radius"].to_numpy()
    answered = np.isfinite(radius) & (radius > 0) & (table["predict"].to_numpy() != ABSTAIN)
    bounded = answered & claims & (p > 0.5)
    sigma, two_classes, bare = None, False, answered & ~bounded
    most = needed.LAXEST if stated.alpha is None else stated.alpha
    if bounded.any():
        exact = None if adaptive else level  # else a bound may be of another look
        sigma, two_classes, more = _sigma(table[bounded], level=level, exact=exact, most=most, n=n)
        findings += more
        if two_classes:  # bounds of both may give a radius where p_A is below ½
            bare &= ~claims
    findings += at(ERROR, lines, bare, "there is a radius, but p_A is not above ½")
    largest = usual.meant(stated.sigma)[1] if stated.sigma else sigma[1] if sigma else None
    alphas = needed.of_rows(table, adaptive=adaptive, sigma=largest)
    alphas *= 2 if two_classes else 1  # each bound has half of alpha
    known = {line for one in findings if one.level == ERROR for line in one.lines}
    alphas[np.isin(lines, [*known])] = 0.0
    text = f"p_A or a radius is above that of unanimous votes at alpha = {most:g}"
    above = at(ERROR, lines, alphas > most * (1 + 1e-6), text)
    findings += [replace(one, of_stated=stated.alpha is not None) for one in above]
    return Recount(
        n=n,
        adaptive=adaptive,
        early=adaptive and END not in stops,
        level=level,
        least=float(alphas[alphas <= most].max(initial=0.0)),
        sigma=sigma,
        claims=table[claims],
        two_classes=two_classes,
        findings=findings + _further_radii(table),
    )


def _level(table: pd.DataFrame, *, adaptive: bool) -> tuple[Interval | None, list[Finding]]:
    """The alphas of p_A in rows with votes for a class, if one explains most of them.

    If drawing was ``adaptive``, a bound may be that of an earlier look, so that no row is wrong.
    """
    low, high = levels(table)
    level = low < needed.LAXEST  # of others, `needed.of_rows` tells
    if not level.any():
        return None, []
    low, high, table = low[level], high[level], table[level]
    left, right, inside = common(low, np.minimum(high, needed.LAXEST))
    middle = math.sqrt(left * right)
    if left > 0 and inside.mean() >= MAJORITY:
        text = f"p_A is not the bound of n_A votes that other rows have, at alpha = {middle:.4g}"
        return (left, right), [] if adaptive else at(ERROR, table.index, ~inside, text)
    if adaptive:
        mixtures = (alpha for alpha in ALPHAS if has_mixture(some(table), alpha).mean() >= 0.5)
        alpha = next(mixtures, None)
        return None if alpha is None else (alpha, alpha), []
    if not inside.all():
        other, _, also = common(low[~inside], high[~inside])
        if also.sum() > FEW and inside.sum() + also.sum() >= MAJORITY * len(table):
            text = f"p_A is at alpha = {other:.4g}, in other rows at {middle:.4g}: mixed alpha"
            return (left, right), at(ERROR, table.index, ~inside, text)
    text = "p_A is no Clopper–Pearson bound of n_A votes at any one alpha"
    return None, [Finding(level=NOTE, text=text)]


def _sigma(
    table: pd.DataFrame,
    *,
    level: Interval | None,
    exact: Interval | None,
    most: float,
    n: int,
) -> tuple[Interval, bool, list[Finding]]:
    """The sigmas of the radius in rows with p_A > ½, and whether radii are of two classes' bounds.

    ``level`` gives p_A before it was rounded, in rows where it is Clopper-Pearson's at that alpha;
    it is ``exact`` if all bounds are of ``n`` draws. Else it is at most ``most``.
    """
    r, z, upper = table["radius"].to_numpy(), *_quantiles(table, level)
    step = np.maximum(written.units(r), STEP)  # a table may have fewer decimals than `certify`

    def sigmas(shift: float) -> tuple[np.ndarray, np.ndarray]:
        """The sigmas of each radius if it was rounded up by at most ``shift`` last places."""
        to = r + (1 - shift) * step + STEP * (step > STEP)  # `certify` rounded them before
        least, most = (r - shift * step) / upper, to / z
        return least * (1 - SLACK), most * (1 + SLACK)

    low, high = sigmas(0.0)
    left, right, inside = common(low, high)
    if inside.all():
        return (left, right), False, []
    for shift, how in ((1.0, "up"), (0.5, "to the nearest")):
        sigma, _, within = common(*sigmas(shift))
        if within.mean() >= MAJORITY and within.sum() - inside.sum() > (1 - MAJORITY) * len(r):
            text = f"radii were rounded {how}, beyond the certified ones"
            return (sigma, sigma), False, [Finding(level=ERROR, text=text)]
    share = _two_classes(table, upper, exact[1] if exact else most)
    if inside.mean() < 0.5:  # radii of one class have one share of z, those of two do not
        of_both = _of_two_classes(table, r + step, z, upper, share=share, exact=exact, n=n)
        if of_both is not None:
            return of_both[0], True, of_both[1]
    above, below = ~inside & (low > right), ~inside & (low <= right)
    possible = above & (low <= right * share)
    if (inside | possible).all() and possible.sum() > max(FEW, 0.02 * len(r)):
        return (left, right), True, [Finding(level=NOTE, text=LARGER)]
    if below.sum() > FEW:
        other, _, also = common(low[below], high[below])
        if also.sum() > max(FEW, MAJORITY * below.sum()):
            text = f"radii are of sigma = {other:.4g}, in other rows of {left:.4g}: mixed sigma"
            return (left, right), False, at(ERROR, table.index, ~inside, text)
    text = f"the radius is {{}} sigma * Phi^-1(p_A) at sigma = {left:.6g} of the other rows"
    wrong = at(ERROR, table.index, above, text.format("above"))
    return (left, right), False, wrong + at(WARNING, table.index, below, text.format("below"))


def levels(table: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """The alphas [R] at which Clopper-Pearson's bound of n_A votes, rounded down, is p_A.

    It is the p at which n_A votes or more have probability alpha (eq. 11).
    """
    k, n, p = (table[name].to_numpy(dtype=np.float64) for name in ("n_A", "n", "p_A"))
    above = np.minimum(p + STEP * (1 + 1e-6), 1.0)
    return betainc(k, n - k + 1, p), betainc(k, n - k + 1, above)


def has_mixture(table: pd.DataFrame, alpha: float) -> np.ndarray:
    """Which p_A are the bound of the mixture martingale (eq. 17) at ``alpha``, bool [R]."""
    rows = zip(table["n_A"], table["n"], table["p_A"], strict=True)
    return np.array(
        [-1e-9 <= 1 - mixture_complement(int(k), int(n), alpha) - p < STEP for k, n, p in rows],
        dtype=bool,
    )


def some(table: pd.DataFrame) -> pd.DataFrame:
    """``SAMPLE`` rows to twice as many, evenly chosen; all rows of a shorter table."""
    return table.iloc[:: max(1, len(table) // SAMPLE)]


def common(
    low: np.ndarray, high: np.ndarray, *, digits: int = 3
) -> tuple[float, float, np.ndarray]:
    """The interval contained in most of the intervals [low, high], [R], and a mask of those, [R].

    If a decimal of at most ``digits`` lies in as many, it is returned instead: such values are
    usual. It may lie in a few less if none are in all, or if it is too near for a coincidence.
    """
    starts, ends = np.sort(low), np.sort(high)
    count = np.searchsorted(starts, starts, "right") - np.searchsorted(ends, starts, "left")
    best = starts[count.argmax()]
    inside = (low <= best) & (high >= best)
    left, right = float(best), float(high[inside].min())
    for length in range(1, digits + 1 if left + right > 0 else 1):
        short = float(f"{(left + right) / 2:.{length - 1}e}")
        within = (low <= short) & (high >= short)
        gap = max(left - short, short - right, 0.0) / short
        coincides = inside.all() and gap * 10**length > COINCIDENCE
        if within.sum() >= inside.sum() - (0 if coincides else max(3, 0.02 * len(low))):
            return short, short, within
    return left, right, inside


def _two_classes(table: pd.DataFrame, z: np.ndarray, alpha: float) -> np.ndarray:
    """The largest share of sigma * ``z`` = sigma * Phi^-1(p_A) that a radius of two classes can be.

    The runner-up's bound is at most that of no votes among the row's draws, at ``alpha`` (eq. 20);
    where no vote is for another class, it is that of p_A.
    """
    k, n = table["n_A"].to_numpy(), table["n"].to_numpy()
    both = (1 + np.maximum(ndtri(alpha ** (1 / n)) / z, 1)) / 2
    return np.where(k < n, both, 1.0) + SLACK


def _of_two_classes(
    table: pd.DataFrame,
    to: np.ndarray,
    z: np.ndarray,
    upper: np.ndarray,
    *,
    share: np.ndarray,
    exact: Interval | None,
    n: int,
) -> tuple[Interval, list[Finding]] | None:
    """The sigma of the radii up ``to`` the next, if most are of two classes; and findings.

    At ``exact`` levels, the sigma is that for which a whole number of votes for the runner-up gives
    each radius; no other sigma does. Otherwise it is only known to be between those at which all,
    or none, of the votes for other classes are the runner-up's.
    """
    r, lines = table["radius"].to_numpy(), table.index
    low, high = r / upper / share * (1 - SLACK), to / z * (1 + SLACK)
    left, right, inside = common(low, high)
    if inside.mean() < MAJORITY:
        return None
    note = Finding(level=NOTE, text=LARGER)
    if exact is not None and left == right:
        least, most = 2 * r / left - upper, 2 * to / left - z
        k, below, above = around(most, most - least, n, math.sqrt(exact[0] * exact[1]))
        if (possible := np.where(k < n, below, above) >= least - SLACK).mean() >= MAJORITY:
            text = f"no votes for a runner-up give the radius, at sigma = {left:.6g} of other rows"
            return (left, right), [note, *at(ERROR, lines, ~possible, text)]
    left, right, inside = common(low, high, digits=0)
    text = "the radius is of no sigma that other rows may have"
    return (left, right), [note, *at(ERROR, lines, ~inside, text)]


def _quantiles(table: pd.DataFrame, level: Interval | None) -> tuple[np.ndarray, np.ndarray]:
    """Least and largest Phi^-1 of the p_A, [R], that the table has rounded down."""
    p = table["p_A"].to_numpy()
    least, most = ndtri(p), ndtri(np.minimum(p + STEP, 1.0))
    if level is None:
        return least, most
    low, high = levels(table)
    exact = (low <= level[0]) & (level[0] <= high)
    k, n = table["n_A"].to_numpy(), table["n"].to_numpy()
    ends = [-ndtri(beta_quantile(n - k + 1, k, alpha)) for alpha in level]
    return np.where(exact, ends[0], least), np.where(exact, ends[1], most)


def _further_radii(table: pd.DataFrame) -> list[Finding]:
    """Findings about impossible answers and radii of further certificates."""
    findings = []
    for name in table.columns:
        if name.startswith("radius_") and (predict := name.replace("radius", "predict")) in table:
            radius, answer = needed.numbers(table[name]), needed.numbers(table[predict])
            wrong = ~(np.isfinite(radius) & (radius >= 0)) | ((answer < 0) & (radius > 0))
            findings += at(
                ERROR, table.index, wrong, f"`{name}` is no radius, or an abstention has one"
            )
            first = table["predict"].to_numpy()
            other = (first != ABSTAIN) & (answer != ABSTAIN) & (answer != first)
            text = (
                f"`{predict}` is not `predict`: all certificates are of the class with most votes"
            )
            findings += at(ERROR, table.index, other, text)
    return findings
