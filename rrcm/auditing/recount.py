"""Recomputes a table of this project: n_A, n and p_A give alpha, p_A and the radius give sigma.

For each of the two columns there is a short list of hypotheses about how it was computed, each with
the share of rows that it explains. The first that explains enough is accepted, simple ones first.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from scipy.special import betainc, betainccinv, ndtri

from rrcm.auditing.findings import ERROR, NOTE, WARNING, Finding, at
from rrcm.auditing.usual import ALPHAS
from rrcm.certification.certify import DIGITS
from rrcm.certification.votes.bounds import mixture_complement
from rrcm.certification.votes.counts import ABSTAIN

STEP = 10.0**-DIGITS  # by which p_A and radius may be rounded down
MOST = 0.95  # share of rows from which a hypothesis counts the other rows as wrong
FEW = 3  # rows that may agree by chance
COINCIDENCE = 1e-4  # relative difference of a real number and one of a digit; a tenth for two
SLACK = 1e-10  # relative error of special functions
FIXED = {"n", "futile", "skipped"}  # reasons to stop of rules that claim after n draws only
SAMPLE = 40  # rows, or up to twice as many, whose bounds are computed by a slow formula
LARGER = "radii of at least sigma * Phi^-1(p_A)"

Interval = tuple[float, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Hypothesis:
    """One way in which a column may have been computed, and which of its rows [R] it explains.

    Attributes:
        name: In words, for tests and for people who debug an audit.
        value: The alpha or sigma it infers, as an interval; None if it infers none.
        explained: bool [R].
        needs: The share of rows that it has to explain.
        gains: It has to explain over ``gains`` rows more than the first hypothesis of its list.
        findings: What an audit reports if this is accepted.
    """

    name: str
    value: Interval | None = None
    explained: np.ndarray
    needs: float
    gains: float = -math.inf
    findings: list[Finding] = field(default_factory=list)

    @property
    def fit(self) -> float:
        """The share of rows that it explains."""
        return float(self.explained.mean())


@dataclass(frozen=True, kw_only=True, slots=True)
class Recount:
    """The alpha of a table's bounds, its sigma, and whether drawing stopped early.

    ``level`` and ``sigma`` are intervals, or None where no value explains most rows.
    """

    n: int
    adaptive: bool
    level: Interval | None
    sigma: Interval | None
    rows: int
    findings: list[Finding]


def accept(hypotheses: Iterator[Hypothesis]) -> Hypothesis:
    """The first hypothesis that explains enough rows; the last one of every list needs none."""
    first = one = next(hypotheses)
    while one.fit < one.needs or one.explained.sum() - first.explained.sum() <= one.gains:
        one = next(hypotheses)
    return one


def recount(table: pd.DataFrame, lines: np.ndarray) -> Recount:
    """Recompute a table of `certify`, whose rows are at ``lines`` [N] of their file."""
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
    level = None
    if claims.any():
        bounds = accept(of_bounds(table[claims], lines[claims], adaptive=adaptive))
        level, found = bounds.value, found + bounds.findings
    radius = table["radius"].to_numpy()
    answered = np.isfinite(radius) & (radius > 0) & (table["predict"].to_numpy() != ABSTAIN)
    bounded = answered & claims & (p > 0.5)
    sigma, bare, more = None, answered & ~bounded, []
    if bounded.any():
        radii = accept(of_radii(table[bounded], lines[bounded], level=level, n=n))
        sigma, more = radii.value, radii.findings
        if radii.name == LARGER:  # two classes' bounds may give a radius where p_A is below ½
            bare &= ~claims
    found += at(ERROR, lines, bare, "there is a radius, but p_A is not above ½")
    return Recount(
        n=n,
        adaptive=adaptive,
        level=level,
        sigma=sigma,
        rows=int(claims.sum()),
        findings=found + more + _further_radii(table, lines),
    )


def of_bounds(table: pd.DataFrame, lines: np.ndarray, *, adaptive: bool) -> Iterator[Hypothesis]:
    """Hypotheses about p_A in rows with votes for a class; the values are levels alpha.

    If drawing was ``adaptive``, a bound may be that of an earlier look, so that no row is wrong.
    """
    low, high = levels(table)
    left, right, inside = common(low, high)
    middle = math.sqrt(left * right)
    text = f"p_A is not the bound of n_A votes that other rows have, at alpha = {middle:.4g}"
    yield Hypothesis(
        name="Clopper-Pearson at one alpha",
        value=(left, right),
        explained=inside & (left > 0),
        needs=MOST,
        findings=[] if adaptive else at(ERROR, lines, ~inside, text),
    )
    nothing = np.zeros(len(table), dtype=bool)
    if adaptive:
        for alpha in ALPHAS:
            explained = has_mixture(some(table), alpha)
            name = f"mixture martingale at {alpha:g}"
            yield Hypothesis(name=name, value=(alpha, alpha), explained=explained, needs=0.5)
        yield Hypothesis(name="bounds of several looks", explained=nothing, needs=0)
        return
    other, both = _second(low, high, inside)
    text = f"p_A is at alpha = {other:.4g}, in other rows at {middle:.4g}: mixed alpha"
    yield Hypothesis(
        name="Clopper-Pearson at two alphas",
        value=(left, right),
        explained=both,
        needs=MOST,
        gains=FEW,
        findings=at(ERROR, lines, ~inside, text),
    )
    text = "p_A is no Clopper–Pearson bound of n_A votes at any one alpha; of soft votes, perhaps"
    yield Hypothesis(
        name="no Clopper-Pearson bound",
        explained=nothing,
        needs=0,
        findings=[Finding(level=NOTE, text=text)],
    )


def of_radii(
    table: pd.DataFrame, lines: np.ndarray, *, level: Interval | None, n: int
) -> Iterator[Hypothesis]:
    """Hypotheses about the radius in rows with p_A > ½; the values are sigmas.

    ``level`` gives p_A before it was rounded, in rows where it is Clopper-Pearson's at that alpha.
    ``n`` is the most draws of a row.
    """
    r, z, upper = table["radius"].to_numpy(), *_quantiles(table, level)

    def sigmas(shift: float) -> tuple[np.ndarray, np.ndarray]:
        """The sigmas of each radius if it was rounded up by at most ``shift`` last places."""
        least, most = (r - shift * STEP) / upper, (r + (1 - shift) * STEP) / z
        return least * (1 - SLACK), most * (1 + SLACK)

    low, high = sigmas(0.0)
    left, right, inside = common(low, high)
    above, below = ~inside & (low > right), ~inside & (low <= right)
    yield Hypothesis(name="one sigma", value=(left, right), explained=inside, needs=1)
    for shift, how in ((1.0, "up"), (0.5, "to the nearest")):
        sigma, _, within = common(*sigmas(shift))
        text = f"radii were rounded {how}, beyond the certified ones"
        yield Hypothesis(
            name=f"radii rounded {how}",
            value=(sigma, sigma),
            explained=within,
            needs=MOST,
            gains=(1 - MOST) * len(r),
            findings=[Finding(level=ERROR, text=text)],
        )
    other, both = _second(low, high, inside)
    text = f"the radius is of sigma = {other:.4g}, in other rows of {left:.4g}: mixed sigma"
    yield Hypothesis(
        name="two sigmas",
        value=(left, right),
        explained=both,
        needs=1 - 0.2 * float((~inside).mean()),  # it must explain four fifths of the other rows
        gains=FEW,
        findings=at(ERROR, lines, ~inside, text),
    )
    text = "radii are larger than sigma * Phi^-1(p_A), as a certificate of two classes may be"
    yield Hypothesis(
        name=LARGER,
        value=(left, right),
        explained=inside | (above & (low <= right * _two_classes(upper, level, n))),
        needs=1,
        gains=max(FEW, 0.02 * len(r)),
        findings=[Finding(level=NOTE, text=text)],
    )
    text = f"the radius is {{}} sigma * Phi^-1(p_A) at sigma = {left:.6g} of the other rows"
    yield Hypothesis(
        name="one sigma, with exceptions",
        value=(left, right),
        explained=inside,
        needs=0,
        findings=[
            *at(ERROR, lines, above, text.format("above")),
            *at(WARNING, lines, below, text.format("below")),
        ],
    )


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


def common(low: np.ndarray, high: np.ndarray) -> tuple[float, float, np.ndarray]:
    """The interval contained in most of the intervals [low, high], [R], and a mask of those, [R].

    If a short decimal lies in as many, it is returned instead: such values are usual. It may lie
    in a few less if none are in all, or if it is too near for a coincidence.
    """
    starts, ends = np.sort(low), np.sort(high)
    count = np.searchsorted(starts, starts, "right") - np.searchsorted(ends, starts, "left")
    best = starts[count.argmax()]
    inside = (low <= best) & (high >= best)
    left, right = float(best), float(high[inside].min())
    for digits in range(1, 4):
        short = float(f"{(left + right) / 2:.{digits - 1}e}")
        within = (low <= short) & (high >= short)
        gap = max(left - short, short - right, 0.0) / short
        coincides = inside.all() and gap * 10**digits > COINCIDENCE
        if within.sum() >= inside.sum() - (0 if coincides else max(3, 0.02 * len(low))):
            return short, short, within
    return left, right, inside


def _two_classes(z: np.ndarray, level: Interval | None, n: int) -> np.ndarray:
    """The largest share of sigma * ``z`` = sigma * Phi^-1(p_A) that a radius of two classes can be.

    The runner-up's bound is at most that of no votes among n draws, at the level of p_A (eq. 20).
    """
    if level is None:
        return np.full_like(z, np.inf)
    return (1 + ndtri(level[1] ** (1 / n)) / z) / 2 + SLACK


def _second(low: np.ndarray, high: np.ndarray, inside: np.ndarray) -> tuple[float, np.ndarray]:
    """The start of the interval common to most other intervals, and the rows of both, [R]."""
    if inside.all():
        return float("nan"), inside
    value, _, also = common(low[~inside], high[~inside])
    both = inside.copy()
    both[~inside] = also
    return value, both


def _quantiles(table: pd.DataFrame, level: Interval | None) -> tuple[np.ndarray, np.ndarray]:
    """Least and largest Phi^-1 of the p_A, [R], that the table has rounded down."""
    p = table["p_A"].to_numpy()
    least, most = ndtri(p), ndtri(np.minimum(p + STEP, 1.0))
    if level is None:
        return least, most
    low, high = levels(table)
    exact = (low <= level[0]) & (level[0] <= high)
    k, n = table["n_A"].to_numpy(), table["n"].to_numpy()
    ends = [-ndtri(betainccinv(n - k + 1, k, alpha)) for alpha in level]
    return np.where(exact, ends[0], least), np.where(exact, ends[1], most)


def _further_radii(table: pd.DataFrame, lines: np.ndarray) -> list[Finding]:
    """Findings about impossible radii in the columns of further certificates."""
    found = []
    for name in table.columns:
        if name.startswith("radius_") and (predict := name.replace("radius", "predict")) in table:
            radius = pd.to_numeric(table[name], errors="coerce").to_numpy(dtype=np.float64)
            answer = pd.to_numeric(table[predict], errors="coerce").to_numpy(dtype=np.float64)
            wrong = ~(np.isfinite(radius) & (radius >= 0)) | ((answer < 0) & (radius > 0))
            found += at(ERROR, lines, wrong, f"`{name}` is no radius, or an abstention has one")
    return found
