"""``rrcm compare --best``: the best of many classifiers, corrected for having been chosen."""

from pathlib import Path

import numpy as np
import pandas as pd

from rrcm.analysis import entries, pairing
from rrcm.analysis.entries import Entry
from rrcm.analysis.estimation import selection, statistics
from rrcm.analysis.presentation import markup, tables
from rrcm.certification.certify import DOWN, printed
from rrcm.cli import requests
from rrcm.config.defaults import CONFIDENCE
from rrcm.core.errors import DataError

MEANING = """The best of {many} on {images} images was chosen by these images, and is too good for
that. `elsewhere` is what one half of them chooses, on the other half (mean of {halves:,} random
halves, eq. 64): an unbiased estimate of what such a choice certifies of new images. `at least`
holds with {sure} confidence, whichever was chosen (eq. 65). Who publishes the best of {many}
publishes `elsewhere`, or certifies other images."""


def best(named: dict[str, Entry], *, radii: str | None) -> str:
    """The best of some entries of the same images at each radius, marked, beside its correction.

    Raises:
        DataError: There is one entry only, or they are not of the same images.
    """
    if len(named) < 2:
        raise DataError("--best: two classifiers at least; of one there is nothing to choose")
    (first, one), *others = named.items()
    found, names = [*named.values()], told_apart([*named])
    entries.require_alike(found)
    for name, other in others:
        if not pairing.same_images(one, other):
            raise DataError(
                f"{first} and {name} are not of the same images in the same order; the best is "
                "chosen on images that all have"
            )
    for name, entry in named.items():
        if entry.cut_short and entry.votes is None:
            raise DataError(
                f"{name}: drawing stopped early, and a table does not tell what was decided; give "
                "its votes (.jsonl)"
            )
    chosen = requests.parse_radii(radii) if radii else entries.default_radii(found)
    undecided = [r for r in chosen if any(one.undecided([r])[0] for one in found)]
    rows = []
    for radius in (r for r in chosen if r not in undecided):
        values = np.stack([statistics.certified(one.judged, radius) for one in found]).astype(float)
        if values.any():
            bound = any(one.lower_bounds([radius])[0] for one in found)
            rows.append(row(f"r = {radius:g}", values, names, bound=bound))
    credited = np.stack([statistics.credited(one.judged) for one in found])
    if credited.any() and not any(one.cut_short for one in found):
        rows.append(row("ACR", credited, names, bound=False))
    if not rows:
        early = f"drawing stopped before r = {pairing.radii(undecided)} was decided"
        early = early if undecided else "no classifier certifies an image at these radii"
        raise DataError(f"{early}; name others by --radii")
    meaning = MEANING.format(
        many=f"{len(found):,}",
        images=f"{len(found[0].judged):,}",
        halves=selection.HALVES,
        sure=tables.percent_of(CONFIDENCE),
    )
    left_out = [f"r = {pairing.radii(undecided)}"] * bool(undecided)
    left_out += ["ACR"] * any(one.cut_short for one in found)
    if left_out:
        meaning += (
            f"\nThe best by {' and '.join(left_out)} is not known, as drawing may stop early."
        )
    otherwise = {name: "; ".join(pairing.differing(one, entry).values()) for name, entry in others}
    settings = [f"{first} and {name}: {text}" for name, text in otherwise.items() if text]
    if settings:
        meaning += "\nCertified with other settings, which may be why one is ahead:\n"
        meaning += "\n".join(settings)
    if unknown := pairing.condition(found):
        meaning += f"\nOne is ahead of others only if all have the same {unknown}."
    return f"{markup.plain(pd.DataFrame(rows), again=1)}\n\n{meaning}"


def row(name: str, values: np.ndarray, names: list[str], *, bound: bool) -> dict[str, str]:
    """A row of the table, of the ``values`` [M, N] of classifiers; shares in percent."""
    picked = selection.best(values)
    share, images = name != "ACR", values.shape[1]
    places, scale = (1, tables.PERCENT) if share else (3, 1)
    least = ""
    if share:
        hits = int(values[picked.index].sum())
        low = selection.least(hits, images, tried=len(names), confidence=CONFIDENCE)
        least = printed(low, DOWN, places=places, scale=scale)
    mark = tables.at_least(bound)
    return {
        "": name,
        "best": names[picked.index],
        "as chosen": mark + printed(picked.mean, DOWN, places=places, scale=scale),
        "elsewhere": mark + printed(picked.elsewhere, DOWN, places=places, scale=scale),
        "too high by": f"{picked.excess * scale:.{places + 1}f}",
        "at least": least,
    }


def told_apart(names: list[str]) -> list[str]:
    """Files without the folders that all of them begin with, and without what all end with."""
    parts = [list(Path(name).parts) for name in names]
    for end in (0, -1):
        while all(len(one) > 1 for one in parts) and len({one[end] for one in parts}) == 1:
            for one in parts:
                del one[end]
    return [str(Path(*one)) for one in parts]
