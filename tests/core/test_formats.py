"""A file that is not what was wanted is named by what it is, by each reader of a user's files."""

import bz2
import gzip
import io
import lzma
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pandas as pd
import pytest
import safetensors.torch
import torch
from builders import refused
from lookalikes import tar
from PIL import Image

from rrcm.certification import tables
from rrcm.certification.votes import records
from rrcm.cli.classifiers import class_names
from rrcm.core import formats
from rrcm.core.errors import CheckpointError, RrcmError
from rrcm.data import image_folder
from rrcm.data.splits import pictures
from rrcm.data.splits.pictures import Fit
from rrcm.inference.foreign import _onnx_file
from rrcm.models import state_dict

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a21\nsize 12345\n"
TABLE = b"idx,label,predict,radius,correct,time\n0,1,1,0.5,1,0\n"
FIT = Fit(shape=(3, 8, 8))


def written(save, *arguments, **options) -> bytes:
    file = io.BytesIO()
    save(*arguments, file, **options)
    return file.getvalue()


def zipped(**parts: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in parts.items():
            archive.writestr(name.replace("__", "/").replace("_", "."), content)
    return file.getvalue()


def graph() -> bytes:
    made = onnx.helper.make_graph([], "g", [], [])
    return onnx.helper.make_model(made, producer_name="p").SerializeToString()


PICTURE, NET = Image.new("RGB", (8, 8)), {"a": torch.ones(2)}
OLD = written(torch.save, NET, _use_new_zipfile_serialization=False)
KINDS = {  # kind: what a program wrote, and a part of what is said of it
    "lfs": (POINTER, "a Git LFS pointer, not the file that it stands for; `git lfs pull` brings"),
    "page": (b"\xef\xbb\xbf\n<!DOCTYPE html>\n<html>", "a web page (HTML), not the file"),
    "page of old": (b"<HTML><HEAD>", "a web page (HTML)"),
    "answer": (b'<?xml version="1.0"?>\n<Error><Code>AccessDenied', "an error that a server"),
    "svg": (b'<?xml version="1.0"?><svg xmlns="x">', "a drawing (SVG)"),
    "gzip": (gzip.compress(TABLE), "a gzip file; `gunzip` unpacks it"),
    "bzip2": (bz2.compress(b"a"), "a bzip2 file"),
    "xz": (lzma.compress(b"a"), "an xz file"),
    "tar": (tar({"a": b""}), "a tar archive"),
    "zip": (zipped(model__net_onnx=graph(), a_txt=b""), "a zip archive with model/net.onnx and"),
    "empty zip": (zipped(), "a zip archive with nothing in it"),
    "half a zip": (zipped(a_txt=b"a" * 99)[:60], "a zip archive that is damaged or cut short"),
    "excel": (zipped(xl__workbook_xml=b""), "an Excel file; save the table as CSV"),
    "parquet": (b"PAR1\x15\x04", "a Parquet file; save the table as CSV"),
    "numpy": (written(lambda file: np.save(file, np.ones(2))), "a NumPy file"),
    "npz": (written(lambda file: np.savez(file, a=np.ones(2))), "a NumPy file"),
    "picture": (written(lambda file: PICTURE.save(file, "JPEG")), "a picture"),
    "heif": (b"\x00\x00\x00\x18ftypheic", "HEIC, AVIF and MP4; convert it to PNG or JPEG"),
    "pickle": (written(lambda file: pd.DataFrame({"a": [1]}).to_pickle(file)), "a pickle"),
    "torch": (written(torch.save, NET), "a file of PyTorch"),
    "old torch": (OLD, "a pickle, as old versions of PyTorch write it"),
    "script": (zipped(net__data_pkl=b"", net__code__a_py=b""), "a TorchScript module; save the"),
    "export": (zipped(a__models__model_json=b"", b__model_pt=b""), "a program of torch.export;"),
    "safetensors": (safetensors.torch.save(NET), "a safetensors file"),
    "onnx": (graph(), "an ONNX file"),
}
TEXTS = (b"", b"no network", b"idx,label\n", b"file;label\r\n", b"a" * 600, b"\x00" * 600, b"{}")


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_is_named_by_its_first_bytes(tmp_path: Path, kind: str):
    content, words = KINDS[kind]
    (tmp_path / "file").write_bytes(content)

    assert words in formats.told(tmp_path / "file", "unknown")
    assert words in formats.told(io.BytesIO(content), "unknown")


@pytest.mark.parametrize("content", TEXTS)
def test_what_says_nothing_is_what_its_reader_says(tmp_path: Path, content: bytes):
    assert formats.told(io.BytesIO(content), "unknown") == "unknown"
    assert formats.told(io.BytesIO(KINDS["torch"][0]), "damaged", own=["torch"]) == "damaged"
    assert formats.told(tmp_path / "no file", "unknown") == "unknown"


def labels(path: Path) -> None:
    Image.new("RGB", (8, 8)).save(path.with_name("a.png"))
    classes = ["0", "1"]
    image_folder.folder(path.parent, FIT, classes=classes, named=False, labels=path, strict=True)


def weights(path: Path) -> None:
    state_dict.find(path, (), hint="")


READERS = {  # the ending of what it reads, the reader, kinds of `KINDS` that it reads
    "ONNX": (".onnx", _onnx_file.read, ("onnx",)),
    "weights": (".pth", weights, ("torch",)),
    "safetensors": (".safetensors", weights, ("safetensors",)),
    "pictures": (".png", lambda path: pictures.read(path, FIT), ("picture",)),
    "labels": (".csv", labels, ()),
    "classes": (".txt", class_names, ()),
    "votes": (".jsonl", records.scan, ()),
    "header": (".jsonl", records.definition, ()),
    "tables": (".csv", tables.read, ("gzip",)),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("kind", ["lfs", "page", "gzip", "zip", "excel", "torch", "safetensors"])
def test_every_reader_of_a_users_file_names_what_it_is(tmp_path: Path, reader: str, kind: str):
    ending, read, own = READERS[reader]
    content, words = KINDS[kind]
    path = tmp_path / f"file{ending}"
    path.write_bytes(content)
    if kind in own:
        read(path)
        return

    with refused(RrcmError, f"{path}", words):
        read(path)


@pytest.mark.parametrize("address", ["https://a.b/net.pth", "s3://bucket/net.pth", "gs://b/c"])
def test_an_address_is_no_missing_file(address: str):
    """As it was typed: a path has lost one of the slashes."""
    with refused(CheckpointError, f"{address}: an address, not a path; download the file"):
        state_dict.find(Path(address), (), hint="")
    for path in ("C:/net.pth", "a:b", "/s3:/b"):
        assert formats.missing(Path(path)) == f"{path}: not found"
