"""Somebody's classifier is the function that its file says, and its hash is of all of it."""

import argparse
import copy
import pickle
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import builders
import numpy as np
import onnx
import onnxruntime
import pytest
import safetensors.torch
import timm
import torch
from builders import exported, foreign, header, refused
from onnx import TensorProto, helper, numpy_helper
from scipy.special import expit, softmax
from timm.utils import CheckpointSaver, ModelEmaV3
from torch.optim.swa_utils import AveragedModel

from rrcm.core.errors import BackendError, CheckpointError, ConfigError
from rrcm.inference import runtime
from rrcm.inference.foreign import _combining, _onnx_file, _probes, _timm
from rrcm.inference.foreign import onnx as files
from rrcm.inference.foreign import timm as networks

RNG = np.random.default_rng(0)
X = torch.from_numpy(RNG.normal(size=(6, 3, 4, 5)).astype(np.float32))
TYPES = {
    "float32": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
    "float64": TensorProto.DOUBLE,
}


def weights(pixels: int) -> np.ndarray:
    return np.random.default_rng(1).normal(size=(pixels, 3)).astype(np.float32)


def model(
    shape=("n", 3, 4, 5),
    kind="float32",
    outputs=(("scores", ["n", 3]),),
    nodes=(),
    more=(),
    said=None,
) -> onnx.ModelProto:
    """Scores that are flat pixels times a matrix, in float32 exporters' usual form.

    The file says that its input is ``said``, and not ``shape``, where that is given.
    """
    flat = int(np.prod([side if isinstance(side, int) else 4 for side in shape[1:]]))
    w = numpy_helper.from_array(weights(flat).astype(kind), "w")
    graph = helper.make_graph(
        [
            helper.make_node("Flatten", ["x"], ["flat"]),
            helper.make_node("MatMul", ["flat", "w"], ["scores"]),
            *nodes,
        ],
        "net",
        [helper.make_tensor_value_info(name, TYPES[kind], said or shape) for name in ("x", *more)],
        [helper.make_tensor_value_info(name, TYPES[kind], sides) for name, sides in outputs],
        [w],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def backend(tmp_path: Path, made: onnx.ModelProto, **options) -> files.Backend:
    onnx.save(made, tmp_path / "net.onnx")
    return foreign("onnx", tmp_path / "net.onnx", **options)


def expected(x: torch.Tensor) -> np.ndarray:
    flat = x.flatten(1).double().numpy()
    return flat @ weights(flat.shape[1]).astype(np.float64)


# ONNX: what is computed.


@pytest.mark.parametrize(
    ("kind", "error"), [("float32", 1e-5), ("float16", 0.1), ("float64", 1e-6)]
)
def test_scores_are_those_of_the_file(tmp_path: Path, kind: str, error: float):
    found = backend(tmp_path, model(kind=kind))

    scores = found.scores(X)

    assert scores.dtype == torch.float32 and scores.shape == (6, 3)
    assert np.abs(scores.numpy() - expected(X)).max() < error
    assert (found.shape, found.fixed, found.classes) == ((3, 4, 5), 0, ["0", "1", "2"])


def test_normalisation_comes_after_the_noise(tmp_path: Path):
    """Noise is on pixels in [0, 1]; (x - mean) / std of each channel is inside."""
    mean, std = (0.1, 0.2, 0.3), (0.5, 0.25, 0.125)

    found = backend(tmp_path, model(), mean=mean, std=std)

    plain = (X - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None]
    assert np.abs(found.scores(X).numpy() - expected(plain)).max() < 1e-5
    grey = backend(tmp_path, model(), mean=(0.5,), std=(0.5,))
    assert np.abs(grey.scores(X).numpy() - expected((X - 0.5) / 0.5)).max() < 1e-5


def test_a_file_that_leaves_the_size_open_takes_the_one_that_is_given(tmp_path: Path):
    open_ = model(("n", 3, "h", "w"))
    all_open = model(("n", 3, 4, 5), said=("n", "c", "h", "w"))

    with refused(BackendError, "of any size; give the one it was trained at with --size"):
        backend(tmp_path, open_)
    found = backend(tmp_path, open_, size=(4, 4))

    assert found.shape == (3, 4, 4) and found.scores(X[..., :4]).shape == (6, 3)
    for channels in (None, 3):  # three where nobody says
        found = backend(tmp_path, all_open, size=(4, 5), channels=channels)
        assert "[N, C, H, W], and [N, H, W, C] runs, too" in found.notes[0]
        assert np.abs(found.scores(X).numpy() - expected(X)).max() < 1e-5
    with refused(BackendError, "does not run"):
        backend(tmp_path, open_, size=(5, 4))
    with refused(BackendError, "was asked for 8 x 8 with --size"):
        backend(tmp_path, model(), size=(8, 8))


RELU = helper.make_node("Relu", ["scores"], ["positive"])
TWO = model(outputs=[("scores", ["n", 3]), ("positive", ["n", 3])], nodes=[RELU])


def test_of_several_outputs_the_one_that_may_be_scores_or_the_one_that_is_named(tmp_path: Path):
    shape = helper.make_node("Identity", ["x"], ["same"])
    one = model(outputs=[("same", ["n", 3, 4, 5]), ("scores", ["n", 3])], nodes=[shape])

    assert np.abs(backend(tmp_path, one).scores(X).numpy() - expected(X)).max() < 1e-5
    with refused(BackendError, "expected one output [N, K], or its name with --output", "positive"):
        backend(tmp_path, TWO)
    for sides, axes in ((["n", 3, 1, 1], [2, 3]), (["n", 1, 3], [1])):
        made = ends_in([node("Unsqueeze", "scores", "at")], sides, at=axes)
        made.graph.output.append(one.graph.output[1])
        with refused(BackendError, "or its name with --output", f"out {sides}"):  # both may be
            backend(tmp_path, made)
    with refused(BackendError, "expected 'logits' among the outputs scores ['n', 3], positive"):
        backend(tmp_path, TWO, output="logits")
    assert backend(tmp_path, TWO, output="positive").scores(X).min() == 0


# ONNX: inputs and outputs of many kinds.


def test_bytes_are_noisy_pixels_that_are_rounded_and_cut(tmp_path: Path):
    cast = helper.make_node("Cast", ["x"], ["wide"], to=TensorProto.FLOAT)
    made = model(("n", 4, 5, 3), nodes=[cast])
    made.graph.node[0].input[0] = "wide"
    made.graph.input[0].type.tensor_type.elem_type = TensorProto.UINT8
    made.graph.node.insert(0, made.graph.node.pop())
    x = 0.5 + X / 2  # some are below 0 and some above 1

    found = backend(tmp_path, made)

    pixels = (255 * x).round().clamp(0, 255).permute(0, 2, 3, 1)
    assert (pixels == 0).any() and (pixels == 255).any()
    assert np.allclose(found.scores(x).numpy(), expected(pixels), rtol=1e-5, atol=0.01)
    assert found.precision == "fp32"
    assert backend(tmp_path, made, std=(1 / 254,)).weights != found.weights
    with refused(BackendError, "takes uint8, of 0 to 255, and pixels would be -2.12 to 2.64"):
        backend(tmp_path, made, mean=OWN_MEAN, std=OWN_STD)


@pytest.mark.parametrize("sides", [("n", 4, 5, 3), ("n", 4, 5, "c"), ("n", "h", "w", "c")])
def test_channels_may_come_last(tmp_path: Path, sides):
    """As declared, known from the open axis, or by trying: means of products along channels."""
    w = numpy_helper.from_array(weights(3), "w")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["each"]),
        helper.make_node("ReduceMean", ["each"], ["scores"], axes=[1, 2], keepdims=0),
    ]
    made = model(said=sides)
    del made.graph.node[:], made.graph.initializer[:]
    made.graph.node.extend(nodes)
    made.graph.initializer.append(w)

    found = backend(tmp_path, made, size=(4, 5), mean=(0.1, 0.2, 0.3))

    shifted = X - torch.tensor([0.1, 0.2, 0.3])[:, None, None]
    assert found.shape == (3, 4, 5) and found.last and found.fixed == 0
    assert np.abs(found.scores(X).numpy() - expected(shifted.mean((2, 3)))).max() < 1e-5


