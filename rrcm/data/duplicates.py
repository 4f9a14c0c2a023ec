"""Finds pictures that are there several times: an interval takes each for an independent one."""

from collections.abc import Sequence
from hashlib import sha256

import numpy as np


def digests(images: np.ndarray) -> list[bytes]:
    """A digest of the pixels of each of ``images`` [N, C, H, W]."""
    return [sha256(np.ascontiguousarray(image).data).digest() for image in images]


def line(pictures: Sequence[bytes]) -> list[str]:
    """A line on `digests` that come again; often none."""
    again = len(pictures) - len({*pictures})
    said = "equal others; intervals are of independent ones, and so too narrow"
    return [f"duplicates: {again:,} of {len(pictures):,} pictures {said}"] if again else []
