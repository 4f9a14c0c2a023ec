"""Infers n, alpha and sigma of a table of radii without votes, and finds rows that differ."""

import math
from collections.abc import Callable
from dataclasses import asdict, replace

import numpy as np
import pandas as pd
from scipy.stats import poisson

from rrcm.auditing import attainable_radii, needed, shares, usual, written
from rrcm.auditing.attainable_radii import AttainableRadii
from rrcm.auditing.findings import ERROR, FAR, MOST, NOTE, WARNING, Finding, Inferred, Stated, at
from rrcm.auditing.recount import MAJORITY
from rrcm.auditing.written import SLIP
from rrcm.certification.certify import DOWN, printed
from rrcm.certification.votes.bounds import complement, radius
from rrcm.certification.votes.counts import ABSTAIN

COINCIDENCE = 1e-6  # probability of a heap of radii by chance
UNTOLD = (
    "n, alpha and sigma cannot be told from the radii: rungs closer than the decimals, too few "
    "radii, draws that stopped early, or an unusual n or alpha"
)

AGREE = "radii agree with n, alpha and sigma as stated, which they would not tell by themselves"


def explain(table: pd.DataFrame, stated: Stated) -> tuple[list[Inferred], list[Finding]]:
    """Equally good explanations of the radii of a table, the best first, and findings about rows.

    Its index are lines of its file.
    Nothing is inferred from too little evidence, or where most radii have another origin.
    """
    radii, answered = table["radius"].to_numpy(), table["predict"].to_numpy() != ABSTAIN
    rows = np.isfinite(radii) & (radii > 0) & (radii < FAR) & answered
    if not rows.any():
        return [], [Finding(level=NOTE, text="no image has a radius")]
    r, where = radii[rows], table.index[rows]
    unit = written.units(r)
    tried = usual.prior(n=stated.n, alpha=stated.alpha, sigma=stated.sigma)
    inferred = attainable_radii.infer(r, unit, tried)
    explanations = inferred or attainable_radii.as_stated(r, unit, tried)
    if not explanations:
        return [], [Finding(level=NOTE, text=UNTOLD), *_above(stated, r, unit, where)]
    possible = [one for one in explanations if not apart(one, stated)] or explanations
    first = possible[0].match(r, unit)
    informative = first.chance <= max(0.5, first.chance.min())
    if first.near()[informative].mean() >= MAJORITY:
        return _distinct(explanations, r, unit), [
            *_rounding(possible, r, unit, where),
            *_heaped(possible[0], r, unit, where),
            *_otherwise(possible, stated),
            *_telling(r[informative], len(r), alone=bool(inferred)),
            *shares.perhaps(possible[0].alpha, stated.alpha),
        ]
    foreign = ~first.hit[possible[0].rounding]
    rest = foreign | (first.chance > 0.2)  # radii that the first does not explain, or not surely
    second = [
        one for one in attainable_radii.infer(r[rest], unit[rest], tried) if one != possible[0]
    ]
    both = first.near() | (second[0].match(r, unit).near() if second else False)
    if second and both[informative].mean() >= MAJORITY:
        pair = [possible[0], second[0]]
        return [_as_inferred(candidate, r, unit) for candidate in pair], [
            *_mixed(pair, foreign & both, where),
            *_unattainable(pair, r, unit, where),
            *_otherwise(pair[:1], stated),
            *_otherwise(pair[1:], stated),
        ]
    share = first.near()[informative].mean()
    text = (
        f"{100 * share:.0f} % of the radii that tell are of {possible[0]}, the others of "
        "something else: draws that stopped early, another bound, or several tables in one"
    )
    half = shares.perhaps(possible[0].alpha, stated.alpha)
    return [], [Finding(level=NOTE, text=text), *half, *_above(stated, r, unit, where)]


def _telling(r: np.ndarray, radii: int, *, alone: bool) -> list[Finding]:
    """A note if the inference rests on less than half of the radii ``r`` of so many, or on none.

    ``alone``: radii tell n, alpha and sigma by themselves, not only whether they are as stated.
    """
    if not alone:
        return [Finding(level=NOTE, text=AGREE)]
    if len(r) > radii / 2:
        return []
    text = (
        f"this rests on {len(r)} of {radii} radii, {len(np.unique(r))} different ones: where the "
        "others lie, possible radii are closer than their last digit"
    )
    return [Finding(level=NOTE, text=text)]


def _distinct(
    explanations: list[AttainableRadii], r: np.ndarray, unit: np.ndarray
) -> list[Inferred]:
    """Explanations that differ in more than how radii are rounded, each with its best sigma."""
    best = {one.place: one for one in reversed(explanations)}
    return [_as_inferred(one, r, unit) for one in explanations if one in best.values()]


def _as_inferred(candidate: AttainableRadii, r: np.ndarray, unit: np.ndarray) -> Inferred:
    rows = int(candidate.match(r, unit).near().sum())
    return Inferred(**asdict(candidate), rows=rows)


def _above(stated: Stated, r: np.ndarray, unit: np.ndarray, where: pd.Index) -> list[Finding]:
    """Findings about radii above that of unanimous votes, if sigma is stated.

    What else is not stated is the largest: radii in units of 0..255 are above even that.
    """
    if stated.sigma is None:
        return []
    n, alpha = stated.n or MOST, stated.alpha or needed.LAXEST
    top = max(0.0, radius(complement(n, n, alpha), sigma=usual.meant(stated.sigma)[1]))
    over, rounded = r > top + unit / 2 + SLIP, r > top * (1 + 1e-9)
    most, at_alpha = printed(top, DOWN, digits=6), f"{n:,} unanimous votes at alpha = {alpha:g}"
    text = f"the radius is above {most}, that of {at_alpha} with sigma = {stated.sigma:g} as stated"
    nearest = f"radii were rounded to the nearest, perhaps: {text}"
    above = [replace(one, of_stated=True) for one in at(ERROR, where, over, text)]
    return [*above, *at(WARNING, where, rounded & ~over, nearest)]


