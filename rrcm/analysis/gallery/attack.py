"""A page of what an attack found: picture, attacked picture, their difference, and certificate."""

import math
from pathlib import Path
from typing import Any

import numpy as np

from rrcm.analysis.entries import Entry
from rrcm.analysis.gallery import certified, pages
from rrcm.analysis.gallery.pages import Card, by
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
    false, hit, none, before = (table[kinds == kind] for kind in (FALSE, FOUND, NONE, BEFORE))
    near, far = by(hit, "attacked"), by(hit, "attacked", ascending=False)
    order = [*by(false, "attacked"), *pages.in_turn(near, by(none, "radius"), far)]
    order += by(before, "radius", ascending=False)
    cards = certified.cards(entry, split, order, backend=backend, files=files)
    place = {idx: place for place, idx in enumerate(split.idx.tolist())}

    def card(i: int, on_first: bool) -> Card:
        line, kind, made = lines[i], kinds[i], cards(i, on_first)
        made |= {"verdict": kind, "facts": [[kind, "right" if kind == NONE else "wrong"]]}
        if kind in (FALSE, FOUND):
            x = split.pixels(place[line["idx"]])
            picture, file = found.get(line["idx"], (x, ""))  # it may be wrong at distance 0
            times = max(1, math.floor(GREY / max(STEP, float(np.abs(picture - x).max()))))
            shots = {"attacked": picture, f"difference × {times}": GREY + times * (picture - x)}
            made["shots"] = [["picture", made["shots"][0][1]]]
            made["shots"] += [[what, pages.encoded(shots[what], first=on_first)] for what in shots]
            became, distance = certified.named(header, line["attacked_to"]), line["attacked"]
            made["facts"] += [[f"{became} at distance {certified.places(distance, UP)}", ""]]
            made |= {"facts": [*made["facts"], [file, "name"]], "distance": distance}
        return made

    shown = {"counts": kinds.value_counts(), "classified": True}
    return pages.write(path, "attack", [entry], order, card, **shown)


def _kind(line: Any) -> str:
    if line["correct"] and line["attacked"] <= line["radius"]:
        return FALSE
    return BEFORE if line["attacked"] == 0 else FOUND if line["attacked"] > 0 else NONE
