"""What a dataset is told, the origin of its files, and what it tells: its images, unread."""

import hashlib
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rrcm.core.errors import DataError, one_line
from rrcm.core.files import atomic


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """What a dataset's ``acquire`` takes.

    ``path`` is the folder or archive of the original files, None if none was named. ``verify``:
    they must be the official ones. ``skip_unreadable``: pictures that cannot be read are left out
    and listed, instead of an error. ``link`` is a file for the path of files that stay in place.
    """

    path: Path | None
    verify: bool
    skip_unreadable: bool
    link: Path

    def folder(self) -> Path:
        """The folder that was named.

        Raises:
            DataError: None was, or there is no such folder.
        """
        if self.path is None:
            raise DataError("--from DIR: say where the pictures are; they stay there")
        if not self.path.is_dir():
            raise DataError(f"--from {self.path}: no such folder")
        return self.path

    @contextmanager
    def or_download(
        self, name: str, download: Callable[[Path], Path], instead: str
    ) -> Iterator[Path]:
        """The path that was named, or what ``download`` puts into a temporary folder.

        Args:
            name: The dataset, for messages.
            download: Downloads by torchvision into a folder, and returns the path of the files.
            instead: What a user can fetch by hand.

        Raises:
            DataError: The download fails.
        """
        if self.path is not None:
            yield self.path
            return
        with tempfile.TemporaryDirectory() as folder:
            try:
                path = download(Path(folder))
            except (OSError, RuntimeError) as error:
                raise DataError(
                    f"{name}: torchvision cannot download it ({one_line(error)}); fetch {instead}"
                ) from None
            yield path


class Place(NamedTuple):
    """A picture file: its ``name`` within its class, and its path."""

    name: str
    path: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Contents:
    """What a published dataset has: images of its splits (``test``: 0 without one), and classes."""

    train: int
    test: int
    classes: int


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
    check: Callable[[list[str]], None] = lambda _: None  # arrays are verified as they are listed


def of_arrays(
    *parts: tuple[np.ndarray, np.ndarray], classes: tuple[str, ...], max_value: int
) -> Listing:
    """A dataset of arrays: images, uint8 [n, C, H, W], and labels, int64 [n], of each of its parts.

    The first part is to train on, the second, if there is one, the test split.
    """
    images, labels = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    counts = [len(labels) for _, labels in parts]
    return Listing(
        classes=classes,
        max_value=max_value,
        idx=np.concatenate([np.arange(count) for count in counts]),
        labels=labels,
        held=np.repeat([False, True][: len(counts)], counts),
        images=images,
        size=images.nbytes,
    )


def require_official(raw: dict[str, bytes], md5: dict[str, str], source: Path) -> None:
    """Refuse the contents of files from ``source`` that have another MD5 than the official ones."""
    for name, content in raw.items():
        got = hashlib.md5(content, usedforsecurity=False).hexdigest()
        if got != md5[name]:
            raise DataError(
                f"{source}: {name}: MD5 is {got}, that of the official file {md5[name]}: it is "
                "truncated or another; fetch it again, or --no-verify"
            )


def copy(raw: dict[str, bytes], root: Path) -> None:
    """Write the contents of files to ``root``."""
    for name, content in raw.items():
        with atomic(root / name) as part:
            part.write_bytes(content)
