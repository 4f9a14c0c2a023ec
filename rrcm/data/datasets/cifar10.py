"""CIFAR-10: 50,000 training and 10,000 test images of 32 x 32 pixels, as pickled by Python 2.

Source: Krizhevsky (2009), "Learning Multiple Layers of Features from Tiny Images", the "python
version" of its page. A pickle can run any program, so these are read by an unpickler that builds
only bytes, numbers, lists, mappings and arrays of bytes, with functions of this file.
"""

import gzip
import io
import math
import pickle
import struct
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from rrcm.core.errors import DataError
from rrcm.core.files import read_bytes, unzipped
from rrcm.data.ingest.listing import Contents, Listing, Origin, copy, of_arrays, require_official

CLASSES = tuple("airplane automobile bird cat deer dog frog horse ship truck".split())
CONTENTS = Contents(train=50_000, test=10_000, classes=10)
MAX_VALUE, SHAPE = 255, (3, 32, 32)
ARCHIVE = "cifar-10-python.tar.gz"
FOLDER, META = "cifar-10-batches-py", "batches.meta"
UNZIPPED = 2**28  # most bytes of the unpacked archive; the official one has 186 million
MD5 = {  # as torchvision.datasets.CIFAR10 has them; the test batch is last
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
    META: "5ff9c542aee3614f3951f8cda6e48888",
}
BATCHES = [name for name in MD5 if name != META]
BROKEN = (  # exceptions from unpickling damaged bytes
    *(pickle.UnpicklingError, EOFError, TypeError, ValueError, IndexError, KeyError),
    *(AttributeError, OverflowError, MemoryError, struct.error, RecursionError),
)


def acquire(root: Path, origin: Origin) -> str:
    """Copy the batches of the archive or its folder to ``root``; without one, download it.

    All batches are read before the first is written.

    Raises:
        DataError: One is missing, damaged, hostile or not the official file, or the download fails.
    """

    def download(folder: Path) -> Path:  # it is not unpickled by torchvision
        from torchvision.datasets import CIFAR10, utils

        utils.download_url(CIFAR10.url, folder, ARCHIVE, CIFAR10.tgz_md5)
        return folder / ARCHIVE

    instead = f"{ARCHIVE} yourself and give it: --from {ARCHIVE}"
    with origin.or_download("CIFAR10", download, instead) as source:
        raw = _from_folder(source) if source.is_dir() else _from_archive(source)
        if origin.verify:
            require_official(raw, MD5, source)
        images = sum(len(_batch(raw[name], f"{source}: {name}")[1]) for name in BATCHES)
        names = _unpickled(raw[META], f"{source}: {META}").get(b"label_names")
        if names != [name.encode() for name in CLASSES]:
            raise DataError(f"{source}: {META} has other classes than CIFAR-10: {names!r:.80}")
        copy(raw, root)
    return f"{root}: {images:,} images"


def listing(root: Path, link: Path) -> Listing:
    """Every image of the batches in ``root``; the test batch is the test split.

    Raises:
        DataError: A batch is missing or damaged.
    """
    hint = f"; `rrcm data cifar10 --from {ARCHIVE}`"
    paths = [root / name for name in BATCHES]
    *train, test = (_batch(read_bytes(path, hint=hint), str(path)) for path in paths)
    images, labels = (np.concatenate(arrays) for arrays in zip(*train, strict=True))
    return of_arrays((images, labels), test, classes=CLASSES, max_value=MAX_VALUE)


def _from_folder(source: Path) -> dict[str, bytes]:
    folder = source / FOLDER if (source / FOLDER).is_dir() else source
    hint = f"; expected the batches of {ARCHIVE} in there"
    return {name: read_bytes(folder / name, hint=hint) for name in MD5}


