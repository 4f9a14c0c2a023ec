"""What no file holds is exported as a folder: the same function, whole or refused."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from builders import SIGMA, export_classifier, exported, refused
from onnx import TensorProto, helper, numpy_helper

from rrcm.core import registry
from rrcm.core.errors import BackendError
from rrcm.core.files import sha256
from rrcm.inference import export
from rrcm.inference.backends import onnx as backends
from rrcm.inference.backends.onnx import DATA, GRAPH, SMALL, unload

RUN = "a-run"
X = torch.rand(7, 1, 8, 8, generator=torch.Generator().manual_seed(0))
Z = torch.rand(7, 1, 1, 8, 8, generator=torch.Generator().manual_seed(1))


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


def test_nothing_is_at_its_place_before_it_is_whole_and_proved(tmp_path, few, monkeypatch):
    """A crash leaves what was there before, or what has a name that nobody asks for."""
    path, seen, prove = tmp_path / f"onnx/{RUN}.onnx", [], export.parity

    def watched(graph, *rest):
        assert sorted(here(graph.parent)) == [GRAPH, DATA]
        seen.append(path.exists())
        return prove(graph, *rest)

    monkeypatch.setattr(export, "parity", watched)

    write(tmp_path)

    assert seen == [False]
    assert [place.name for place in path.parent.iterdir()] == [path.name]


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


def test_a_folder_without_its_graph_is_refused(tmp_path, folder):
    (folder / GRAPH).write_bytes((folder / GRAPH).read_bytes()[:1000])
    with refused(BackendError, str(folder)):
        opened(tmp_path)
    (folder / GRAPH).unlink()
    with refused(BackendError, f"{folder / GRAPH}: not found"):
        opened(tmp_path)


def test_int8_of_a_folder_is_refused(tmp_path, folder):
    with refused(BackendError, f"{folder}: int8", "use fp32 or fp16"):
        opened(tmp_path, "int8")


def several(kind: str) -> onnx.ModelProto:
    """An ensemble of two linear members, or a random classifier of two calls, with all outputs."""
    rng = np.random.default_rng(0)
    weights = [rng.normal(size=(64, 10)).astype(np.float32) for _ in range(2)]
    parts = ["member_1", "member_2"] if kind == "ensemble" else ["call_1", "call_2"]
    floats = TensorProto.FLOAT
    pixels = {"x": ["batch", 1, 8, 8], "sigma": []}
    nodes = [helper.make_node("Mul", ["x", "sigma"], ["seen"])]
    if kind == "random":
        pixels["z"] = ["batch", 1, 1, 8, 8]
        nodes.append(helper.make_node("Flatten", ["z"], ["noise"]))
    nodes.append(helper.make_node("Flatten", ["seen"], ["flat"]))
    if kind == "random":
        nodes.append(helper.make_node("Add", ["flat", "noise"], ["sum"]))
    source = "sum" if kind == "random" else "flat"
    for part, name in zip(parts, "ab", strict=True):
        nodes.append(helper.make_node("MatMul", [source, name], [part]))
    nodes.append(helper.make_node("Add", parts, ["scores"]))
    outputs = {"scores": ["batch", 10], **{part: ["batch", 10] for part in parts}}
    if kind == "ensemble":  # an output that only this constant makes
        nodes.append(helper.make_node("MatMul", ["flat", "only"], ["member_3"]))
        outputs["member_3"] = ["batch", 10]
        weights.append(rng.normal(size=(64, 10)).astype(np.float32))
    names = ["a", "b", "only"][: len(weights)]
    constants = [numpy_helper.from_array(w, name) for w, name in zip(weights, names, strict=True)]
    graph = helper.make_graph(
        nodes,
        "several",
        [helper.make_tensor_value_info(name, floats, shape) for name, shape in pixels.items()],
        [helper.make_tensor_value_info(name, floats, shape) for name, shape in outputs.items()],
        constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


@pytest.mark.parametrize("kind", ["ensemble", "random"])
def test_outputs_are_cut_out_of_a_folder_as_of_a_file(tmp_path, kind):
    """And what only others need is left behind."""
    about = {"run": RUN, "weights": "0" * 64, "classes": json.dumps([str(k) for k in range(10)])}
    if kind == "ensemble":
        about["ensemble"] = json.dumps({"members": 2})
    model, path = several(kind), tmp_path / f"file/onnx/{RUN}.onnx"
    helper.set_model_props(model, about)
    path.parent.mkdir(parents=True)
    backends.write(model, path)
    folder = tmp_path / f"folder/onnx/{RUN}.onnx"
    folder.mkdir(parents=True)
    unload(model, folder / DATA)
    helper.set_model_props(model, about | {DATA: sha256(folder / DATA)})
    backends.write(model, folder / GRAPH)
    given = (X, Z) if kind == "random" else (X,)

    for precision in ("fp32", "fp16"):
        both = [opened(tmp_path / form, precision) for form in ("file", "folder")]
        scores = [backend.scores(*given) for backend in both]
        assert torch.equal(*scores)
        assert scores[0].std() > 0.1
        assert both[0].normals == both[1].normals == ((1, 1, 8, 8) if kind == "random" else ())
