"""What the radii of a table say of how it was made, where they are all that there is."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd

from rrcm.auditing import ladders, shares, usual, written
from rrcm.auditing.findings import ERROR, NOTE, WARNING, Finding, Inferred, Stated, at
from rrcm.auditing.ladders import Ladder
from rrcm.auditing.naming import Named
from rrcm.auditing.recount import MOST
from rrcm.auditing.written import SLIP
from rrcm.bounds import complement, radius
from rrcm.evidence import ABSTAIN


def explain(
    table: pd.DataFrame, lines: np.ndarray, stated: Stated, named: Named | None = None
) -> tuple[list[Inferred], list[Finding]]:
    """What made the radii of a table, equally good explanations, and rows that differ.

    Nothing is inferred where the radii do not tell, or where most of them are of something else.
    Where no sigma is stated, the one ``named`` by the path is likely, but not taken for granted.
    """
    named = None if stated.sigma is not None else named
    hint = stated if named is None else replace(stated, sigma=named.sigma)
    inferred, found = _explain(table, lines, stated, hint)
    return inferred, found if named is None else [*found, _from_path(named, inferred)]


def _explain(
    table: pd.DataFrame, lines: np.ndarray, stated: Stated, hint: Stated
) -> tuple[list[Inferred], list[Finding]]:
    """The same, with what is likely before any radius was seen."""
    radii, answered = table["radius"].to_numpy(), table["predict"].to_numpy() != ABSTAIN
    rows = np.isfinite(radii) & (radii > 0) & (radii < 1e6) & answered
    if not rows.any():
        return [], [Finding(level=NOTE, text="no image has a radius")]
    r, where = radii[rows], lines[rows]
    unit = written.units(r)
    tried = usual.prior(n=hint.n, alpha=hint.alpha, sigma=hint.sigma)
    found = ladders.infer(r, unit, tried)
    if not found:
        return [], [_untold(), *_above(stated, r, unit, where)]
    first = _fit(found[0], r, unit)
    informative = first.chance <= max(0.5, first.chance.min())
    if first.near()[informative].mean() >= MOST:
        inferred = [_as_inferred(ladder, r, unit) for ladder in found]
        return inferred, [
            *_rounding(found, r, unit, where),
            *_heaped(found[0], r, unit, where),
            *_otherwise(found, stated),
            *_telling(r[informative], len(r)),
            *shares.perhaps(found[0].alpha, stated.alpha),
        ]
    foreign = ~first.hit[found[0].rounding]
    rest = foreign | (first.chance > 0.2)  # what the first has no claim to
    second = [one for one in ladders.infer(r[rest], unit[rest], tried) if one != found[0]]
    both = first.near() | (_fit(second[0], r, unit).near() if second else False)
    if second and both[informative].mean() >= MOST:
        pair = [found[0], second[0]]
        return [_as_inferred(ladder, r, unit) for ladder in pair], _mixed(pair, foreign, where)
    share = first.near()[informative].mean()
    text = (
        f"{100 * share:.0f} % of the radii that tell are of {found[0]}, the others of something "
        "else: draws that stopped early, another bound, or several tables in one"
    )
    half = shares.perhaps(found[0].alpha, stated.alpha)
    return [], [Finding(level=NOTE, text=text), *half, *_above(stated, r, unit, where)]


def _telling(r: np.ndarray, radii: int) -> list[Finding]:
    """How few of the radii it rests on, if others may have any value of their digits."""
    if len(r) > radii / 2:
        return []
    text = (
        f"this rests on {len(r)} of {radii} radii, {len(np.unique(r))} different ones: where the "
        "others lie, possible radii are closer than their last digit"
    )
    return [Finding(level=NOTE, text=text)]


def _fit(ladder: Ladder, r: np.ndarray, unit: np.ndarray) -> ladders.Fit:
    return ladders.fit(r, unit, n=ladder.n, alpha=ladder.alpha, sigma=np.float64(ladder.sigma))


def _as_inferred(ladder: Ladder, r: np.ndarray, unit: np.ndarray) -> Inferred:
    rows = int(_fit(ladder, r, unit).near().sum())
    return Inferred(n=ladder.n, alpha=ladder.alpha, sigma=ladder.sigma, rows=rows)


def _untold() -> Finding:
    text = (
        "n, alpha and sigma cannot be told from the radii: rungs closer than the decimals, too few "
        "radii, draws that stopped early, or an unusual n or alpha"
    )
    return Finding(level=NOTE, text=text)


def _from_path(named: Named, inferred: list[Inferred]) -> Finding:
    """Whether the radii agree with the sigma that was taken from the path."""
    text = f"sigma = {named.sigma:g} was taken from the path ({named.text})"
    sigmas = [one.sigma for one in inferred]
    if not sigmas:
        return Finding(level=NOTE, text=f"{text}; the radii do not confirm it")
    if any(math.isclose(sigma, named.sigma, rel_tol=1e-6) for sigma in sigmas):
        return Finding(level=NOTE, text=f"{text}, and the radii agree with it")
    other = f"the path says sigma = {named.sigma:g} ({named.text}), the radii are of {sigmas[0]:g}"
    if named.training:
        return Finding(level=NOTE, text=f"{other}: the noise of training, perhaps")
    return Finding(level=WARNING, text=f"{other}: is it another table?")


def _above(stated: Stated, r: np.ndarray, unit: np.ndarray, where: np.ndarray) -> list[Finding]:
    """Radii larger than unanimous votes could give, if all three values are stated."""
    n, alpha, sigma = stated.n, stated.alpha, stated.sigma
    if n is None or alpha is None or sigma is None:
        return []
    top = max(0.0, radius(complement(n, n, alpha), sigma=sigma))
    over, rounded = r > top + unit / 2 + SLIP, r > top * (1 + 1e-9)
    text = f"the radius is above {top:.6g}, that of {n:,} unanimous votes as stated"
    nearest = f"{text}, by no more than rounding to the nearest adds"
    return [*at(ERROR, where, over, text), *at(WARNING, where, rounded & ~over, nearest)]


def _rounding(
    found: list[Ladder], r: np.ndarray, unit: np.ndarray, where: np.ndarray
) -> list[Finding]:
    """Rows that no explanation puts on its ladder, and radii written larger than certified."""
    fits = [_fit(ladder, r, unit) for ladder in found]
    off = np.all([~fit.near() for fit in fits], axis=0)
    ceiling = max(ladder.ceiling() for ladder in found)
    high = off & (r > ceiling)
    result = [
        *at(ERROR, where, high, f"the radius is above {ceiling:.6g}, that of unanimous votes"),
        *at(ERROR, where, off & ~high, f"the radius is none that votes can give with {found[0]}"),
    ]
    exact = written.in_full(r, unit)
    if exact or any(ladder.rounding == "down" for ladder in found):
        up = np.all([fit.near() & ~fit.hit["down"] for fit in fits], axis=0) & (not exact)
        return result + at(ERROR, where, up, "the radius was rounded up beyond the certified one")
    if all(ladder.rounding == "up" for ladder in found):
        text = f"radii were rounded up, by up to {unit.max():g} beyond the certified ones"
        return [*result, Finding(level=ERROR, text=text)]
    text = (
        f"radii were rounded to the nearest: about half exceed the certified ones, by up to "
        f"{unit.max() / 2:g}"
    )
    above = np.all([fit.hit["up"] & ~fit.hit["nearest"] & ~fit.hit["down"] for fit in fits], axis=0)
    more = at(ERROR, where, above, "the radius was rounded up beyond the nearest")
    return [*result, Finding(level=WARNING, text=text), *more]


def _heaped(ladder: Ladder, r: np.ndarray, unit: np.ndarray, where: np.ndarray) -> list[Finding]:
    """Rows of one radius that has no neighbours, where rungs are too close to tell anything.

    Radii only heap up at a ceiling: of another sigma or n, whose other rungs are as close.
    """
    top, chance = ladder.ceiling(), _fit(ladder, r, unit).chance
    for value, count in zip(*np.unique(r, return_counts=True), strict=True):
        if chance[r == value][0] < 0.5:
            continue  # rungs so wide have no neighbours anyway
        place = unit[r == value][0]
        around = (np.abs(r - value) < 20 * place).sum() - count
        if value >= top - 2 * place or count < max(5, 0.02 * len(r)) or around > 4 * count:
            continue
        others = [
            replace(ladder, n=n, sigma=sigma)
            for n in usual.DRAWS
            for sigma in usual.SIGMAS
            if (n == ladder.n) != (sigma == ladder.sigma)
        ]
        alike = [one for one in others if 0 <= one.ceiling() - value < place]
        if alike:
            text = f"{count} radii are the largest of {alike[0]}, among those of {ladder}: mixed?"
            return at(WARNING, where, r == value, text)
    return []


def _mixed(pair: list[Ladder], rest: np.ndarray, where: np.ndarray) -> list[Finding]:
    """Two ladders in one table."""
    one, other = pair
    if (one.alpha, one.sigma) == (other.alpha, other.sigma):
        text = f"radii of n = {other.n:,} among those of {one}: two tables, or two stages of one"
        return at(WARNING, where, rest, text)
    return at(ERROR, where, rest, f"the radius is of {other}, others are of {one}: mixed tables")


def _otherwise(found: list[Ladder], stated: Stated) -> list[Finding]:
    """Differences from what was stated, if all explanations have them."""
    result = []
    for name in ("n", "alpha", "sigma"):
        said = getattr(stated, name)
        values = [getattr(ladder, name) for ladder in found]
        if said is None or any(math.isclose(value, said, rel_tol=1e-6) for value in values):
            continue
        if name == "alpha" and shares.perhaps(values[0], said):
            continue  # it says so
        text = f"the radii are of {name} = {values[0]:g}, not of {said:g} as stated"
        less = name == "alpha" and max(values) < said  # claims less than it might
        result.append(Finding(level=WARNING if less else ERROR, text=text))
    return result
