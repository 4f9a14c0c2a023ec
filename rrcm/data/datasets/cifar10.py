"""CIFAR-10: 50,000 training and 10,000 test images of 32 x 32 pixels, as pickled by Python 2.

Source: Krizhevsky (2009), "Learning Multiple Layers of Features from Tiny Images", the "python
version" of its page. A pickle can run any program, so these are read by an unpickler that knows
nothing but numpy's arrays, beside numbers, text, lists and mappings.
"""

import gzip
import hashlib
import io
import pickle
import struct
import tarfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from rrcm.core.errors import DataError
from rrcm.core.files import atomic, read_bytes, unzipped
from rrcm.data.ingest.listing import Listing, Origin

CLASSES = tuple("airplane automobile bird cat deer dog frog horse ship truck".split())
MAX_VALUE, SHAPE = 255, (3, 32, 32)
ARCHIVE, MD5 = "cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a"
FOLDER, META = "cifar-10-batches-py", "batches.meta"
BATCHES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
UNZIPPED = 2**28  # most bytes of the unpacked archive; the official one has 186 million
BROKEN = (  # exceptions from unpickling damaged bytes
    *(pickle.UnpicklingError, EOFError, TypeError, ValueError, IndexError, KeyError),
    *(AttributeError, OverflowError, MemoryError, struct.error, RecursionError),
)


def acquire(root: Path, origin: Origin) -> str:
    """Copy the archive to ``root`` after reading all of it; without one, download it.

    Raises:
        DataError: It is missing, damaged, hostile or, if the official one is asked for, another; or
            the download fails.
    """

    def download(folder: Path) -> Path:  # it is not unpickled by torchvision
        from torchvision.datasets import CIFAR10, utils

        utils.download_url(CIFAR10.url, folder, ARCHIVE, CIFAR10.tgz_md5)
        return folder / ARCHIVE

    instead = f"{ARCHIVE} yourself and give it: --from {ARCHIVE}"
    with origin.or_download("CIFAR10", download, instead) as source:
        raw = read_bytes(source, hint=f"; expected {ARCHIVE}")
        got = hashlib.md5(raw, usedforsecurity=False).hexdigest()
        if origin.verify and got != MD5:
            raise DataError(
                f"{source}: MD5 is {got}, that of the official file {MD5}: it is truncated or "
                "another; fetch it again, or --no-verify"
            )
        images = sum(len(labels) for _, labels in _batches(raw, source))
        with atomic(root / ARCHIVE) as part:
            part.write_bytes(raw)
    return f"{root}: {images:,} images"


def listing(root: Path, link: Path) -> Listing:
    """Every image of the archive in ``root``; the last batch is the test split.

    Raises:
        DataError: It is missing or damaged.
    """
    path = root / ARCHIVE
    raw = read_bytes(path, hint=f"; `rrcm data cifar10 --from {ARCHIVE}`")
    pixels, labels = zip(*_batches(raw, path), strict=True)
    images, held = np.concatenate(pixels), len(labels[-1])
    trained = len(images) - held
    return Listing(
        classes=CLASSES,
        max_value=MAX_VALUE,
        idx=np.concatenate([np.arange(trained), np.arange(held)]),
        labels=np.concatenate(labels),
        held=np.arange(len(images)) >= trained,
        images=images,
        size=images.nbytes,
    )


def _batches(raw: bytes, path: Path) -> list[tuple[np.ndarray, np.ndarray]]:
    """Images, uint8 [n, 3, 32, 32], and labels, int64 [n], of each batch in the archive."""
    try:
        unpacked = unzipped(raw, path, most=UNZIPPED)  # verifies its checksum
        with tarfile.open(fileobj=io.BytesIO(unpacked), mode="r:") as tar:
            files = {name: tar.extractfile(f"{FOLDER}/{name}") for name in (*BATCHES, META)}
            contents = {name: file.read(UNZIPPED) for name, file in files.items() if file}
        meta = _unpickled(contents[META], f"{path}: {META}")
        batches = [_batch(contents[name], f"{path}: {name}") for name in BATCHES]
    except (EOFError, zlib.error, gzip.BadGzipFile, tarfile.TarError) as error:
        raise DataError(f"{path}: truncated or no tar.gz ({error}); fetch it again") from None
    except KeyError as error:  # a member is missing or not a file
        raise DataError(f"{path}: not the archive of CIFAR-10 ({error})") from None
    if meta.get("label_names") != [*CLASSES]:
        named = meta.get("label_names")
        raise DataError(f"{path}: {META} has other classes than CIFAR-10: {named!r:.80}")
    return batches


def _batch(raw: bytes, name: str) -> tuple[np.ndarray, np.ndarray]:
    content = _unpickled(raw, name)
    pixels, labels = content.get("data"), content.get("labels")
    if not isinstance(pixels, np.ndarray) or not isinstance(labels, list):
        raise DataError(f"{name}: not a batch of CIFAR-10, without data and labels")
    if pixels.dtype != np.uint8 or pixels.shape != (len(labels), np.prod(SHAPE)):
        raise DataError(
            f"{name}: {len(labels)} labels for data of shape {pixels.shape}, {pixels.dtype}"
        )
    if not all(type(label) is int and 0 <= label < len(CLASSES) for label in labels):
        raise DataError(f"{name}: a label is not one of 0 … {len(CLASSES) - 1}")
    return pixels.reshape(-1, *SHAPE), np.array(labels, dtype=np.int64)


def _unpickled(raw: bytes, name: str) -> dict[str, Any]:
    try:
        content = Unpickler(io.BytesIO(raw), encoding="latin-1").load()
    except BROKEN as error:
        raise DataError(f"{name}: damaged, or no pickle of CIFAR-10 ({error})") from None
    except DataError as error:
        raise DataError(f"{name}: {error}") from None
    if not isinstance(content, dict):
        raise DataError(f"{name}: not a batch of CIFAR-10, but a {type(content).__name__}")
    return content


KNOWN = {  # what an array of numpy is pickled with
    ("numpy.core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
}


class Unpickler(pickle.Unpickler):
    """Unpickles nothing but what CIFAR-10 has."""

    def find_class(self, module: str, name: str) -> Any:
        """One of KNOWN.

        Raises:
            DataError: The pickle asks for anything else, which could run a program.
        """
        try:
            return KNOWN[module, name]
        except KeyError:
            raise DataError(
                f"refused: the pickle asks for {module}.{name}, which CIFAR-10 does not; it may be "
                "hostile, and nothing of it was run"
            ) from None
