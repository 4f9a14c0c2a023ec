"""Reads splits from disk and verifies them; rrcm/data/ingest/sharding.py writes them.

A split is a folder of WebDataset tars. For each image these hold ``<idx>.cls``, the label, and
``<idx>.npy``, uint8 [C, H, W], or the original picture file, such as ``<idx>.jpeg``. ``images.npy``
has the place of each image, in the order of the shards; ``index.json`` has the classes, the rule
that chose the images, their size, and the SHA-256 of every other file and of itself.
"""

import hashlib
import io
import json
import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from rrcm.core.errors import DataError, one_line
from rrcm.core.files import read_json, require_file, sha256
from rrcm.data.splits import pictures
from rrcm.data.splits.pictures import Fit

SPLITS = ("train", "validation", "choice", "test")
REMADE = "; `rrcm repro -f shard` writes it anew"
ROWS = "images.npy"  # array of KIND; shard, offset and size locate an image's bytes
KIND = np.dtype(
    [("idx", "<i8"), ("label", "<i8"), ("shard", "<i4"), ("offset", "<i8"), ("size", "<i8")]
)
DIGEST = "digest"  # key of the index's own SHA-256
TAR = 2**40  # most bytes of a tar; of picture files, only one is in memory
KEYS = ("classes", "shape", "white", "size", "channels", "crop", "images", "sha256")


@dataclass(frozen=True, eq=False)
class Pictures:
    """The picture files of a split, like an array uint8 [N, C, H, W] that is decoded on access.

    Threads and forked processes may share one, as it keeps no file open.
    """

    folder: Path
    tars: tuple[str, ...]
    rows: np.ndarray  # of KIND, [N]
    fit: Fit

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """[N, C, H, W]."""
        return len(self), *self.fit.shape

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, rows: np.ndarray | slice | int) -> np.ndarray:
        """Pictures as in evaluation, uint8 [n, C, H, W], or [C, H, W] for a single index."""
        chosen = np.arange(len(self))[rows]
        if chosen.ndim == 0:
            return self._decoded(int(chosen))
        decoded = np.empty((len(chosen), *self.fit.shape), dtype=np.uint8)
        for place, i in enumerate(chosen.tolist()):
            decoded[place] = self._decoded(i)
        return decoded

    def encoded(self, i: int) -> bytes:
        """The bytes of the original file of picture ``i``.

        Raises:
            DataError: The shard was removed or truncated since it was read.
        """
        shard, offset, size = (int(self.rows[i][key]) for key in ("shard", "offset", "size"))
        path = self.folder / self.tars[shard]
        try:
            with path.open("rb", buffering=0) as file:
                file.seek(offset)
                raw = file.read(size)
        except OSError as error:
            raise DataError(f"{path}: {error.strerror}{REMADE}") from None
        if len(raw) != size:
            raise DataError(f"{path}: cut short while it was in use{REMADE}")
        return raw

    def name(self, i: int) -> str:
        """The name of picture ``i`` in messages: its shard and its key there."""
        return f"{self.folder / self.tars[self.rows[i]['shard']]}:{self.rows[i]['idx']:08d}"

    def _decoded(self, i: int) -> np.ndarray:
        return pictures.read(io.BytesIO(self.encoded(i)), self.fit, name=self.name(i))


@dataclass(frozen=True, kw_only=True, slots=True)
class Split:
    """The labelled images of one split, N in the order of the shards.

    ``idx`` is an image's position in its part (train or test) of the raw data, its permanent name.
    ``name`` is one of `SPLITS`, or empty for images of no split, such as a user's pictures.
    """

    idx: np.ndarray  # int64 [N]
    images: np.ndarray | Pictures  # uint8 [N, C, H, W]
    labels: np.ndarray  # int64 [N]
    classes: tuple[str, ...]
    max_value: int  # the pixel value that becomes 1.0
    name: str = ""

    def pixels(self, rows: np.ndarray | slice | int = slice(None)) -> np.ndarray:
        """Float32 pixels in [0, 1] of some rows, [n, C, H, W]; pictures as in evaluation."""
        return self.images[rows].astype(np.float32) / np.float32(self.max_value)

    def labelled(self, share: float, *, seed: int) -> "Split":
        """The images of each class that belong to ``share``, rounded, but at least one of each.

        Within a class, images are ranked by SHA-256 of "labels/seed/idx", so that a smaller share
        is a part of a larger one. With a share of 1 this is the split itself.
        """
        if share == 1:
            return self
        names = [hashlib.sha256(b"labels/%d/%d" % (seed, i)).digest() for i in self.idx]
        ranked = np.array(sorted(range(len(names)), key=names.__getitem__))
        kept: list[int] = []
        for label in np.unique(self.labels):
            of_class = ranked[self.labels[ranked] == label]
            kept += of_class[: max(1, round(share * len(of_class)))].tolist()
        rows = np.sort(kept)
        images: np.ndarray | Pictures
        if isinstance(self.images, Pictures):
            images = replace(self.images, rows=self.images.rows[rows])
        else:
            images = self.images[rows]
        return replace(self, idx=self.idx[rows], images=images, labels=self.labels[rows])