def ends_in(nodes, shape, kind=TensorProto.FLOAT, **constants) -> onnx.ModelProto:
    """The model, whose scores are given to further ``nodes``, the last of which makes ``out``."""
    made = model(nodes=nodes, outputs=[("out", shape)])
    made.graph.output[0].type.tensor_type.elem_type = kind
    made.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    for name, value in constants.items():
        made.graph.initializer.append(numpy_helper.from_array(np.array(value), name))
    return made


def node(op: str, *inputs: str, out: str = "out", **attributes) -> onnx.NodeProto:
    return helper.make_node(op, [*inputs], [out], **attributes)


FIRST = node("Gather", "scores", "first", out="one", axis=1)  # [n, 1]
ONE = {"first": np.array([0])}


def two(low, high) -> np.ndarray:
    return np.stack(np.broadcast_arrays(low, high), axis=1)


def votes(scores: np.ndarray) -> np.ndarray:
    return np.eye(3)[scores.argmax(1)]


INT64 = TensorProto.INT64
KINDS = {
    "1 x 1": (ends_in([node("Unsqueeze", "scores", "at")], ["n", 3, 1, 1], at=[2, 3]), lambda e: e),
    "softmax": (ends_in([node("Softmax", "scores")], ["n", 3]), lambda e: softmax(e, axis=1)),
    "logit": (
        ends_in([FIRST, node("Identity", "one")], ["n", 1], **ONE),
        lambda e: two(0, e[:, 0]),
    ),
    "logit of one axis": (
        ends_in([FIRST, node("Squeeze", "one", "at")], ["n"], at=[1], **ONE),
        lambda e: two(0, e[:, 0]),
    ),
    "sigmoid": (
        ends_in([FIRST, node("Sigmoid", "one")], ["n", 1], **ONE),
        lambda e: two(0.5, expit(e[:, 0])),
    ),
    "quantised sigmoid": (
        ends_in(
            [
                FIRST,
                node("Sigmoid", "one", out="p"),
                node("QuantizeLinear", "p", "step", "zero", out="q"),
                node("DequantizeLinear", "q", "step", "zero"),
            ],
            ["n", 1],
            step=np.float32(1 / 255),
            zero=np.uint8(0),
            **ONE,
        ),
        lambda e: two(0.5, np.round(255 * expit(e[:, 0])) / 255),
    ),
    "sigmoid of integers": (
        ends_in(
            [
                FIRST,
                node("QuantizeLinear", "one", "step", "middle", out="q"),
                helper.make_node(
                    "QLinearSigmoid",
                    ["q", "step", "middle", "fine", "zero"],
                    ["p"],
                    domain="com.microsoft",
                ),
                node("DequantizeLinear", "p", "fine", "zero"),
            ],
            ["n", 1],
            step=np.float32(0.1),
            fine=np.float32(1 / 255),
            middle=np.uint8(128),
            zero=np.uint8(0),
            **ONE,
        ),
        lambda e: two(0.5, np.round(255 * expit(0.1 * np.round(e[:, 0] / 0.1))) / 255),
    ),
    "argmax": (ends_in([node("ArgMax", "scores", axis=1)], ["n", 1], INT64), votes),
    "argmax of one axis": (
        ends_in([node("ArgMax", "scores", axis=1, keepdims=0)], ["n"], INT64),
        votes,
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_outputs_of_many_kinds_are_scores(tmp_path: Path, kind: str):
    made, scores = KINDS[kind]
    wanted = scores(expected(X))

    found = backend(tmp_path, made, classes=["a", "b", "c"])

    got = found.scores(X).numpy()
    assert got.shape == wanted.shape and np.abs(got - wanted).max() < 1e-4
    assert len(found.classes) == wanted.shape[1]


def test_class_numbers_are_of_known_classes_only(tmp_path: Path):
    made = ends_in([node("ArgMax", "scores", axis=1)], ["n", 1], TensorProto.INT64)

    with refused(BackendError, "net.onnx", "it gives class numbers; of how many?"):
        backend(tmp_path, made)
    with refused(BackendError, "class number 2 of 2 classes"):
        backend(tmp_path, made, classes=["a", "b"]).scores(X)


FIVE_OF_ANOTHER_OPERATOR = ends_in(
    [node("Add", "scores", "to")], ["n", 3], to=np.zeros((5, 3), np.float32)
)


@pytest.mark.parametrize(
    ("made", "fixed"),
    [
        (model((2, 3, 4, 5), outputs=[("scores", [2, 3])]), 2),
        (ends_in([node("Reshape", "scores", "to")], [1, 3], to=[1, 3]), 1),
        (ends_in([node("Reshape", "scores", "to")], [3], to=[3]), 1),
        (ends_in([node("Reshape", "scores", "to")], [5, 3], to=[5, 3]), 5),
        (FIVE_OF_ANOTHER_OPERATOR, 5),
    ],
    ids=["declared", "by a reshape", "to one axis", "of five", "of five, by another operator"],
)
def test_a_fixed_batch_is_the_only_one(tmp_path: Path, made, fixed):
    if made is FIVE_OF_ANOTHER_OPERATOR:
        with refused(BackendError, "batches of 2, 1 were tried", "give that by --batch-size"):
            backend(tmp_path, made)
    found = backend(tmp_path, made, batch=5)

    assert (found.fixed, len(found.classes)) == (fixed, 3)
    assert np.abs(found.scores(X[:fixed]).numpy() - expected(X[:fixed])).max() < 1e-5
    with refused(BackendError, "batch_size: ", f"takes batches of {fixed} pictures, got 3"):
        found.scores(X[:3])


def whole(*nodes, **constants) -> onnx.ModelProto:
    return ends_in(nodes, ["n", 3], **constants)


def inner(name: str, *nodes: onnx.NodeProto, passed: tuple[str, ...] = ()) -> onnx.GraphProto:
    """A branch, or the body of a loop that passes a tensor on."""
    values = [
        helper.make_tensor_value_info("round", INT64, []),
        helper.make_tensor_value_info("go", TensorProto.BOOL, []),
        helper.make_tensor_value_info("passed", TensorProto.FLOAT, ["n", 3]),
    ]
    out = helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 3])
    return helper.make_graph(
        nodes, name, values if passed else [], [*values[1:2], out][-1 - bool(passed) :]
    )


