"""What the classifier itself answers without noise: clean accuracy, of all images of a table.

The smoothed classifier is another function. Its certificates say nothing about these answers.
"""

import hashlib
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rrcm.certification.sampling.voting import trial_normals
from rrcm.certification.votes.counts import ABSTAIN
from rrcm.certification.votes.records import Header, Row
from rrcm.core import progress
from rrcm.core.errors import DataError
from rrcm.core.files import read_json, write_json
from rrcm.data.splits.shards import Split
from rrcm.inference.backend import Backend

COLUMN = "clean"


def identity(header: Header) -> str:
    """A digest of what the answers depend on: the function and the pictures."""
    of = (header.weights, header.provider, header.precision, header.sigma, header.pixels)
    return hashlib.sha256(repr(of).encode()).hexdigest()[:16]


def column(
    backend: Backend,
    split: Split,
    header: Header,
    rows: list[Row],
    *,
    path: Path | None,
    shown: bool = True,
) -> list[int] | None:
    """The column ``clean`` of the table of ``rows``: a class for each, `ABSTAIN` for NaN scores.

    It takes one pass over the pictures, and is kept in ``path``. None with a ``budget``, which is
    for draws.
    """
    if header.budget:
        return None
    if path is not None and path.exists():
        kept = read_json(path, DataError, hint="; remove it")
        if isinstance(kept, dict) and kept.get("of") == identity(header):
            return [kept[COLUMN][str(row.idx)] for row in rows]
    found = _classified(backend, split, rows, header.batch_size, shown=shown)
    if path is not None:
        named = {str(row.idx): answer for row, answer in zip(rows, found, strict=True)}
        write_json(path, {"of": identity(header), COLUMN: named})
    return found


def _classified(
    backend: Any, split: Split, rows: list[Row], size: int, *, shown: bool
) -> list[int]:
    place = {idx: i for i, idx in enumerate(split.idx.tolist())}
    places = np.array([place[row.idx] for row in rows])
    z, found = trial_normals(backend, size), list[int]()
    delay = 2.0 if shown else math.inf  # most are done by then
    with (
        progress.bar(len(rows), 0, "without noise", " images", delay=delay) as bar,
        torch.inference_mode(),
    ):
        for start in range(0, len(places), size):
            batch = places[start : start + size]
            whole = np.resize(batch, size)  # some classifiers take no other size
            x = torch.from_numpy(split.pixels(whole)).to(backend.device)
            scores = backend.scores(x, z)
            best = scores.argmax(1).masked_fill(scores.isnan().any(1), ABSTAIN)
            found += best[: len(batch)].tolist()
            bar.update(len(batch))
    return found
