"""Names what a file is by its first bytes, for errors about files that are not what was wanted."""

import re
import zipfile
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import IO

from rrcm.core.errors import printable

HEAD = 512  # bytes that tell the kind
STAND_INS = ("lfs", "page", "answer")  # what a download may leave in place of any file
STARTS: dict[str, bytes | tuple[bytes, ...]] = {  # kind: first bytes
    "lfs": b"version https://git-lfs",
    "gzip": b"\x1f\x8b",
    "bzip2": b"BZh",
    "xz": b"\xfd7zXZ\x00",
    "zstd": b"\x28\xb5\x2f\xfd",
    "7z": b"7z\xbc\xaf\x27\x1c",
    "rar": b"Rar!\x1a\x07",
    "parquet": b"PAR1",
    "excel": b"\xd0\xcf\x11\xe0",
    "hdf5": b"\x89HDF",
    "numpy": b"\x93NUMPY",
    "pdf": b"%PDF",
    "picture": (b"\x89PNG\r\n", b"\xff\xd8\xff", b"GIF8"),
    "pickle": (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05"),
    "zip": (b"PK\x03\x04", b"PK\x05\x06"),
}
WORDS = {  # kind: what it is; and the way out
    "lfs": "a Git LFS pointer, not the file that it stands for; `git lfs pull` brings that",
    "page": "a web page (HTML), not the file that it may link to; download that",
    "answer": "an error that a server answered (XML), not the file; download it again",
    "gzip": "a gzip file; `gunzip` unpacks it",
    "bzip2": "a bzip2 file; `bunzip2` unpacks it",
    "xz": "an xz file; `unxz` unpacks it",
    "zstd": "a Zstandard file; `unzstd` unpacks it",
    "7z": "a 7z archive; unpack it",
    "rar": "a RAR archive; unpack it",
    "tar": "a tar archive; unpack it",
    "zip": "a zip archive; unpack it",
    "parquet": "a Parquet file; save the table as CSV",
    "excel": "an Excel file; save the table as CSV",
    "hdf5": "an HDF5 file, as Keras and MATLAB write it; export the network as ONNX",
    "numpy": "a NumPy file",
    "pdf": "a PDF document",
    "picture": "a picture",
    "heif": "a picture or film of the kinds HEIC, AVIF and MP4; convert it to PNG or JPEG",
    "svg": "a drawing (SVG); convert it to PNG",
    "pickle": "a pickle, as old versions of PyTorch write it",
    "torch": "a file of PyTorch",
    "torchscript": "a TorchScript module; save the state_dict() of its network",
    "export": "a program of torch.export; torch.export.load(FILE).module() is its network",
    "safetensors": "a safetensors file, whose name has to end in .safetensors",
    "onnx": "an ONNX file",
}
NETWORKS = (".onnx", ".pth", ".pt", ".ckpt", ".safetensors")  # endings of names in archives
ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/+(.*)", re.DOTALL)  # no drive, as in C:/x


def told(source: Path | IO[bytes], otherwise: str, *, own: Collection[str] = ()) -> str:
    """What a file is, and the way out; ``otherwise`` if it is of no known kind, or one of ``own``.

    Args:
        source: A regular file, as `files.require_file` says, or an open one.
        otherwise: The error of the reader that could not read it.
        own: The kinds that this reader reads, so that the file is damaged.
    """
    if isinstance(source, Path):
        with suppress(OSError), source.open("rb") as file:
            return told(file, otherwise, own=own)
        return otherwise
    source.seek(0)
    found = kind(source.read(HEAD))
    words = WORDS.get(found, otherwise)
    if found == "zip":
        found, words = _zipped(source)
    return otherwise if found in own else words


def kind(head: bytes) -> str:
    """The kind of a file that begins with ``head``, a key of `WORDS`; empty if it is unknown."""
    if found := next((name for name, start in STARTS.items() if head.startswith(start)), ""):
        return found
    if head[257:262] == b"ustar":
        return "tar"
    if head[4:8] == b"ftyp":
        return "heif"
    if head[8:9] == b"{" and int.from_bytes(head[:8], "little") < 2**32:
        return "safetensors"
    if re.match(rb"\x08[\x01-\x20](\x12|:|B)", head):  # its version, then a name, graph or opset
        return "onnx"
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    if text.startswith((b"<!doctype html", b"<html")):
        return "page"
    if text.startswith((b"<?xml", b"<error", b"<svg")):
        return "svg" if b"<svg" in text else "answer" if b"<error" in text else ""
    return ""


def _zipped(file: IO[bytes]) -> tuple[str, str]:
    """The kind of a zip file, and its words, by the names of what is in it."""
    try:
        with zipfile.ZipFile(file) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
        return "damaged", "a zip archive that is damaged or cut short; download it again"
    if any(name.endswith("/data.pkl") for name in names):
        script = any("/code/" in name for name in names)
        return ("torchscript", WORDS["torchscript"]) if script else ("torch", WORDS["torch"])
    for ending, found in (("models/model.json", "export"), ("xl/workbook.xml", "excel")):
        if any(name.endswith(ending) for name in names):
            return found, WORDS[found]
    if names and all(name.endswith(".npy") for name in names):
        return "numpy", WORDS["numpy"]
    first = next((name for name in names if name.endswith(NETWORKS)), "".join(names[:1]))
    inside = f"{printable(first)[:100]}{' and others' if names[1:] else ''}"
    return "zip", f"a zip archive with {inside or 'nothing'} in it; unpack it"


def missing(path: Path | str, otherwise: str = "not found") -> str:
    """A path where nothing is, and ``otherwise``, or that it is an address such as s3://….

    The address is as it was typed; a `Path` has lost one of its slashes.
    """
    if parts := ADDRESS.fullmatch(str(path)):
        return f"{parts[1]}://{parts[2]}: an address, not a path; download the file, and name that"
    return f"{path}: {otherwise}"