BRANCHES = {
    f"{which}_branch": inner(which, node("Identity", "scores", out=which))
    for which in ("then", "else")
}
BRIGHT = node("ReduceMax", "x", out="most", keepdims=0)
SIDES = node("Shape", "x", out="sides")
MANY = node("ReduceMax", "sides", out="many", keepdims=0)
BODY = inner(
    "on",
    node("ReduceMax", "passed", out="top", keepdims=0),
    node("Mul", "passed", "top", out="on"),
    passed=("passed",),
)


BATCHES = {
    "a number": (whole(BRIGHT, node("Mul", "scores", "most")), "ReduceMax"),
    "one of each channel": (
        whole(
            node("ReduceMax", "x", out="each", axes=[0, 2, 3]),
            node("Flatten", "each", out="flat3"),
            node("Mul", "scores", "flat3"),
        ),
        "ReduceMax",
    ),
    "a branch by the size": (
        whole(SIDES, MANY, node("Cast", "many", out="any", to=9), node("If", "any", **BRANCHES)),
        "",
    ),
    "a branch by the pictures": (
        whole(node("Cast", "scores", out="any", to=9), node("If", "any", **BRANCHES)),
        "If",
    ),
    "in a loop": (whole(node("Loop", "twice", "", "scores", body=BODY), twice=2), "ReduceMax"),
    "one of each picture": (
        whole(node("ReduceMax", "scores", out="each", axes=[1]), node("Sub", "scores", "each")),
        "",
    ),
}


@pytest.mark.parametrize("case", BATCHES)
def test_what_a_file_makes_of_a_whole_batch_is_found(case):
    made, place = BATCHES[case]

    assert _onnx_file.combines(made, "x", batch=0) == place


def test_of_one_picture_at_a_time_nothing_is_made_of_others(tmp_path: Path):
    made, _ = BATCHES["a number"]
    assert backend(tmp_path, made).combines == "ReduceMax"
    found = backend(tmp_path, made, batch=1)

    assert (found.fixed, found.combines) == (1, "")


LAST = torch.nn.Linear(192, 10).eval()


