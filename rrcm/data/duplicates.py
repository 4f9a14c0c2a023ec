"""Finds pictures that are there several times: an interval takes each for an independent one."""

from collections.abc import Sequence
from hashlib import sha256

import numpy as np

from rrcm.core.labels import UNKNOWN
from rrcm.data.splits.shards import Split


def digests(split: Split) -> list[bytes]:
    """A digest of the pixels of each image."""
    images = np.asarray(split.images)
    return [sha256(np.ascontiguousarray(image).data).digest() for image in images]


def line(pictures: Sequence[bytes], labels: Sequence[int]) -> list[str]:
    """A line on `digests` that come again, some under another label; often none."""
    again = len(pictures) - len({*pictures})
    known = {pair for pair in zip(pictures, labels, strict=False) if pair[1] != UNKNOWN}
    torn = len(known) - len({picture for picture, _ in known})
    said = "equal others" + f", {torn:,} of them under another label" * (torn > 0)
    said += "; intervals are of independent ones, and so too narrow"
    return [f"duplicates: {again:,} of {len(pictures):,} pictures {said}"] if again else []
