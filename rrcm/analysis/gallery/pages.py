"""What pages of pictures share: cards that are ordered, chosen and opened, at most 200 to a page.

Each page is one file, which opens from a disk: it asks nothing of a network, and its
Content-Security-Policy lets nothing run but its own script. Names are data in it, and stay text.
"""

import base64
import io
import json
from collections.abc import Callable, Sequence
from hashlib import sha256
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jinja2
import numpy as np
import pandas as pd
from PIL import Image

from rrcm.analysis import report
from rrcm.analysis.entries import Entry
from rrcm.core.errors import printable
from rrcm.core.files import write_text

TEMPLATE = Path(__file__).with_name("pages.html.jinja")
MOST = 200  # cards of a page
EXACT = 48 * 48  # pixels up to which the pictures of the first page are stored without loss
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
    """Pixels [C, H, W], cut to [0, 1], as the base64 of a WebP picture of few bytes.

    On the ``first`` page small ones have no loss, and others are larger. ``sampled``: instead of
    scaling, every k-th pixel is kept, as averages of noisy pixels have less noise.
    """
    array = np.rint(pixels.clip(0, 1) * 255).astype(np.uint8).transpose(1, 2, 0)
    picture = Image.fromarray(array[:, :, 0] if array.shape[2] == 1 else array)
    if not (exact := first and picture.width * picture.height <= EXACT):
        way = Image.Resampling.NEAREST if sampled else Image.Resampling.LANCZOS
        picture.thumbnail((SIDE, SIDE) if first else (FURTHER, FURTHER), way)
    file = io.BytesIO()
    picture.save(file, "WEBP", lossless=exact, quality=80, method=2)
    return base64.b64encode(file.getvalue()).decode()


def _html(cards: list[Card], shown: dict[str, object]) -> str:
    source, style = (one.read_text(encoding="utf-8") for one in (TEMPLATE, report.TEMPLATE))
    template = jinja2.Template(
        source, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    html = template.render(
        **shown,
        # In a script, only < could end it.
        cards=json.dumps(cards, separators=(",", ":")).replace("<", "\\u003c"),
        style=style.partition("<style>")[2].partition("</style>")[0],
    )
    for tag in ("style", "script"):
        _, _, after = html.partition(f"<{tag}>")
        digest = sha256(after.partition(f"</{tag}>")[0].encode()).digest()
        html = html.replace(f"OF-{tag}", base64.b64encode(digest).decode(), 1)
    return html
