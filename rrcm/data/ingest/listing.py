"""What is in a dataset, before any of its pictures is read."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rrcm.core.errors import DataError
from rrcm.core.files import MOST, read_bytes


class Place(NamedTuple):
    """Where the bytes of a picture are: ``size`` bytes of ``file`` from ``offset``, -1 for all.

    ``name`` is the picture's among those of its class.
    """

    name: str
    file: str
    offset: int = 0
    size: int = -1

    def __str__(self) -> str:
        """The path, and the name where the path is that of an archive."""
        return self.file if self.size < 0 else f"{self.file}:{self.name}"

    def read(self) -> bytes:
        """The bytes.

        Raises:
            DataError: They are not there.
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


def anything(_: list[str]) -> None:
    """Bytes that were verified when they were listed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Listing:
    """The N labelled images of a dataset.

    ``held`` says which belong to the test split that the dataset comes with; it is all False where
    there is none. ``idx`` is an image's place in its part, train or test, its name for ever.
    ``images`` are pixels, 0 to ``max_value``, or the places of picture files. ``size`` is
    the sum of their bytes. ``check`` is given the SHA-256 of every picture file, [N], once they
    have been read, and raises a DataError if they are not what they were.
    """

    classes: tuple[str, ...]
    max_value: int
    idx: np.ndarray  # int64 [N]
    labels: np.ndarray  # int64 [N]
    held: np.ndarray  # bool [N]
    images: np.ndarray | list[Place]  # uint8 [N, C, H, W], or [N]
    size: int
    check: Callable[[list[str]], None] = anything