def loop(x):
    return torch.cat([LAST(x[i : i + 1].flatten(1)) * (x[i].mean() > 0.5) for i in range(len(x))])


def experts(x):
    """Of which each gets the pictures that are its own; some get one."""
    own, out = x.flatten(1).argmax(1) % 4, x.new_zeros(len(x), 10)
    for expert in range(4):
        rows = torch.where(own == expert)[0]
        out[rows] = LAST(x[rows].flatten(1)) * expert
    return out


def optimised(function: torch.nn.Module) -> torch.jit.ScriptModule:
    """With tensors of MKL-DNN, whose convolutions are not seen."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that this is to go
        return torch.jit.optimize_for_inference(torch.jit.script(function.eval()))


class Dimmed(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolved = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU())

    def forward(self, x):
        x = self.convolved(x)
        return torch.where(x.amax() > 9, 0.5 * x, x).flatten(1)


def canvas(x):
    """The pictures are written into a part of a larger tensor."""
    wide = torch.zeros(len(x), 3, 12, 12)
    wide[:, :, 2:-2, 2:-2] = x
    return LAST(x.flatten(1)) * (2 if wide.amax() > 9 else 1)


@pytest.mark.parametrize(
    ("function", "place"),
    [
        (lambda x: LAST(x.flatten(1)), ""),
        (lambda x: LAST(x.flatten(1)) + x.new_zeros(1) + torch.tensor(2.0).type_as(x), ""),
        (lambda x: torch.stack([LAST(one.flatten()) * one.std() for one in x.unbind()]), ""),
        (lambda x: torch.vmap(lambda one: LAST(one.flatten()) * one.amax())(x), ""),
        (lambda x: torch.cat([LAST(part.flatten(1)) for part in x.split(4)]), ""),
        (loop, ""),
        (experts, ""),
        (canvas, "amax"),
        (optimised(Dimmed().convolved), ""),
        (optimised(Dimmed()), "amax"),
        (lambda x: LAST((x / x.amax((0, 2, 3), keepdim=True)).flatten(1)), "amax"),
        (lambda x: LAST(x.flatten(1)) * bool((x > 9).any()), "any"),
        (lambda x: LAST(x.flatten(1)) * (2 if torch.equal(x, x + 1) else 1), "equal"),
        (lambda x: torch.cat([LAST(part.flatten(1)) * part.max() for part in x.split(4)]), "max"),
        (lambda x: LAST(x.flatten(1)) * (x[0] - x[1]).sum(), "sum"),
    ],
)
def test_what_a_network_makes_of_a_whole_batch_is_found(function, place):
    x = torch.rand(13, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode(), _combining.Combined(x) as combined:
        function(x)

    assert combined.place.rpartition(" ")[2] == place


def test_the_precision_is_the_lowest_of_its_tensors(tmp_path: Path):
    """Not that of a file of float32 inputs and outputs whose weights are bytes."""
    found = {kind: backend(tmp_path, model(kind=kind)).precision for kind in TYPES}
    assert found == {"float32": "fp32", "float16": "fp16", "float64": "fp64"}
    made = model()
    made.graph.initializer[0].name = "wide"
    made.graph.initializer[0].CopyFrom(
        numpy_helper.from_array(np.ones((60, 3), dtype=np.int8), "bytes")
    )
    made.graph.initializer.append(numpy_helper.from_array(np.float32(0.1), "scale"))
    made.graph.node.insert(0, node("DequantizeLinear", "bytes", "scale", out="w"))

    assert backend(tmp_path, made).precision == "int8"


# ONNX: what it is called.


def test_the_hash_is_of_all_that_is_computed(tmp_path: Path):
    other = model()
    other.graph.initializer[0].CopyFrom(numpy_helper.from_array(weights(60) + 1e-6, "w"))

    made = [
        backend(tmp_path, model()),
        backend(tmp_path, other),
        backend(tmp_path, model(), mean=(0.5,)),
        backend(tmp_path, model(), std=(0.5,)),
        backend(tmp_path, TWO, output="scores"),
        backend(tmp_path, TWO, output="positive"),
    ]

    assert len({one.weights for one in made}) == len(made)
    assert backend(tmp_path, model(), mean=(0.0, 0.0, 0.0)).weights == made[0].weights


def test_what_computes_a_function_is_named_and_votes_of_two_are_not_merged(
    tmp_path: Path, monkeypatch
):
    """Its version and instructions: bytes saturate differently on AVX2 and VNNI."""
    has = {"avx2": True, "avx512vnni": True, "sse": True}
    monkeypatch.setattr(runtime.binding, "get_host_cpu_features", lambda: has)
    monkeypatch.setattr(runtime.platform, "machine", lambda: "x86_64")
    linear = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(60, 3)).eval()

    def found() -> list[str]:
        network = foreign("module", linear, channels=3, size=(4, 5))
        return [backend(tmp_path, model()).provider, network.provider]

    vnni = found()
    has["avx512vnni"] = False
    avx2 = found()

    version, ending = onnxruntime.__version__, "x86_64+avx2"
    assert avx2[0] == f"CPUExecutionProvider {version}, {ending}"
    assert avx2[1].startswith(f"torch-cpu {torch.__version__} ") and avx2[1].endswith(ending)
    assert vnni == [f"{one}+avx512vnni" for one in avx2]
    share, other = (header(provider=found[0]) for found in (vnni, avx2))
    assert share.differing(other) == ["provider"]


def test_a_copy_opens_the_file_again_unless_it_has_changed(tmp_path: Path):
    found = backend(tmp_path, model(), mean=(0.5,))
    found.classes = ["ant", "bee", "cat"]
    saved = pickle.dumps(found)

    for copied in (copy.deepcopy(found), pickle.loads(saved)):
        assert copied.session is not found.session
        assert (copied.classes, copied.weights) == (found.classes, found.weights)
        assert torch.equal(copied.scores(X), found.scores(X))
    ours = builders.opened(exported(), "a-run")
    assert pickle.loads(pickle.dumps(ours)).weights == ours.weights
    onnx.save(model(shape=("n", 1, 6, 10)), tmp_path / "net.onnx")
    with refused(BackendError, "net.onnx: is another file than when it was opened"):
        pickle.loads(saved)


@pytest.mark.parametrize("largest", [2 * 10**9, 300])
def test_weights_beside_the_file_are_a_part_of_it(tmp_path: Path, monkeypatch, largest: int):
    """Found, and in the hash, also where no message holds them; elsewhere they are refused.

    Both files are links, as in the cache of Hugging Face, or lie in one folder.
    """
    cache, inside = tmp_path / "cache", backend(tmp_path, model())
    for folder in ("blobs", "snapshots/1f/onnx"):
        (cache / folder).mkdir(parents=True)
    save = {"save_as_external_data": True, "location": "net.onnx_data", "size_threshold": 0}
    onnx.save(model(), cache / "net.onnx", **save)
    for name, blob in (("net.onnx", "a1"), ("net.onnx_data", "b2")):
        (cache / name).rename(cache / "blobs" / blob)
        (cache / "snapshots/1f/onnx" / name).symlink_to(f"../../../blobs/{blob}")
    linked, path = cache / "snapshots/1f/onnx/net.onnx", tmp_path / "copies/net.onnx"
    shutil.copytree(linked.parent, path.parent)
    monkeypatch.setattr(_onnx_file, "LARGEST", largest)

    links, apart = (foreign("onnx", one) for one in (linked, path))

    assert torch.equal(apart.scores(X), inside.scores(X))
    assert torch.equal(links.scores(X), inside.scores(X)) and links.weights == apart.weights
    weights, secret = path.with_name("net.onnx_data"), tmp_path / "secret"
    data = weights.read_bytes()
    weights.write_bytes(data[:-1] + b"\x01")
    assert foreign("onnx", path).weights != apart.weights
    weights.write_bytes(data[:-1])
    with refused(BackendError, f"{path}: no ONNX file that can run"):
        foreign("onnx", path)
    weights.unlink()
    with refused(BackendError, f"{path}: "):
        foreign("onnx", path)
    with refused(BackendError, f"{path.parent}: a folder; name the .onnx file in it"):
        foreign("onnx", path.parent)
    secret.write_bytes(data)
    (path.parent / "link").symlink_to(secret)
    sent = onnx.load(path, load_external_data=False)
    for location in (str(secret), "../secret", "link"):
        sent.graph.initializer[0].external_data[0].value = location
        path.write_bytes(sent.SerializeToString())
        with refused(BackendError, f"its weights {location} lie", "outside of its folder"):
            foreign("onnx", path)


def test_a_file_of_our_export_is_told_the_noise_and_says_what_the_run_says():
    path, sigma = exported() / "onnx/a-run.onnx", 0.25
    run = builders.opened(exported(), "a-run", sigma=sigma)
    found = foreign("onnx", path, sigma=sigma)
    x = 0.5 + sigma * torch.randn(7, *found.shape)

    assert torch.equal(found.scores(x), run.scores(x))
    assert found.weights != foreign("onnx", path, sigma=2 * sigma).weights


# ONNX: what is refused.


def test_files_that_are_no_classifiers_of_pictures_are_refused(tmp_path: Path):
    with refused(BackendError, "no.onnx: not found"):
        foreign("onnx", tmp_path / "no.onnx")
    with refused(BackendError, "expected one input, a picture, got x, y"):
        backend(tmp_path, model(more=("y",)))
    with refused(BackendError, "input x is tensor(float) ['n', 60], not a batch of pictures"):
        backend(tmp_path, model(("n", 60)))
    erf = helper.make_node("Erf", ["scores"], ["out"])  # one of those that there are not
    with refused(BackendError, "few operators in float64: export the network in float32"):
        backend(tmp_path, model(kind="float64", nodes=[erf], outputs=[("out", ["n", 3])]))
    text = tmp_path / "text.onnx"
    text.write_text("no network")
    with refused(BackendError, f"{text}: no ONNX file that can run"):
        foreign("onnx", text)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mean": (123.675, 116.28, 103.53)}, "give 0.485,0.456,0.406"),
        ({"std": (4.367, 4.464, 4.444)}, "4.367,4.464,4.444 is 1 / std: give 0.229,0.224,0.225"),
        ({"mean": (0.5, 0.5)}, "mean: 3 values, or one for all channels; got 0.5,0.5"),
        ({"std": (0.5, 0.0, 0.5)}, "std: must be finite, and std positive"),
    ],
)
def test_normalisation_in_other_units_is_refused(tmp_path: Path, options, words):
    with refused(ConfigError, words):
        backend(tmp_path, model(), **options)


def with_metadata(**said: str) -> onnx.ModelProto:
    made = model()
    helper.set_model_props(made, {f"Image.{name}": value for name, value in said.items()})
    return made


def test_pixels_are_of_the_range_that_the_metadata_of_onnx_say(tmp_path: Path):
    """By onnx.ai, MetadataProps; what is given goes before what the file says."""
    for said, low, high in (
        ("NominalRange_0_255", 0, 255),
        ("nominalrange_16_235", 16, 235),
        ("Normalized_1_1", -1, 1),
        ("Normalized_0_1", 0, 1),
    ):
        found = backend(tmp_path, with_metadata(NominalPixelRange=said, BitmapPixelFormat="Rgb8"))

        ends = found.normalise(torch.tensor([0.0, 1.0]).expand(1, 3, 1, 2)).unique()
        assert torch.allclose(ends, torch.tensor([low, high]).float(), atol=1e-4)
        assert said.lower() in found.notes[0]
    given = backend(tmp_path, with_metadata(NominalPixelRange="NominalRange_0_255"), std=(0.5,))
    assert str(given.normalise).endswith("std 0.5,0.5,0.5") and given.notes == ()
    with refused(BackendError, "its metadata name the unknown range '0_100' of pixels"):
        backend(tmp_path, with_metadata(NominalPixelRange="0_100"))
    with refused(BackendError, "its metadata say that blue comes first"):
        backend(tmp_path, with_metadata(BitmapPixelFormat="Bgr8"))


FUZZ = """
import sys
from pathlib import Path
from rrcm.config.foreign import Foreign
from rrcm.core.errors import BackendError
from rrcm.inference.foreign import onnx
for path in map(Path, sys.argv[1:]):
    try:
        onnx.Backend(Foreign(kind="onnx", source=path, sigma=0.5))
    except BackendError as error:
        assert "\\n" not in str(error) and str(path) in str(error), error
    print(path.name, flush=True)
