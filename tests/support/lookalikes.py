"""Small data sets in exactly the formats of the large ones, written from their descriptions.

Pictures are noise over a colour of their class, so that a network can learn them. The same
arguments give the same bytes.
"""

import gzip
import hashlib
import io
import pickle
import struct
import tarfile
import zlib
from pathlib import Path
from typing import Any, ClassVar
from urllib.error import URLError
from urllib.request import Request

import numpy as np
import pytest
from PIL import Image

from rrcm.data.ingest.listing import Origin

CIFAR_CLASSES = "airplane automobile bird cat deer dog frog horse ship truck".split()
WNIDS = ["n02119789", "n01440764", "n03000684", "n04328186", "n07697313", "n02102040"]  # not sorted


def origin(path: Path | None = None, *, verify: bool = False) -> Origin:
    """Where the files of a dataset are; None: they are downloaded."""
    return Origin(path=path, verify=verify, skip_unreadable=False, link=Path("link"))


def pixels(label: int, number: int, size: tuple[int, int] = (32, 32)) -> np.ndarray:
    """Picture ``number`` of a class, uint8 [H, W, 3]."""
    rng = np.random.default_rng((label, number))
    colour = np.random.default_rng(label).integers(40, 216, 3)
    return (colour + rng.integers(-40, 40, (*size, 3))).astype(np.uint8)


class Python2Pickler(pickle._Pickler):
    """Protocol 2 as Python 2's cPickle wrote it: byte strings, and numpy under its old names."""

    dispatch: ClassVar[dict] = dict(pickle._Pickler.dispatch)

    def save_string(self, text: str | bytes) -> None:
        raw = text.encode("latin-1") if isinstance(text, str) else text
        head = b"U" + bytes([len(raw)]) if len(raw) < 256 else b"T" + struct.pack("<i", len(raw))
        self.write(head + raw)
        self.memoize(text)

    def save_global(self, obj: Any, name: str | None = None) -> None:
        module = obj.__module__.replace("numpy._core", "numpy.core")
        self.write(f"c{module}\n{name or obj.__qualname__}\n".encode())
        self.memoize(obj)

    dispatch[str] = dispatch[bytes] = save_string
    dispatch[type] = save_global
    dispatch[type(save_string)] = save_global


def python2_pickle(value: object) -> bytes:
    """``value`` as Python 2 would have pickled it."""
    file = io.BytesIO()
    Python2Pickler(file, protocol=2).dump(value)
    return file.getvalue()


def as_idx(array: np.ndarray) -> bytes:
    """An array of bytes in the IDX format."""
    return (
        bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape) + bytes(array)
    )


def grey(number: int) -> np.ndarray:
    """Picture ``number`` of MNIST's look-alike, of class ``number % 10``, uint8 [28, 28]."""
    return pixels(number % 10, number, (28, 28))[..., 0]


def idx(folder: Path, *, images: int, test: int) -> Path:
    """The four files of MNIST, with ``images`` to train on and then ``test``; their folder."""
    folder.mkdir(parents=True)
    for part, numbers in (("train", range(images)), ("t10k", range(images, images + test))):
        pictures = np.stack([grey(n) for n in numbers])
        (folder / f"{part}-images-idx3-ubyte").write_bytes(as_idx(pictures))
        labels = np.array([n % 10 for n in numbers], dtype=np.uint8)
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(as_idx(labels))
    return folder


def cifar10(folder: Path, *, images: int = 10, test: int = 20) -> Path:
    """CIFAR-10 with ``images`` in each of five batches and ``test`` in the sixth; the tar.gz.

    The same batches lie unpacked beside it, in cifar-10-batches-py/.
    """
    batches = folder / "cifar-10-batches-py"
    batches.mkdir(parents=True)
    names = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]
    first = 0
    for i, name in enumerate(names, 1):
        numbers = range(first, first + (test if name == "test_batch" else images))
        labels = [number % 10 for number in numbers]
        rows = [pixels(n % 10, n).transpose(2, 0, 1).ravel() for n in numbers]
        content = {
            "batch_label": "testing batch 1 of 1" if i == 6 else f"training batch {i} of 5",
            "labels": labels,
            "data": np.stack(rows),
            "filenames": [f"{CIFAR_CLASSES[n % 10]}_s_{n:06d}.png" for n in numbers],
        }
        (batches / name).write_bytes(python2_pickle(content))
        first = numbers.stop
    meta = {"num_cases_per_batch": images, "label_names": CIFAR_CLASSES, "num_vis": 3072}
    (batches / "batches.meta").write_bytes(python2_pickle(meta))
    (batches / "readme.html").write_text('<meta HTTP-EQUIV="REFRESH" content="0; url=...">\n')
    return packed(batches, folder / "cifar-10-python.tar.gz")