def _from_archive(source: Path) -> dict[str, bytes]:
    raw = read_bytes(source, hint=f"; expected {ARCHIVE}")
    try:
        whole = unzipped(raw, source, most=UNZIPPED)  # verifies its checksum
        with tarfile.open(fileobj=io.BytesIO(whole), mode="r:") as tar:
            return {name: _member(tar, f"{FOLDER}/{name}") for name in MD5}
    except (EOFError, zlib.error, gzip.BadGzipFile, tarfile.TarError) as error:
        raise DataError(f"{source}: truncated or no tar.gz ({error}); fetch it again") from None
    except KeyError as error:  # a member is missing or not a file
        raise DataError(f"{source}: not the archive of CIFAR-10 ({error})") from None


def _member(tar: tarfile.TarFile, name: str) -> bytes:
    file = tar.extractfile(name)
    if file is None:
        raise KeyError(f"{name} is no file")
    return file.read(UNZIPPED)


def _batch(raw: bytes, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Images, uint8 [n, 3, 32, 32], and labels, int64 [n]."""
    found = _unpickled(raw, name)
    pixels, labels = found.get(b"data"), found.get(b"labels")
    if not isinstance(pixels, Bytes) or not isinstance(labels, list):
        raise DataError(f"{name}: not a batch of CIFAR-10, without data and labels")
    if pixels.shape != (len(labels), math.prod(SHAPE)):
        raise DataError(f"{name}: {len(labels)} labels for data of shape {pixels.shape}")
    if not all(type(label) is int and 0 <= label < len(CLASSES) for label in labels):
        raise DataError(f"{name}: a label is not one of 0 … {len(CLASSES) - 1}")
    images = np.frombuffer(pixels.raw, dtype=np.uint8).reshape(-1, *SHAPE)
    return images, np.array(labels, dtype=np.int64)


def _unpickled(raw: bytes, name: str) -> dict[bytes, Any]:
    try:
        found = Unpickler(io.BytesIO(raw), encoding="bytes").load()
    except BROKEN as error:
        raise DataError(f"{name}: damaged, or no pickle of CIFAR-10 ({error})") from None
    except DataError as error:
        raise DataError(f"{name}: {error}") from None
    if not isinstance(found, dict):
        raise DataError(f"{name}: not a batch of CIFAR-10, but a {type(found).__name__}")
    return found


class Bytes:
    """Stand-in for a numpy array of bytes during unpickling: ``shape``, and the bytes ``raw``."""

    shape: tuple[int, ...] = ()
    raw: bytes = b""

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        """Take numpy's state, (version, shape, kind, Fortran order, bytes)."""
        _, shape, kind, fortran, raw = state
        if not isinstance(kind, Kind) or fortran or type(raw) is not bytes:
            raise ValueError("an array of anything but bytes in C order")
        if any(type(side) is not int or side < 0 for side in shape) or math.prod(shape) != len(raw):
            raise ValueError(f"{len(raw)} bytes for an array of shape {shape!r:.40}")
        self.shape, self.raw = tuple(shape), raw


class Kind:
    """Stand-in for numpy's dtype of bytes, the only one allowed."""

    def __init__(self, name: bytes, *_: Any) -> None:
        if name not in (b"u1", "u1"):
            raise ValueError(f"an array of {name!r:.20} instead of bytes")

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        """Ignore the state, as bytes have no byte order."""


KNOWN: dict[tuple[str, str], Callable[..., Any]] = {  # stand-ins: no function of numpy is called
    ("numpy.core.multiarray", "_reconstruct"): lambda *_: Bytes(),
    ("numpy._core.multiarray", "_reconstruct"): lambda *_: Bytes(),
    ("numpy", "ndarray"): Bytes,
    ("numpy", "dtype"): Kind,
    ("_codecs", "encode"): lambda text, *_: text.encode("latin-1"),
}


class Unpickler(pickle.Unpickler):
    """Unpickles CIFAR-10 with the stand-ins in KNOWN only."""

    def find_class(self, module: str, name: str) -> Callable[..., Any]:
        """The stand-in for a global.

        Raises:
            DataError: The pickle asks for any other global, which could run a program.
        """
        try:
            return KNOWN[module, name]
        except KeyError:
            raise DataError(
                f"refused: the pickle asks for {module}.{name}, which CIFAR-10 does not; it may be "
                "hostile, and nothing of it was run"
            ) from None