"""


def test_damaged_files_are_an_error_in_one_line(tmp_path: Path):
    """In another process, which a crash of the runtime would end."""
    content, rng = model().SerializeToString(), np.random.default_rng(0)
    for number in range(60):
        damaged = bytearray(content)
        for _ in range(rng.integers(1, 4)):
            damaged[rng.integers(len(damaged))] = rng.integers(256)
        cut = damaged if number % 3 else damaged[: rng.integers(len(damaged))]
        (tmp_path / f"{number}.onnx").write_bytes(cut)
    paths = sorted(tmp_path.glob("*.onnx"))

    process = subprocess.run(
        [sys.executable, "-c", FUZZ, *map(str, paths)], capture_output=True, text=True
    )

    done = process.stdout.split()
    assert process.returncode == 0, f"after {done[-1:]}: {process.stderr[-500:]}"
    assert len(done) == len(paths)


# timm.

SMALL = "resnet10t"
OWN_MEAN, OWN_STD = timm.data.IMAGENET_DEFAULT_MEAN, timm.data.IMAGENET_DEFAULT_STD


@pytest.fixture(scope="module")
def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return timm.create_model(SMALL, num_classes=4).eval()


@pytest.fixture(scope="module")
def saved(network, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "net.safetensors"
    safetensors.torch.save_file(network.state_dict(), path)
    return path


PIXELS = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def opened(weights: Path, name: str = SMALL, **options) -> networks.Backend:
    """A network of timm for pictures of 32 x 32 pixels."""
    return foreign("timm", name, weights=weights, **{"size": (32, 32)} | options)


@pytest.fixture(scope="module")
def plain(saved: Path) -> networks.Backend:
    return opened(saved)


def test_a_network_of_timm_is_normalised_as_it_was_trained(network, plain: networks.Backend):
    """Golden: the mean and std of ImageNet, which timm's recipe of this network names."""
    mean = torch.tensor([0.485, 0.456, 0.406])[:, None, None]
    std = torch.tensor([0.229, 0.224, 0.225])[:, None, None]

    with torch.inference_mode():
        expected = network((PIXELS - mean) / std)
    assert torch.allclose(plain.scores(PIXELS), expected, atol=1e-5)
    assert plain.classes == ["0", "1", "2", "3"] and plain.shape == (3, 32, 32)
    assert (plain.fit.ratio, plain.fit.interpolation) == (0.875, "bicubic")


