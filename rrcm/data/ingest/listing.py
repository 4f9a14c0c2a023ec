"""The contents of a dataset, listed before any picture is read."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rrcm.core.errors import DataError
from rrcm.core.files import MOST, read_bytes


class Place(NamedTuple):
    """Location of a picture's bytes: ``size`` bytes of ``file`` from ``offset``, or -1 for all.

    ``name`` is the picture's name within its class.
    """

    name: str
    file: str
    offset: int = 0
    size: int = -1

    def __str__(self) -> str:
        """The path, followed by the name if the path is an archive."""
        return self.file if self.size < 0 else f"{self.file}:{self.name}"

    def read(self) -> bytes:
        """The bytes.

        Raises:
            DataError: They are missing.
        """
        if self.size < 0:
            return read_bytes(Path(self.file))
        if self.size > MOST:
            raise DataError(f"{self}: {self.size:,} bytes, too many for a picture")
        with open(self.file, "rb", buffering=0) as file:
            raw = os.pread(file.fileno(), self.size, self.offset)
        if len(raw) != self.size:
            raise DataError(f"{self}: {self.size - len(raw)} bytes are missing at its end")
        return raw


@dataclass(frozen=True, kw_only=True, slots=True)
class Contents:
    """What a published dataset has: images of its splits (``test`` is 0 without one), and classes.

    ``bytes`` are those of a stored picture, on average; 0: pixels are stored as they are.
    """

    train: int
    test: int
    classes: int
    bytes: int = 0


def anything(_: list[str]) -> None:
    """Accept all bytes, as they were verified when they were listed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Listing:
    """The N labelled images of a dataset.

    ``held`` marks the images of the dataset's own test split; it is all False if there is none.
    ``idx`` is an image's position in its part, train or test, and its permanent name. ``images``
    are pixels, 0 to ``max_value``, or the places of picture files. ``size`` is the sum of their
    bytes. ``check`` gets the SHA-256 of every picture file, [N], after they have been read, and
    raises a DataError if one has changed.
    """

    classes: tuple[str, ...]
    max_value: int
    idx: np.ndarray  # int64 [N]
    labels: np.ndarray  # int64 [N]
    held: np.ndarray  # bool [N]
    images: np.ndarray | list[Place]  # uint8 [N, C, H, W], or [N]
    size: int
    check: Callable[[list[str]], None] = anything
