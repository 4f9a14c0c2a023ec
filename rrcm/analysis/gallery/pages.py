"""What pages of pictures share: cards that are ordered, chosen and opened, at most 200 to a page.

Each page is one file, which opens from a disk: it asks nothing of a network, and its
Content-Security-Policy lets nothing run but its own script. Names are data in it, and stay text.
"""

import json
from collections.abc import Callable, Sequence
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jinja2
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
        cards = [card(i, number == 0) for i in page]
        write_text(paths[number], _html(cards, shown | {"number": number}))
    return paths


def in_turn(*ranked: Sequence[int]) -> list[int]:
    """The first of each, then the second of each."""
    return [i for i in dict.fromkeys(chain(*zip_longest(*ranked))) if i is not None]


def by(table: pd.DataFrame, column: str, *, ascending: bool = True) -> list[int]:
    """The rows of a table in the order of a column."""
    return table.sort_values(column, ascending=ascending, kind="stable").index.tolist()


def encoded(pixels: np.ndarray, *, first: bool, sampled: bool = False) -> str:
    """Pixels [C, H, W] as by `embedded.webp`.

    On the ``first`` page small ones have no loss, and others are larger.
    """
    side = SIDE if first else FURTHER
    return embedded.webp(pixels, exact=first, side=side, sampled=sampled)


def _html(cards: list[Card], shown: dict[str, object]) -> str:
    source = TEMPLATE.read_text(encoding="utf-8")
    template = jinja2.Template(
        source, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    html = template.render(
        **shown,
        # In a script, only < could end it.
        cards=json.dumps(cards, separators=(",", ":")).replace("<", "\\u003c"),
        style=embedded.style(),
    )
    for tag in ("style", "script"):
        html = html.replace(f"sha256-OF-{tag}", embedded.digest(html, tag), 1)
    return html
