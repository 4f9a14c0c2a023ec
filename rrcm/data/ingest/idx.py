"""IDX files of grey images, the format of MNIST and of the data sets made to replace it.

A file is a big-endian header and bytes: two zeros, 8 for unsigned bytes, the number of axes, then
the length of each axis, 4 bytes each. Source: LeCun, Cortes & Burges, the page of MNIST.
"""

import math
import zlib
from pathlib import Path

import numpy as np

from rrcm.core.errors import DataError
from rrcm.core.files import read_bytes, unzipped
from rrcm.data.ingest.listing import Listing, Origin, copy, of_arrays, require_official

SIDE, MAX_VALUE = 28, 255
PARTS = ("train", "t10k")  # prefixes of the files; the second is the test split
IMAGES, LABELS = "images-idx3-ubyte", "labels-idx1-ubyte"
FILES = tuple(f"{part}-{kind}" for part in PARTS for kind in (IMAGES, LABELS))
UNPACKED = 2**26  # bytes of an unpacked file; the largest official one has 47 million


def acquire(root: Path, origin: Origin, *, torchvision: str, md5: dict[str, str]) -> str:
    """Copy the four files, gzipped or not, to ``root``, unpacked; download them if none are named.

    All of them are read and checked before the first is written.

    Args:
        root: The folder of the copies.
        origin: Names the folder of the files; whether they must be the official ones.
        torchvision: The class of torchvision.datasets that downloads them.
        md5: That of each unpacked file; gzip writes different bytes on different machines.

    Raises:
        DataError: A file is missing, damaged or not the official one, or the download fails.
    """

    def download(folder: Path) -> Path:
        from torchvision import datasets

        getattr(datasets, torchvision)(str(folder), download=True)
        return folder / torchvision / "raw"

    instead = "its four files yourself and give their folder: --from DIR"
    with origin.or_download(torchvision, download, instead) as source:
        if not source.is_dir():
            raise DataError(
                f"--from {source}: no such folder; it should hold {FILES[0]} and others"
            )
        raw = {name: _packed(source, name) for name in FILES}
        if origin.verify:
            require_official(raw, md5, source)
        images = sum(len(_pair(raw, part, source, classes=None)[1]) for part in PARTS)
        copy(raw, root)
    return f"{root}: {images:,} images"


def listing(root: Path, link: Path, *, classes: tuple[str, ...], command: str) -> Listing:
    """Every image of the files in ``root``; those of ``t10k`` are a test split of their own.

    ``link`` is not used: the files are copies.

    Raises:
        DataError: A file is missing, which names the ``command`` that puts it there, or damaged.
    """
    hint = f"; `{command}` puts it there"
    raw = {name: read_bytes(root / name, hint=hint) for name in FILES}
    pairs = (_pair(raw, part, root, classes=len(classes)) for part in PARTS)
    return of_arrays(*pairs, classes=classes, max_value=MAX_VALUE)


def parse(raw: bytes, path: Path, *, axes: int) -> np.ndarray:
    """The array of an IDX file of unsigned bytes with this number of axes, uint8.

    Raises:
        DataError: Another type or number of axes, or another size than the header says.
    """
    header = 4 + 4 * axes
    if raw[:4] != bytes((0, 0, 8, axes)) or len(raw) < header:
        raise DataError(
            f"{path}: no IDX file of bytes with {axes} axes (starts with {raw[:4].hex(' ')})"
        )
    shape = tuple(int(n) for n in np.frombuffer(raw, dtype=">u4", count=axes, offset=4))
    if math.prod(shape) != len(raw) - header:
        raise DataError(
            f"{path}: {len(raw) - header:,} bytes of data, but its header says "
            f"{' x '.join(map(str, shape))}; it is truncated or damaged"
        )
    return np.frombuffer(raw, dtype=np.uint8, offset=header).reshape(shape)


def _packed(source: Path, name: str) -> bytes:
    """The unpacked contents of a file, which may be gzipped."""
    path, packed = source / name, source / f"{name}.gz"
    if path.exists() or not packed.exists():
        return read_bytes(path, most=UNPACKED, hint=", nor with .gz at its end")
    try:
        return unzipped(read_bytes(packed), packed, most=UNPACKED)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{packed}: truncated or no gzip file ({error})") from None


def _pair(
    raw: dict[str, bytes], part: str, folder: Path, *, classes: int | None
) -> tuple[np.ndarray, np.ndarray]:
    """Images, uint8 [n, 1, SIDE, SIDE], and labels, int64 [n], below ``classes`` if given."""
    paths = [folder / f"{part}-{kind}" for kind in (IMAGES, LABELS)]
    images = parse(raw[paths[0].name], paths[0], axes=3)
    labels = parse(raw[paths[1].name], paths[1], axes=1)
    if images.shape[1:] != (SIDE, SIDE) or not len(images):
        raise DataError(
            f"{paths[0]}: {len(images)} images of {' x '.join(map(str, images.shape[1:]))} pixels, "
            f"expected some of {SIDE} x {SIDE}"
        )
    if len(images) != len(labels):
        raise DataError(f"{paths[1]}: {len(labels)} labels for {len(images)} images")
    if classes is not None and int(labels.max()) >= classes:
        raise DataError(f"{paths[1]}: a label is {int(labels.max())}, not one of 0 … {classes - 1}")
    return images[:, None], labels.astype(np.int64)