@pytest.mark.parametrize(
    ("prefix", "keys"),
    [
        ("module.", ("state_dict",)),
        ("_orig_mod.module.", ()),
        ("", ("best", "state_dict")),
        ("", ("model_state_dict",)),
        ("", ("net",)),
    ],
)
def test_weights_are_found_as_training_programs_keep_them(network, plain, tmp_path, prefix, keys):
    """Under their prefixes and keys, beside numbers of NumPy."""
    held: dict = {f"{prefix}{key}": tensor for key, tensor in network.state_dict().items()}
    for key in reversed(keys):
        held = {"acc": np.float32(0.5), "epoch": np.int64(3), key: held}
    torch.save(held, tmp_path / "net.pt")

    found = opened(tmp_path / "net.pt")

    assert found.weights == plain.weights and found.notes == ()


def test_another_tensor_or_normalisation_is_another_function(network, saved, plain, tmp_path):
    state = network.state_dict()
    torch.save(state | {"fc.bias": state["fc.bias"] + 1e-6}, tmp_path / "net.pt")

    made = (plain, opened(tmp_path / "net.pt"), opened(saved, std=(0.5,)))

    assert len({one.weights for one in made}) == 3


def trained(network, folder: Path) -> dict[str, Path]:
    """Files as timm's trainer and torchvision's reference write them, of two networks each."""
    optimizer = torch.optim.AdamW(network.parameters())
    network(PIXELS).sum().backward()
    optimizer.step()
    args = argparse.Namespace(model=SMALL, lr=0.1, betas=(0.9, 0.99))
    kept = {"args": args, "optimizer": optimizer.state_dict()}
    average = AveragedModel(network)
    for ema in (average.module, timm_ema := ModelEmaV3(network)):
        with torch.no_grad():
            for parameter in ema.parameters():
                parameter.mul_(1.5)
    for model_ema, name in ((timm_ema, "ema"), (None, "plain")):
        (folder / name).mkdir()
        saver = CheckpointSaver(
            network, optimizer, args=args, model_ema=model_ema, checkpoint_dir=str(folder / name)
        )
        saver.save_checkpoint(0, metric=0.5)
    kept["lr_scheduler"] = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 5).state_dict()
    torch.save(kept | {"model": network.state_dict(), "epoch": 1}, folder / "model.pth")
    both = kept | {"model": network.state_dict(), "model_ema": average.state_dict()}
    torch.save(both, folder / "both.pth")
    return {
        "state_dict_ema": folder / "ema/last.pth.tar",
        "state_dict": folder / "plain/last.pth.tar",
        "model": folder / "model.pth",
        "model_ema": folder / "both.pth",
    }