def packed(source: Path, archive: Path) -> Path:
    """A folder as a tar.gz with its name at the top."""
    with archive.open("wb") as file, gzip.GzipFile("", "wb", fileobj=file, mtime=0) as packer:
        with tarfile.open(fileobj=packer, mode="w", format=tarfile.GNU_FORMAT) as tar:
            tar.add(source, source.name)
    return archive


def encoded(label: int, number: int, kind: str = "JPEG") -> bytes:
    """A picture file, of sizes and proportions that differ."""
    size = (40 + 7 * (number % 3), 48 - 5 * (number % 2))
    file = io.BytesIO()
    Image.fromarray(pixels(label, number, size)).save(file, kind)
    return file.getvalue()


def declared(width: int, height: int) -> bytes:
    """A PNG file that says it has so many pixels, and has none."""
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = b""
    for kind, data in ((b"IHDR", head), (b"IDAT", zlib.compress(b"")), (b"IEND", b"")):
        checked = kind + data
        chunks += struct.pack(">I", len(data)) + checked + struct.pack(">I", zlib.crc32(checked))
    return b"\x89PNG\r\n\x1a\n" + chunks


def imagenet(folder: Path, *, classes: int = 3, train: int = 8, val: int = 2) -> Path:
    """ILSVRC2012 with ``train`` and ``val`` pictures a class, in the folders of torchvision."""
    for label, wnid in enumerate(WNIDS[:classes]):
        trained = {f"{wnid}_{n}.JPEG": encoded(label, n) for n in range(train)}
        write(folder / "train" / wnid, trained)
        numbers = [classes * n + label for n in range(1, val + 1)]
        named = {f"ILSVRC2012_val_{n:08d}.JPEG": encoded(label, 1000 + n) for n in numbers}
        write(folder / "val" / wnid, named)
    return folder


def folders(
    root: Path,
    *,
    classes: tuple[str, ...] = ("cat", "dog", "owl"),
    parts: tuple[tuple[str, int], ...] = (("train", 8), ("test", 2)),
) -> Path:
    """Pictures of several kinds in ``root/<part>/<class>/``; ("", n) is the part without a name."""
    kinds = {".jpg": "JPEG", ".png": "PNG", ".bmp": "BMP"}
    first = 0
    for part, count in parts:
        for label, name in enumerate(classes):
            chosen = [[*kinds][n % len(kinds)] for n in range(count)]
            write(
                root / part / name,
                {
                    f"{n:03d}{suffix}": encoded(label, first + n, kinds[suffix])
                    for n, suffix in enumerate(chosen)
                },
            )
        first += count
    return root


def write(folder: Path, files: dict[str, bytes]) -> None:
    """Write files by name."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, raw in files.items():
        (folder / name).write_bytes(raw)


def tar(files: dict[str, bytes]) -> bytes:
    """A plain tar of files, as GNU tar writes it."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name, raw in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(raw)
            archive.addfile(member, io.BytesIO(raw))
    return made.getvalue()


def md5(path: Path) -> str:
    """Hex MD5 of a file."""
    return hashlib.md5(path.read_bytes()).hexdigest()


def mirror(monkeypatch: pytest.MonkeyPatch, files: dict[str, bytes] | None) -> None:
    """Answer torchvision's downloads with ``files`` by name, or with none as if without network."""

    class Answer(io.BytesIO):
        url = length = None

    def opened(request: Request, *_: object, **__: object) -> Answer:
        if files is None:
            raise URLError("no route")
        return Answer(files[request.full_url.rpartition("/")[2]])

    monkeypatch.setattr("torchvision.datasets.utils.urllib.request.urlopen", opened)
