"""IDX files of MNIST and Fashion-MNIST: what they hold, and what is refused."""

import gzip
import hashlib
import struct
from pathlib import Path

import lookalikes
import numpy as np
import pytest
from builders import many, refused
from hypothesis import given
from hypothesis import strategies as st
from lookalikes import origin
from torchvision import datasets

from rrcm.core.errors import DataError
from rrcm.data.datasets import fashion_mnist, mnist
from rrcm.data.ingest import idx


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return lookalikes.idx(tmp_path / "files", images=60, test=20)


def fetched(source: Path, root: Path):
    mnist.acquire(root, origin(source))
    return mnist.listing(root, root / "no link")


@pytest.mark.parametrize("packed", [False, True])
def test_a_data_set_is_its_files_in_their_order(source: Path, tmp_path: Path, packed: bool):
    raw = {name: (source / name).read_bytes() for name in idx.FILES}
    if packed:
        for name, content in raw.items():
            (source / f"{name}.gz").write_bytes(gzip.compress(content))
            (source / name).unlink()

    found = fetched(source, tmp_path / "data")

    assert found.images.shape == (80, 1, 28, 28) and found.max_value == 255
    for number in (0, 59, 60, 79):  # the test images are the last 20
        np.testing.assert_array_equal(found.images[number, 0], lookalikes.grey(number))
    assert found.labels.tolist() == [n % 10 for n in range(80)]
    assert found.held.tolist() == [False] * 60 + [True] * 20
    assert found.idx.tolist() == [*range(60), *range(20)]
    assert {n: (tmp_path / "data" / n).read_bytes() for n in idx.FILES} == raw


@many
@given(st.lists(st.integers(0, 5), min_size=1, max_size=3), st.integers(0, 2**32 - 1))
def test_an_array_is_read_as_it_was_written(shape, seed):
    """By the format's definition, for any number of axes and lengths."""
    array = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    raw = bytes((0, 0, 8, len(shape))) + struct.pack(f">{len(shape)}I", *shape) + array.tobytes()

    np.testing.assert_array_equal(idx.parse(raw, Path("x"), axes=len(shape)), array)


def test_other_contents_than_the_official_ones_are_refused(source: Path, tmp_path: Path):
    with refused(DataError, "train-images-idx3-ubyte: MD5 is ", "--no-verify"):
        fashion_mnist.acquire(tmp_path / "data", origin(source, verify=True))
    assert not (tmp_path / "data").exists()

    official = {name: lookalikes.md5(source / name) for name in idx.FILES}
    asked = {"torchvision": "MNIST", "md5": official}
    said = idx.acquire(tmp_path / "data", origin(source, verify=True), **asked)
    assert said.endswith("data: 80 images")


def test_damaged_files_are_an_error_in_one_line_and_nothing_is_written(source, tmp_path: Path):
    path = source / "train-images-idx3-ubyte"
    raw = path.read_bytes()
    declared = "its header says 60 x 28 x 28; it is truncated or damaged"
    for damaged, words in (
        (raw[:-1], declared),
        (raw + b"\0", declared),
        (raw[:2] + b"\x0d" + raw[3:], "no IDX file of bytes with 3 axes (starts with 00 00 0d 03)"),
        (raw[:3] + b"\x02" + raw[4:], "no IDX file of bytes with 3 axes (starts with 00 00 08 02)"),
        (raw[:4] + b"\xff" * 12 + raw[16:], "its header says 4294967295 x 4294967295 x 4294967295"),
        (b"", "no IDX file of bytes with 3 axes"),
    ):
        path.write_bytes(damaged)
        with refused(DataError, str(path), words):
            fetched(source, tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_files_that_do_not_fit_each_other_or_the_data_set_are_refused(source, tmp_path: Path):
    for name, array, words in (
        ("labels-idx1", np.zeros(19), "19 labels for 20 images"),
        ("labels-idx1", np.full(20, 10), "a label is 10, not one of 0 … 9"),
        ("images-idx3", np.zeros((20, 32, 32)), "20 images of 32 x 32 pixels, expected some of 28"),
    ):
        path = source / f"t10k-{name}-ubyte"
        good = path.read_bytes()
        path.write_bytes(lookalikes.as_idx(array.astype(np.uint8)))
        with refused(DataError, f"{path.name}: {words}"):
            fetched(source, tmp_path / "data")
        path.write_bytes(good)


def test_gzip_that_is_cut_or_a_bomb_is_refused(source: Path, tmp_path: Path):
    name = "train-images-idx3-ubyte"
    whole = gzip.compress((source / name).read_bytes())
    (source / name).unlink()
    for packed, words in (
        (whole[:-20], "truncated or no gzip file"),
        (b"no gzip", "truncated or no gzip file"),
        (gzip.compress(bytes(idx.UNPACKED + 1)), "which may be a trap"),
    ):
        (source / f"{name}.gz").write_bytes(packed)
        with refused(DataError, f"{name}.gz: ", words):
            fetched(source, tmp_path / "data")


def test_missing_files_are_named(source: Path, tmp_path: Path):
    with refused(DataError, f"--from {tmp_path / 'no'}: no such folder"):
        mnist.acquire(tmp_path / "data", origin(tmp_path / "no"))
    (source / "t10k-labels-idx1-ubyte").unlink()
    with refused(DataError, "t10k-labels-idx1-ubyte: not found, nor with .gz at its end"):
        fetched(source, tmp_path / "data")


def test_without_a_folder_torchvision_downloads(source: Path, tmp_path: Path, monkeypatch):
    """Its own code, with a mirror that answers with look-alikes; then one that does not answer."""
    monkeypatch.chdir(tmp_path)
    packed = {f"{n}.gz": gzip.compress((source / n).read_bytes()) for n in idx.FILES}
    kind = datasets.FashionMNIST
    listed = [(n, hashlib.md5(raw).hexdigest()) for n, raw in packed.items()]
    monkeypatch.setattr(kind, "resources", listed)

    lookalikes.mirror(monkeypatch, packed)
    assert fashion_mnist.acquire(Path("data/it"), origin()) == "data/it: 80 images"

    lookalikes.mirror(monkeypatch, None)
    with refused(DataError, "torchvision cannot download it", "--from DIR"):
        fashion_mnist.acquire(Path("data/it"), origin())