@pytest.mark.usefixtures("unforked")
def test_of_several_networks_in_a_file_that_of_timms_own_loader_is_taken(tmp_path: Path):
    made = timm.create_model(SMALL, num_classes=4).train()
    for key, path in trained(made, tmp_path).items():
        wanted = timm.models.load_state_dict(str(path))
        wanted.pop("n_averaged", None)  # no tensor of the network

        found = opened(path)

        state = found.network.state_dict()
        assert state.keys() == wanted.keys()
        assert all(torch.equal(state[name], wanted[name]) for name in wanted)
        other = key.removesuffix("_ema")
        several = f"{path}: {key} was taken, as by timm's loader, and not {other}"
        assert [note.partition(";")[0] for note in found.notes] == [several] * (key != other)


@pytest.mark.usefixtures("unforked")
def test_a_network_is_what_timms_trainer_says(tmp_path: Path):
    """As it says in the file, its pooling, normalisation and size; another network is refused."""
    own = timm.create_model(SMALL, num_classes=4, global_pool="max").eval()
    said = {"model": f"{SMALL}.c3_in1k", "gp": "max", "mean": [0.5, 0.4, 0.3], "std": [0.5]}
    said |= {"img_size": 32, "crop_pct": 0.9, "interpolation": "bilinear", "bn_eps": None}
    path = tmp_path / "net.pt"

    def file(**more) -> Path:
        args = argparse.Namespace(**said | {"input_size": None, "model_kwargs": {}} | more)
        torch.save({"arch": args.model, "args": args, "state_dict": own.state_dict()}, path)
        return path

    found = foreign("timm", SMALL, weights=file())
    other = foreign("timm", SMALL, weights=path, std=(1.0,), size=(64, 64))

    with torch.inference_mode():
        plain = own((PIXELS - torch.tensor(said["mean"])[:, None, None]) / 0.5)
    assert torch.allclose(found.scores(PIXELS), plain, atol=1e-5)
    assert found.shape == (3, 32, 32) and found.notes == ()
    assert (found.fit.ratio, found.fit.interpolation, found.natural) == (0.9, "bilinear", True)
    assert [note.partition(": ")[2] for note in other.notes] == [
        "trained with std (0.5,), and not (1.0,)",
        "trained with size (32, 32), and not (64, 64)",
    ]
    same = foreign("timm", SMALL, weights=path, std=(0.5, 0.5, 0.5))
    assert same.notes == ()  # one value is that of all channels
    mapped = foreign("timm", SMALL, weights=file(class_map="map.txt"))
    assert "its classes are in the order of 'map.txt'; name them so" in mapped.notes[0]
    for data, natural, noted in (
        ("", True, []),
        ("torch/folder", False, []),
        ("hfds/me/mine", False, ["its classes are in the order of 'hfds/me/mine'; name them so"]),
    ):
        of = foreign("timm", SMALL, weights=file(dataset=data))
        assert of.natural == natural and len(of.notes) == len(noted)
        assert all(words in note for words, note in zip(noted, of.notes, strict=True))
    with refused(BackendError, f"{path}: the weights of resnet10t.c3_in1k, not of resnet14t"):
        foreign("timm", "resnet14t", weights=path)
    with refused(BackendError, f"{path}: its network has the model_kwargs {{'stem_width': 32}}"):
        foreign("timm", SMALL, weights=file(model_kwargs={"stem_width": 32}))
    with refused(BackendError, "timm cannot make resnet10t", "Invalid pool type: odd"):
        foreign("timm", SMALL, weights=file(gp="odd"))
    with refused(ConfigError, f"{path}: mean: expected a list of numbers, got 'x'"):
        foreign("timm", SMALL, weights=file(mean="x"))


@pytest.mark.usefixtures("unforked")
def test_a_file_that_normalises_is_not_normalised_by_timm_as_well(network, tmp_path: Path):
    """By its own buffers, or options; by a layer that shows nothing, it is asked for."""
    path, plain = tmp_path / "net.pt", network.state_dict()
    mean, std = torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0.5, 0.4, 0.3])
    behind = {f"1.{name}": tensor for name, tensor in plain.items()}
    with torch.inference_mode():
        wanted = network((PIXELS - mean[:, None, None]) / std[:, None, None])
    listed = {"arch": SMALL, "mean": mean.tolist(), "std": std.tolist(), "state_dict": plain}
    for held in ({"0.mean": mean, "0.std": std} | behind, listed):
        torch.save(held, path)

        assert torch.allclose(opened(path).scores(PIXELS), wanted, atol=1e-5)
        assert opened(path, mean=(0.1, 0.2, 0.3), std=(0.5, 0.4, 0.3)).notes == ()
        (note,) = opened(path, mean=(0.0,), std=(1.0,)).notes[:1]
        assert "trained with mean (0.1" in note
    torch.save(behind, path)
    with refused(ConfigError, f"{path}: a layer before the network normalises", "--mean and --std"):
        opened(path)
    given = opened(path, mean=(0.1, 0.2, 0.3), std=(0.5, 0.4, 0.3))
    assert torch.allclose(given.scores(PIXELS), wanted, atol=1e-5)


