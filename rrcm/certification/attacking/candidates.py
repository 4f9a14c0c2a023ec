"""Candidates of an attack, which others found, as pictures for each image."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from rrcm.certification.attacking import judging
from rrcm.core import formats
from rrcm.core.errors import DataError, one_line
from rrcm.data.given import BATCH
from rrcm.data.splits.pictures import Fit
from rrcm.data.splits.shards import Split

UNREADABLE = (OSError, ValueError, EOFError)  # what NumPy raises on damaged files


def pools(smoothed: Any, split: Split, candidates: Any) -> dict[int, list[np.ndarray]]:
    """Float32 [C, H, W] for each image of ``split``, by its idx; arguments as of `Smoothed.judge`.

    Raises:
        DataError: They are not of the images, or not in [0, 1].
    """
    judging.require(smoothed, split)
    first = candidates[0] if isinstance(candidates, list | tuple) and candidates else None
    several = BATCH in (getattr(first, "ndim", 0), getattr(candidates, "ndim", 0) - 1)
    exact = dataclasses.replace(smoothed, fit=Fit(shape=smoothed.shape))  # files are not resized
    found: dict[int, list[np.ndarray]] = {idx: [] for idx in split.idx.tolist()}
    for batch in candidates if several else [candidates]:
        try:
            one = exact.split(batch)
        except DataError as error:
            raise DataError(f"candidates: {error}") from None
        if len(one.idx) != len(split.idx):
            counts = f"{len(one.idx)} pictures for {len(split.idx)} images"
            raise DataError(f"candidates: {counts}; give one for each, in their order")
        for idx, picture in zip(found, one.pixels(), strict=True):
            found[idx].append(picture)
    return found


def read(root: Path, smoothed: Any, split: Split) -> dict[int, list[np.ndarray]]:
    """`pools` of the ``.npy`` files in a folder, each [N, C, H, W] in the order of ``split``.

    Raises:
        DataError: There are none, or one cannot be read; or as `pools`.
    """
    if not root.is_dir():
        raise DataError(f"--candidates {formats.missing(root, 'no such folder')}")
    found: dict[int, list[np.ndarray]] = {}
    for file in sorted(root.glob("*.npy")):
        try:
            batch = pools(smoothed, split, np.load(file, allow_pickle=False))
        except DataError as error:
            raise DataError(f"--candidates {file}: {error}") from None
        except UNREADABLE as error:
            raise DataError(f"--candidates {file}: {one_line(error)}") from None
        for idx, pictures in batch.items():
            found[idx] = found.get(idx, []) + pictures
    if not found:
        raise DataError(f"--candidates {root}: no .npy files of pictures [N, C, H, W] in it")
    return found
