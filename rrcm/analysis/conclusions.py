"""What the tests of a report allow to say, in sentences."""

from collections.abc import Iterable
from dataclasses import dataclass

import pandas as pd

from rrcm.analysis import entries, pairing
from rrcm.analysis.entries import Entry


@dataclass(frozen=True, kw_only=True, slots=True)
class Claims:
    """Radii at which the first of two certifies more, the second does, or the test decides nothing.

    Chance alone leads to a claim, at any of the radii, with at most the level's probability (Holm).
    """

    first: list[float]
    second: list[float]
    open: list[float]


def claims(tested: Iterable[tuple[float, float, float]], *, level: float) -> Claims:
    """The claims from (radius, difference, p corrected for all radii)."""
    found = Claims(first=[], second=[], open=[])
    for radius, difference, p in tested:
        if p > level or not difference:
            found.open.append(radius)
        else:
            (found.first if difference > 0 else found.second).append(radius)
    return found


def of_images(found: list[Entry], compared: pd.DataFrame, *, level: float) -> list[str]:
    """A sentence for the first entry of each sigma and every other one; see `tables.comparisons`.

    They are about these trained classifiers, so there is none of classifiers that were certified
    with other settings. Radii that are undecided or at which no image differs are left out.
    """
    compared = compared[compared["only_first"] + compared["only_second"] > 0]
    compared = compared[~compared["undecided"].astype(bool)]
    names = {entry.name: entry for entry in found}
    said = []
    for (first, second), part in compared.groupby(["first", "second"], sort=False):
        a, b = names[str(first)], names[str(second)]
        if a is next(entry for entry in found if entry.group == a.group):
            images = f"these {len(a.judged)} images"
            labels = entries.label(a, found), entries.label(b, found)
            if differing := pairing.differing(a, b):
                said.append(
                    f"σ = {entries.sigma(a)}: {' and '.join(labels)} were certified with other "
                    f"settings ({'; '.join(differing.values())}), which may be why they differ."
                )
                continue
            said.append(_sentence(entries.sigma(a), *labels, part, level=level, tell=images))
    return said


def of_seeds(compared: pd.DataFrame, *, level: float) -> list[str]:
    """A sentence for each pair of methods; see `repetitions.differences`.

    They are about trainings with other seeds, too.
    """
    decided = compared[~compared["undecided"]]
    return [
        _sentence(str(sigma), str(a), str(b), part, level=level, tell="these seeds and images")
        for (sigma, a, b), part in decided.groupby(["sigma", "first", "second"], sort=False)
    ]


def _sentence(sigma: str, a: str, b: str, part: pd.DataFrame, *, level: float, tell: str) -> str:
    found = claims(
        zip(part["radius"], part["difference"], part["p_holm"], strict=True), level=level
    )
    parts = [
        f"{better} certifies more images than {worse} at r = {radii(where)}"
        for better, worse, where in ((a, b, found.first), (b, a, found.second))
        if where
    ]
    if not parts:
        return f"σ = {sigma}: {tell} do not tell {a} and {b} apart at any radius."
    rest = f"; {tell} do not tell them apart at r = {radii(found.open)}" if found.open else ""
    return f"σ = {sigma}: {', '.join(parts)}{rest}."


def radii(values: Iterable[float]) -> str:
    """Radii as text."""
    return ", ".join(f"{value:g}" for value in values)