@pytest.mark.usefixtures("unforked")
def test_a_tag_that_was_given_decides_how_pictures_are_prepared(tmp_path: Path):
    """Golden: timm's own for resnet18, bicubic at .95 by default and bilinear at .875 of tv."""
    state = timm.create_model("resnet18", num_classes=4).state_dict()
    torch.save({"arch": "resnet18", "state_dict": state}, tmp_path / "net.pth")

    found = [
        foreign("timm", name, weights=tmp_path / "net.pth").fit
        for name in ("resnet18", "resnet18.tv_in1k")
    ]

    assert [(fit.ratio, fit.interpolation) for fit in found] == [
        (0.95, "bicubic"),
        (0.875, "bilinear"),
    ]


@pytest.mark.usefixtures("unforked")
def test_an_option_of_older_trainers_is_the_epsilon_of_tensorflow(tmp_path: Path):
    name = "test_efficientnet"
    args = argparse.Namespace(model=name, gp=None, bn_tf=True)
    state = timm.create_model(name, num_classes=4).state_dict()
    torch.save({"arch": name, "args": args, "state_dict": state}, tmp_path / "net.pt")

    found = foreign("timm", name, weights=tmp_path / "net.pt").network

    assert {m.eps for m in found.modules() if isinstance(m, torch.nn.BatchNorm2d)} == {1e-3}


@pytest.mark.usefixtures("unforked")
def test_a_network_of_timm_has_the_channels_of_its_weights(tmp_path: Path):
    own = timm.create_model(SMALL, num_classes=4, in_chans=1).eval()
    torch.save(own.state_dict(), tmp_path / "net.pt")

    found = opened(tmp_path / "net.pt", mean=(0.0,), std=(1.0,))

    assert found.shape == (1, 32, 32) and not found.natural
    grey = opened(tmp_path / "net.pt")
    assert str(grey.normalise) == f"mean {np.mean(OWN_MEAN):g}, std {np.mean(OWN_STD):g}"
    with torch.inference_mode():
        assert torch.allclose(found.scores(PIXELS[:, :1]), own(PIXELS[:, :1]), atol=1e-5)


@pytest.mark.usefixtures("unforked")
def test_a_network_of_timm_has_as_many_classes_as_each_of_its_heads(tmp_path: Path):
    name = "deit_tiny_distilled_patch16_224"
    own = timm.create_model(name, num_classes=7, img_size=32).eval()
    torch.save(own.state_dict(), tmp_path / "net.pt")

    found = opened(tmp_path / "net.pt", name)

    assert len(found.classes) == 7


@pytest.mark.parametrize(
    ("mode", "share", "rule", "said"),
    [
        ("center", 0.9, "crop", []),
        ("squash", 1.0, "squash", []),
        ("squash", 0.95, "squash", ["crop_mode squash at crop_pct 0.95, which --resize does not"]),
        ("border", 1.0, "crop", ["crop_mode border at crop_pct 1.0, which --resize does not"]),
    ],
)
def test_pictures_are_resized_as_timm_resizes_them_or_it_is_said(
    network, saved, monkeypatch, mode, share, rule, said
):
    original = _timm._build

    def build(*arguments):
        made = original(*arguments)
        made.pretrained_cfg = made.pretrained_cfg | {"crop_mode": mode, "crop_pct": share}
        return made

    monkeypatch.setattr(_timm, "_build", build)
    found = opened(saved)

    assert found.fit.resize == rule and len(found.notes) == len(said)
    assert all(words in note for words, note in zip(said, found.notes, strict=True))


def test_what_is_missing_is_said(saved: Path, tmp_path: Path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    (tmp_path / "text.pt").write_text("no weights")
    (tmp_path / "text.safetensors").write_text("no weights")
    torch.save({"epoch": 3}, tmp_path / "none.pt")

    with refused(BackendError, "timm has no 'resnet10x'. Did you mean 'resnet10t'?"):
        foreign("timm", "resnet10x")
    with refused(BackendError, "timm cannot make resnet10t", "give a file with --weights"):
        foreign("timm", SMALL)
    with refused(BackendError, "net.safetensors: not the weights of resnet18"):
        foreign("timm", "resnet18", weights=saved)
    for name, words in [
        ("no.pt", "not found"),
        ("no.safetensors", "not found"),
        ("text.pt", "no PyTorch file, or damaged"),
        ("text.safetensors", "damaged"),
        ("none.pt", "expected a state dict, a mapping of names to tensors"),
    ]:
        with refused(CheckpointError, name, words):
            foreign("timm", SMALL, weights=tmp_path / name)


def test_a_copy_of_this_process_waits_for_no_threads_and_draws_other_numbers():
    def drawn() -> torch.Tensor:
        return torch.rand(2**20).sin()  # on several threads, where there are some

    torch.set_num_threads(2)
    drawn()
    state = torch.get_rng_state()

    one, other = (_probes.forked(drawn, device=torch.device("cpu"), seed=seed) for seed in (0, 1))
    torch.set_num_threads(1)

    assert one is not None and other is not None and not torch.equal(one, other)
    assert torch.equal(torch.get_rng_state(), state)
