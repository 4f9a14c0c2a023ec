"""A page of the pictures on which two classifiers differ, both answers beside each other."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from rrcm.analysis.entries import Entry
from rrcm.analysis.estimation import statistics
from rrcm.analysis.gallery import pages
from rrcm.analysis.gallery.certified import answer, named
from rrcm.analysis.gallery.pages import Card
from rrcm.data.splits.shards import Split


def write(
    path: Path, found: Sequence[Entry], split: Split, *, radii: list[float], tests: pd.DataFrame
) -> list[Path]:
    """Write the page of the images of which one of two entries certifies one of ``radii``.

    They are of the same images, which are in ``split``, and have their votes. ``tests`` are shown
    above: `tables.comparison_table` of the radii, which are decided. For ``path`` and what is
    returned see `pages.write`.
    """
    tables = [one.judged.reset_index(drop=True) for one in found]
    hits = {f"{r:g}": [statistics.certified(one, r) for one in tables] for r in radii}
    at = {r: one != other for r, (one, other) in hits.items()}
    only_a = np.logical_or.reduce([one & ~other for one, other in hits.values()])
    credit, other = map(statistics.credited, tables)
    ahead = pd.DataFrame({"by": credit - other, "of": np.where(only_a, "only A", "only B")})
    ahead = ahead[np.logical_or.reduce([*at.values()])]
    votes = [one.votes for one in found if one.votes]
    rows = [{row.idx: row for row in rows} for _, rows in votes]

    def card(i: int, on_first: bool) -> Card:
        lines = [one.iloc[i].to_dict() for one in tables]
        idx, differ = int(lines[0]["idx"]), [r for r in at if at[r][i]]
        said = [answer(rows[k][idx], lines[k], votes[k][0]) | {"who": "AB"[k]} for k in (0, 1)]
        return {
            "idx": idx,
            "label": named(votes[0][0], lines[0]["label"]),
            "verdict": ahead["of"][i],
            "at": differ,
            "a": lines[0]["radius"],
            "b": lines[1]["radius"],
            "shots": [["", pages.encoded(*split.pixels(split.idx == idx), first=on_first)]],
            "facts": [[f"{ahead['of'][i]} at r = {', '.join(differ)}", "name"]],
            "said": said,
        }

    order = pages.in_turn(ahead, ahead["of"], ("only A", "-by"), ("only B", "by"))
    counts = ahead["of"].value_counts()
    return pages.write(path, "pair", found, order, card, counts=counts, tests=tests)
