"""What no file holds is exported as a folder: the same function, whole or refused."""

import shutil
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
import torch
from builders import SIGMA, export_classifier, exported, refused

from rrcm.core import registry
from rrcm.core.errors import BackendError
from rrcm.core.files import sha256
from rrcm.inference import export
from rrcm.inference.backends.onnx import DATA, GRAPH, SMALL

RUN = "a-run"
X = torch.rand(7, 1, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def quickly(monkeypatch):
    """Tracing takes seconds, and gives the model of the file that is there."""
    path = exported() / f"onnx/{RUN}.onnx"
    monkeypatch.setattr(export, "_trace", lambda *_, **__: onnx.load(path))


@pytest.fixture
def few(monkeypatch):
    """A file holds less than the network has."""
    monkeypatch.setattr(export, "LARGEST", 100_000)


def write(root: Path, **how) -> Path:
    """The exported classifier, in whatever form."""
    export_classifier(exported(), RUN, root / f"onnx/{RUN}.onnx", **how)
    return root / f"onnx/{RUN}.onnx"


def opened(root: Path, precision="fp32", **how):
    return registry.load("backends", "onnx").Backend(
        root, RUN, sigma=SIGMA, precision=precision, device="cpu", calibration=lambda: X, **how
    )


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    """A root with the exported classifier as a folder."""
    root = tmp_path_factory.mktemp("written")
    whole = onnx.load(exported() / f"onnx/{RUN}.onnx")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(export, "_trace", lambda *_, **__: whole)
        patch.setattr(export, "LARGEST", 100_000)
        write(root)
    return root


@pytest.fixture
def folder(written, tmp_path) -> Path:
    """The folder in a copy of that root, which is ``tmp_path``, to damage."""
    shutil.copytree(written, tmp_path, dirs_exist_ok=True)
    return tmp_path / f"onnx/{RUN}.onnx"


def here(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_a_folder_is_the_function_of_the_file_bit_for_bit(tmp_path, few):
    path, file = write(tmp_path), exported() / f"onnx/{RUN}.onnx"
    graph = onnx.load(path / GRAPH, load_external_data=False).graph

    assert sorted(here(path)) == [GRAPH, DATA]
    assert max(len(tensor.raw_data) for tensor in graph.initializer) <= SMALL
    assert (path / GRAPH).stat().st_size + (path / DATA).stat().st_size > file.stat().st_size
    for precision in ("fp32", "fp16"):
        apart, whole = opened(tmp_path, precision), opened(exported(), precision)
        assert torch.equal(apart.scores(X), whole.scores(X))
        assert (apart.weights == whole.weights) == (precision == "fp32")
    assert opened(tmp_path).classes == opened(exported()).classes


@pytest.mark.parametrize("link", [Path.symlink_to, Path.hardlink_to])
def test_files_may_be_links_into_a_cache_as_dvc_makes_them(tmp_path, few, link):
    path, cache = write(tmp_path), tmp_path / "cache"
    half = opened(tmp_path, "fp16")
    cache.mkdir()
    for name, as_kept in ((GRAPH, "12ab"), (DATA, "34cd")):
        (path / name).rename(cache / as_kept)
        link(path / name, cache / as_kept)

    assert torch.equal(opened(tmp_path).scores(X), opened(exported()).scores(X))
    assert opened(tmp_path, "fp16").weights == half.weights


def test_what_fits_stays_one_file_and_both_have_the_same_bytes_each_time(tmp_path, monkeypatch):
    whole = exported() / f"onnx/{RUN}.onnx"
    monkeypatch.setattr(export, "LARGEST", whole.stat().st_size)
    assert sha256(write(tmp_path)) == sha256(whole)
    monkeypatch.setattr(export, "LARGEST", whole.stat().st_size // 2)

    assert here(write(tmp_path / "one")) == here(write(tmp_path / "two"))


@pytest.mark.parametrize("before", ["nothing", "file", "folder"])
def test_a_refused_export_leaves_what_was_there(tmp_path, monkeypatch, before):
    path = tmp_path / f"onnx/{RUN}.onnx"
    if before == "folder":
        monkeypatch.setattr(export, "LARGEST", 100_000)
    if before != "nothing":
        write(tmp_path)
    there = here(tmp_path)
    monkeypatch.setattr(export, "LARGEST", 100_000)

    with refused(BackendError, str(path), "ONNX Runtime differs"):
        write(tmp_path, tolerance=1e-15)

    assert here(tmp_path) == there
    assert len([*(tmp_path / "onnx").iterdir()]) == (before != "nothing")


DAMAGES: dict[str, Callable[[Path], object]] = {
    "missing": Path.unlink,
    "torn": lambda path: path.write_bytes(path.read_bytes()[:-4]),
    "one bit": lambda path: path.write_bytes(path.read_bytes()[:-1] + b"\x01"),
    "empty": lambda path: path.write_bytes(b""),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
}


@pytest.mark.parametrize(
    ("damage", "precision"), [*((damage, "fp32") for damage in DAMAGES), ("torn", "fp16")]
)
def test_weights_that_are_not_those_of_the_graph_are_refused(tmp_path, folder, precision, damage):
    DAMAGES[damage](folder / DATA)

    ways_out = (f"`dvc checkout --force {folder}`", "`dvc repro`")
    with refused(BackendError, f"{folder / DATA}: ", *ways_out):
        opened(tmp_path, precision)


def test_int8_of_a_folder_is_refused(tmp_path, folder):
    with refused(BackendError, f"{folder}: int8", "use fp32 or fp16"):
        opened(tmp_path, "int8")