def _rounding(
    explanations: list[AttainableRadii], r: np.ndarray, unit: np.ndarray, where: pd.Index
) -> list[Finding]:
    """Findings about unattainable radii and about radii rounded up beyond the certified ones."""
    matches = [candidate.match(r, unit) for candidate in explanations]
    result = _unattainable(explanations, r, unit, where)
    clean = [candidate for candidate in explanations if candidate.rounding != "up"]
    if explanations[0].rounding == "up" and clean:
        text = (
            f"radii are of {explanations[0]}, rounded up, or of {clean[0]}: a stated sigma would "
            "tell"
        )
        result.append(Finding(level=NOTE, text=text))
    exact = written.in_full(r, unit)
    if exact or any(candidate.rounding == "down" for candidate in explanations):
        up = np.all([one.near() & ~one.hit["down"] for one in matches], axis=0) & (not exact)
        return result + at(ERROR, where, up, "the radius was rounded up beyond the certified one")
    if not clean:
        text = f"radii were rounded up, by up to {unit.max():g} beyond the certified ones"
        return [*result, Finding(level=ERROR, text=text)]
    text = (
        f"radii were rounded to the nearest: about half exceed the certified ones, by up to "
        f"{unit.max() / 2:g}"
    )
    above = np.all(
        [one.hit["up"] & ~one.hit["nearest"] & ~one.hit["down"] for one in matches], axis=0
    )
    more = at(ERROR, where, above, "the radius was rounded up beyond the nearest")
    return [*result, Finding(level=WARNING, text=text), *more]


def _unattainable(
    explanations: list[AttainableRadii], r: np.ndarray, unit: np.ndarray, where: pd.Index
) -> list[Finding]:
    """Findings about radii that none of the explanations can give."""
    off = np.all([~candidate.match(r, unit).near() for candidate in explanations], axis=0)
    ceiling = max(candidate.ceiling() for candidate in explanations)
    most = printed(ceiling, DOWN, digits=6)
    text = f"the radius is none that votes can give with {explanations[0]}"
    high = off & (r > ceiling)
    return [
        *at(ERROR, where, high, f"the radius is above {most}, that of unanimous votes"),
        *at(ERROR, where, off & ~high, text),
    ]


def _heaped(
    candidate: AttainableRadii, r: np.ndarray, unit: np.ndarray, where: pd.Index
) -> list[Finding]:
    """A finding about many rows of one radius where attainable radii lie close together.

    Radii heap up only at the largest attainable one: here, that of another sigma or n.
    """
    top, chance = candidate.ceiling(), candidate.match(r, unit).chance
    values, counts = np.unique(r, return_counts=True)
    for value, count in zip(values, counts, strict=True):
        place = unit[r == value][0]
        if chance[r == value][0] < 0.5 or value >= top - 2 * place:
            continue  # attainable radii lie far apart here, or are the largest
        around = (np.abs(r - value) < 20 * place).sum() - count
        # 40 places share those around, or 20, where attainable radii lie two places apart.
        chances = poisson.sf(count - 1, (around + 1) / 20) * len(values)
        if count < 0.02 * len(r) or chances > COINCIDENCE:
            continue
        others = [replace(candidate, n=n) for n in usual.DRAWS if n != candidate.n]
        others += [replace(candidate, sigma=s) for s in usual.SIGMAS if s != candidate.sigma]
        alike = [one for one in others if 0 <= one.ceiling() - value < place]
        if alike:
            text = (
                f"{count} radii are the largest of {alike[0]}, among those of {candidate}: mixed?"
            )
            return at(WARNING, where, r == value, text)
    return []


def _mixed(pair: list[AttainableRadii], rest: np.ndarray, where: pd.Index) -> list[Finding]:
    """A finding about a table with radii of two origins; ``rest`` are the rows of the second."""
    one, other = pair
    if (one.alpha, one.sigma) == (other.alpha, other.sigma):
        text = f"radii of n = {other.n:,} among those of {one}: two tables, or two stages of one"
        return at(WARNING, where, rest, text)
    return at(ERROR, where, rest, f"the radius is of {other}, others are of {one}: mixed tables")


def apart(one: AttainableRadii | Inferred, stated: Stated) -> list[str]:
    """Names of stated values that an explanation contradicts; its alpha may be half of that."""
    agree: dict[str, Callable[[float, float], bool]] = {
        "n": lambda own, said: own == said,
        "alpha": lambda own, said: math.isclose(own, said) or bool(shares.perhaps(own, said)),
        "sigma": lambda own, said: usual.agree(said, own, own),
    }
    both = {name: (getattr(one, name), getattr(stated, name)) for name in agree}
    return [name for name, pair in both.items() if None not in pair and not agree[name](*pair)]


def _otherwise(explanations: list[AttainableRadii], stated: Stated) -> list[Finding]:
    """Findings about the values in which the best explanation is not as stated, if none is."""
    if not all(apart(one, stated) for one in explanations):
        return []
    result = []
    for name in apart(explanations[0], stated):
        value, other = getattr(explanations[0], name), getattr(stated, name)
        text = f"the radii are of {name} = {value:.9g}, not of {other:.9g} as stated"
        # A smaller alpha is merely conservative.
        less = name == "alpha" and max(one.alpha for one in explanations) < other
        level = WARNING if less else ERROR
        result.append(Finding(level=level, text=text, of_stated=True))
    return result
