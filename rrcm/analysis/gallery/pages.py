"""What pages of pictures share: cards that are ordered, chosen and opened, at most 200 to a page.

Each page is one file, which opens from a disk. Names are data in it, and stay text.
"""

import json
from collections.abc import Callable, Sequence
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pandas as pd

from rrcm.analysis.entries import Entry
from rrcm.analysis.presentation import embedded
from rrcm.core.errors import printable
from rrcm.core.files import write_text

TEMPLATE = Path(__file__).with_name("pages.html.jinja")
MOST = 200  # cards of a page
SIDE, FURTHER = 96, 64  # pixels of the longer side of others, on the first page and further ones

Card = dict[str, Any]  # as the script of the template reads it
Cards = Callable[[int, bool], Card]  # of a row; whether it is on the first page


def write(
    path: Path, kind: str, found: Sequence[Entry], order: list[int], card: Cards, **shown: object
) -> list[Path]:
    """Write a page of cards in ``order``, and further ones beside it; return their paths.

    ``kind``, its entries ``found`` and what else is ``shown`` choose the template's words, with
    ``counts`` of the pictures. The k-th page is ``<stem>-<k>.html``.
    """
    pages = [order[first : first + MOST] for first in range(0, len(order), MOST)]
    paths = [path, *(path.with_name(f"{path.stem}-{k}.html") for k in range(2, len(pages) + 1))]
    shown |= {"kind": kind, "found": found, "most": MOST, "printable": printable}
    shown |= {"names": [quote(path.name) for path in paths]}
    # The first page is written last, so that what it links to is there.
    for number, page in sorted(enumerate(pages), reverse=True):
        cards = json.dumps([card(i, number == 0) for i in page], separators=(",", ":"))
        cards = cards.replace("<", "\\u003c")  # in a script, only < could end it
        write_text(paths[number], embedded.page(TEMPLATE, cards=cards, number=number, **shown))
    return paths


def in_turn(table: pd.DataFrame, kinds: pd.Series, *ways: tuple[str, str]) -> list[int]:
    """Rows of a table by ``ways``, a kind and a column: the first of each, then the second.

    A column with - in front has its largest first.
    """
    ranked = []
    for kind, column in ways:
        by, up = column.removeprefix("-"), not column.startswith("-")
        rows = table[kinds == kind].sort_values(by, ascending=up, kind="stable")
        ranked.append(rows.index.tolist())
    return [i for i in dict.fromkeys(chain(*zip_longest(*ranked))) if i is not None]


def encoded(pixels: np.ndarray, *, first: bool, sampled: bool = False) -> str:
    """`embedded.webp`; on the ``first`` page small ones have no loss, and others are larger."""
    side = SIDE if first else FURTHER
    return embedded.webp(pixels, exact=first, side=side, sampled=sampled)
