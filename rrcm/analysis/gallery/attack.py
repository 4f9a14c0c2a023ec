"""A page of what an attack found: picture, attacked picture, their difference, and certificate."""

import math
from pathlib import Path
from typing import Any

import numpy as np

from rrcm.analysis.entries import Entry
from rrcm.analysis.gallery import certified, pages
from rrcm.analysis.gallery.pages import Card
from rrcm.certification.attacking.pictures import Found
from rrcm.certification.certify import UP
from rrcm.data.splits.shards import Split
from rrcm.inference.backend import Backend

GREY, STEP = 0.5, 1 / 255  # of a difference: where there is none, and the least that fills it
FALSE, FOUND, NONE, BEFORE = "false certificate", "attacked", "nothing found", "wrong before"


def write(
    path: Path, entry: Entry, split: Split, found: Found, *, backend: Backend, files: dict[int, str]
) -> list[Path]:
    """Write the page of an entry with what was ``attacked``; return its paths.

    ``found`` is what `pictures.written` returned; the rest is as of `certified.write`.
    """
    assert entry.votes is not None
    table, header = entry.table.reset_index(drop=True), entry.votes[0]
    kinds, lines = table.apply(_kind, axis=1), table.to_dict("records")
    near, far = (FOUND, "attacked"), (FOUND, "-attacked")
    order = pages.in_turn(table, kinds, (FALSE, "attacked"))
    order += pages.in_turn(table, kinds, near, (NONE, "radius"), far)
    order += pages.in_turn(table, kinds, (BEFORE, "-radius"))
    cards = certified.cards(entry, split, order, backend=backend, files=files)

    def card(i: int, on_first: bool) -> Card:
        line, kind, made = lines[i], kinds[i], cards(i, on_first)
        made |= {"verdict": kind, "facts": [[kind, "right" if kind == NONE else "wrong"]]}
        if kind in (FALSE, FOUND):
            (x,) = split.pixels(split.idx == line["idx"])
            picture, file = found.get(line["idx"], (x, ""))  # it may be wrong at distance 0
            times = max(1, math.floor(GREY / max(STEP, float(np.abs(picture - x).max()))))
            shots = {"picture": x, "attacked": picture}
            shots[f"difference × {times}"] = GREY + times * (picture - x)
            made["shots"] = [[of, pages.encoded(shots[of], first=on_first)] for of in shots]
            became = certified.named(header, line["attacked_to"])
            distance = f"{became} at distance {certified.places(line['attacked'], UP)}"
            made["facts"] += [[distance, ""], [file, "name"]]
            made["distance"] = line["attacked"]
        return made

    return pages.write(path, "attack", [entry], order, card, counts=kinds.value_counts())


def _kind(line: Any) -> str:
    if line["correct"] and line["attacked"] <= line["radius"]:
        return FALSE
    return BEFORE if line["attacked"] == 0 else FOUND if line["attacked"] > 0 else NONE