def sealed(index: dict[str, Any]) -> dict[str, Any]:
    """An index with its own SHA-256 added, as it is written."""
    text = json.dumps(index, sort_keys=True)
    return index | {DIGEST: hashlib.sha256(text.encode()).hexdigest()}


def read_index(folder: Path) -> dict[str, Any]:
    """The contents of ``index.json`` of a split.

    Raises:
        DataError: It is missing or damaged.
    """
    path = folder / "index.json"
    try:
        index = read_json(path, hint="; `rrcm repro shard` writes it")
        if index != sealed({key: value for key, value in index.items() if key != DIGEST}):
            raise ValueError("its digest is another")
        return {key: index[key] for key in KEYS}
    except (ValueError, KeyError, TypeError, AttributeError) as error:  # not an index of ours
        raise DataError(f"{path}: damaged ({error}){REMADE}") from None


def fit(index: dict[str, Any]) -> Fit:
    """How picture files are scaled to a split's images: as the split's own are in evaluation.

    For a split of arrays there is no such rule, and a file must have their shape.
    """
    if index["shape"] is not None:
        return Fit(shape=tuple(index["shape"]))
    shape = (index["channels"], index["size"], index["size"])
    return Fit(shape=shape, resize="crop", ratio=index["crop"])


def read(root: Path, name: str, *, verify: bool = True) -> Split:
    """The split ``name`` of the shards in ``root``, after a check of every byte.

    ``verify`` is False if another process of the same stage has checked them.

    Raises:
        DataError: A shard is missing, truncated or altered, or the split has no images.
    """
    folder = root / name
    index = read_index(folder)
    if index["images"] == 0:
        raise DataError(
            f"{folder}: no images: data.{name} was 0 when it was written; set it in params.yaml, "
            "then `rrcm repro shard`"
        )
    digests = index["sha256"]
    tars = tuple(file for file in digests if file != ROWS)
    if verify:
        with ThreadPoolExecutor() as threads:  # hashing releases the interpreter lock
            [*threads.map(lambda file: _check(folder / file, digests[file]), [*tars, ROWS])]
    rows = _rows(folder / ROWS)
    images: np.ndarray | Pictures
    if index["shape"] is None:
        images = Pictures(folder, tars, rows, fit(index))
    else:
        images = _arrays(folder, tars, rows, tuple(index["shape"]))
    return Split(
        idx=rows["idx"].copy(),
        images=images,
        labels=rows["label"].copy(),
        classes=tuple(index["classes"]),
        max_value=index["white"],
        name=name,
    )


def _rows(path: Path) -> np.ndarray:
    """The table of a split, loaded after a check that the file is as long as it declares."""
    try:
        rows = np.array(np.load(path, mmap_mode="r", allow_pickle=False))
    except (ValueError, EOFError, OverflowError) as error:
        raise DataError(f"{path}: damaged ({one_line(error)}){REMADE}") from None
    if rows.dtype != KIND or rows.ndim != 1:
        raise DataError(f"{path}: damaged, no table of images{REMADE}")
    return rows


def _check(path: Path, expected: str) -> None:
    require_file(path, most=TAR, hint=f", though index.json lists it{REMADE}")
    if (got := sha256(path)) != expected:
        raise DataError(
            f"{path}: SHA-256 is {got[:12]}…, index.json says {expected[:12]}…: it is truncated or "
            f"altered{REMADE}"
        )


def _arrays(
    folder: Path, tars: tuple[str, ...], rows: np.ndarray, shape: tuple[int, int, int]
) -> np.ndarray:
    """The images in tars of ``.npy`` files, each of which ends in its pixels."""
    if len(rows) * math.prod(shape) > sum((folder / tar).stat().st_size for tar in tars):
        raise DataError(f"{folder}: images of {[*shape]} are more than its tars hold")
    images = np.empty((len(rows), *shape), dtype=np.uint8)
    for number, tar in enumerate(tars):
        raw = np.fromfile(folder / tar, dtype=np.uint8)
        for place in np.flatnonzero(rows["shard"] == number):
            end = rows["offset"][place] + rows["size"][place]
            images[place] = raw[end - images[place].size : end].reshape(shape)
    return images
