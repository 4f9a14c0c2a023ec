"""Pictures of a report: certified images, each beside a noisy version that was counted.

The report of the graph does not read images, so this is for pages that are written on demand.
"""

import base64
import io
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import torch
from PIL import Image

from rrcm.analysis import entries
from rrcm.analysis.entries import Entry
from rrcm.analysis.presentation.extras import Group, Pair
from rrcm.certification.certify import DOWN, printed
from rrcm.certification.sampling import procedure
from rrcm.certification.votes.counts import ABSTAIN
from rrcm.certification.votes.records import BUDGET, Header
from rrcm.config.certification import Sampling
from rrcm.core.errors import DataError, printable
from rrcm.core.labels import UNKNOWN
from rrcm.data.splits.shards import Split

SIDE = 80  # pixels of a picture of the page at the most; a larger one is thinned out
BYTES = 250_000  # of all pictures of a page, before compression and base64
MOST = 4  # images of a kind


def groups(found: list[Entry], split: Split) -> list[Group]:
    """The most and least robust images and those without an answer, of the first entry of each σ.

    The noise is that of the first draw of the image, clipped to [0, 1] for the eye. A picture of
    more than ``SIDE`` pixels is shown by every second (third, …) of them, so that each is one that
    was classified, and the noise looks as it is. The same entries and images give the same bytes.

    Args:
        found: Entries; those without votes have no pictures.
        split: The certified images.

    Raises:
        DataError: The images are not those of the votes.
    """
    firsts = [e for e in {e.group: e for e in reversed(found)}.values() if e.votes]
    chosen = [(entry, *kind) for entry in entries.ordered(firsts) for kind in _kinds(entry.judged)]
    step = -(-max(split.images.shape[2:]) // SIDE)
    size = 2 * int(np.prod(split.images.shape[1:])) // step**2
    most = min(MOST, max(1, BYTES // (size * max(1, len(chosen)))))
    for entry in firsts:
        _require_same(entry, split)
    return [
        Group(
            entry=f"σ = {entries.sigma(entry)}, {entries.label(entry, found)}",
            kind=kind,
            pairs=[_pair(entry, row, split, step) for _, row in rows.head(most).iterrows()],
        )
        for entry, kind, rows in chosen
    ]


def _kinds(table: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """Rows of a table by kind, best first; an image whose sampling never began is in none."""
    if "stop" in table and "n" in table:
        table = table[(table["stop"] != BUDGET) | (table["n"] > 0)]
    right = table[(table["correct"] == 1) & (table["radius"] > 0)]
    kinds = {
        "Most robust": right.sort_values("radius", ascending=False, kind="stable"),
        "Least robust": right.sort_values("radius", kind="stable"),
        "Abstained": table[table["predict"] == ABSTAIN],
    }
    return [(kind, rows) for kind, rows in kinds.items() if len(rows)]


def _require_same(entry: Entry, split: Split) -> None:
    """Refuse images that are not those of the votes, by the digest in their header."""
    assert entry.votes is not None
    header, _ = entry.votes
    made = procedure.header(
        _recorded(header),
        split,
        header.run,
        Sampling(**{f.name: getattr(header, f.name) for f in fields(Sampling)}),
        header.stopping,
    )
    if made.pixels != header.pixels:
        raise DataError(
            f"{entry.name}: its votes are of other images than those given; the page of "
            "`rrcm report` without images needs none"
        )


def _recorded(header: Header) -> Any:
    """The classifier as the header describes it: `procedure.header` asks no more of it."""
    return SimpleNamespace(
        sigma=header.sigma,
        weights=header.weights,
        provider=header.provider,
        classes=header.classes,
    )


def _pair(entry: Entry, row: "pd.Series[Any]", split: Split, step: int) -> Pair:
    assert entry.votes is not None
    header, idx = entry.votes[0], int(row["idx"])
    (place,) = np.flatnonzero(split.idx == idx)
    x = torch.from_numpy(split.pixels(slice(place, place + 1)))
    noise = procedure.noise(header, split)
    noisy = noise.noisy(x, torch.tensor([idx]), torch.tensor([0]))
    return Pair(
        clean=_png(x[0].numpy(), step),
        noisy=_png(noisy[0].numpy(), step),
        name=f"image {idx}",
        caption=_caption(row, header),
    )


def _caption(row: "pd.Series[Any]", header: Header) -> str:
    label, predict = int(row["label"]), int(row["predict"])
    of = f"class {header.classes[label]}" if label != UNKNOWN else "class unknown"
    if predict == ABSTAIN:
        return printable(f"{of}: no answer")
    answer = "" if predict == label else f", answer {header.classes[predict]}"
    radius = printed(row["radius"], DOWN, places=3)
    return printable(f"{of}{answer}: certified within r = {radius}")


def _png(pixels: np.ndarray, step: int) -> str:
    """Pixels [C, H, W] as a ``data:`` URI, every ``step``-th of each row and column."""
    levels = np.rint(255 * np.clip(pixels[:, ::step, ::step], 0, 1)).astype(np.uint8)
    grey = len(levels) == 1
    image = Image.fromarray(levels[0] if grey else np.moveaxis(levels, 0, -1))
    file = io.BytesIO()
    image.save(file, format="PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
