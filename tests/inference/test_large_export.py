"""What no file holds is exported as a folder: the same function, whole or refused."""

import shutil
from collections.abc import Callable
from pathlib import Path

import builders
import onnx
import pytest
import torch
from builders import export_classifier, exported, refused
from helpers import contents

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


def write(root: Path, **how) -> Path:
    """The exported classifier, in whatever form."""
    export_classifier(exported(), RUN, root / f"onnx/{RUN}.onnx", **how)
    return root / f"onnx/{RUN}.onnx"


def opened(root: Path, precision="fp32"):
    return builders.opened(root, RUN, precision, calibration=lambda: X)


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


def test_a_folder_is_the_function_of_the_file_bit_for_bit(tmp_path, folder):
    path, file = folder, exported() / f"onnx/{RUN}.onnx"
    graph = onnx.load(path / GRAPH, load_external_data=False).graph

    assert sorted(contents(path)) == [GRAPH, DATA]
    assert max(len(tensor.raw_data) for tensor in graph.initializer) <= SMALL
    assert (path / GRAPH).stat().st_size + (path / DATA).stat().st_size > file.stat().st_size
    for precision in ("fp32", "fp16"):
        apart, whole = opened(tmp_path, precision), opened(exported(), precision)
        assert torch.equal(apart.scores(X), whole.scores(X))
        assert (apart.weights == whole.weights) == (precision == "fp32")
    assert opened(tmp_path).classes == opened(exported()).classes


def test_files_may_be_links_into_a_cache_as_dvc_makes_them(tmp_path, folder):
    path, cache = folder, tmp_path / "cache"
    cache.mkdir()
    for name, as_kept in ((GRAPH, "12ab"), (DATA, "34cd")):
        (path / name).rename(cache / as_kept)
        (path / name).symlink_to(cache / as_kept)

    assert torch.equal(opened(tmp_path).scores(X), opened(exported()).scores(X))


def test_what_fits_stays_one_file_and_both_have_the_same_bytes_each_time(
    tmp_path_factory, folder, monkeypatch
):
    whole, tmp_path = exported() / f"onnx/{RUN}.onnx", tmp_path_factory.mktemp("again")
    monkeypatch.setattr(export, "LARGEST", whole.stat().st_size)
    assert sha256(write(tmp_path)) == sha256(whole)
    monkeypatch.setattr(export, "LARGEST", whole.stat().st_size // 2)

    assert contents(write(tmp_path / "folder")) == contents(folder)


@pytest.mark.parametrize("before", ["file", "folder"])
def test_a_refused_export_leaves_what_was_there(tmp_path, monkeypatch, before):
    path = tmp_path / f"onnx/{RUN}.onnx"
    if before == "folder":
        monkeypatch.setattr(export, "LARGEST", 100_000)
    write(tmp_path)
    there = contents(tmp_path)
    monkeypatch.setattr(export, "LARGEST", 100_000)

    with refused(BackendError, str(path), "ONNX Runtime differs"):
        write(tmp_path, tolerance=1e-15)

    assert contents(tmp_path) == there
    assert len([*(tmp_path / "onnx").iterdir()]) == 1


DAMAGES: list[Callable[[Path], object]] = [
    Path.unlink,
    lambda path: path.write_bytes(path.read_bytes()[:-4]),
    lambda path: path.write_bytes(path.read_bytes()[:-1] + b"\x01"),
    lambda path: (path.unlink(), path.mkdir()),
]


def test_weights_that_are_not_those_of_the_graph_are_refused(tmp_path, folder):
    """Missing, torn, with another bit, or a folder; and int8, which takes one file."""
    with refused(BackendError, f"{folder}: int8", "use fp32 or fp16"):
        opened(tmp_path, "int8")
    content = (folder / DATA).read_bytes()
    for damage in DAMAGES:
        (folder / DATA).write_bytes(content)
        damage(folder / DATA)
        with refused(BackendError, f"{folder / DATA}: ", "`rrcm repro`"):
            opened(tmp_path)
