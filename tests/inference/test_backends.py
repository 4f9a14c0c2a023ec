"""Backends run what was trained, in a precision that they say, one image at a time."""

import functools
import json
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import onnx
import pytest
import torch
from builders import SIGMA, exported, opened, refused, split
from workspace import ROOT

from rrcm.core import registry
from rrcm.core.errors import BackendError
from rrcm.core.files import sha256
from rrcm.data.datasets import digits
from rrcm.inference import runtime
from rrcm.inference.backends.onnx import DIGEST, write
from rrcm.models.trained.base import classifier
from rrcm.noise import streams

FUNCTIONS = [("onnx", "fp32"), ("onnx", "fp16"), ("onnx", "int8"), ("torch", "fp32")]
FUNCTIONS += [("torch", "bf16"), ("lanes", "fp32")]
WEIGHTS = "models/a-run/model.safetensors"


def noisy(images, sigma):
    draws = torch.zeros(images, dtype=torch.int64)
    z = streams.gaussian(0, torch.arange(images), draws, (1, 8, 8), stream=streams.VALIDATE)
    return torch.from_numpy(split(images).pixels()) + sigma * z


def images():
    return noisy(64, SIGMA)


def make(name, precision="fp32", *, root=None, calibration=images, **how):
    how |= {"kind": name, "calibration": calibration}
    return opened(root or exported(), "a-run", precision, **how)


def made(name, precision="fp32", sigma=SIGMA):
    """One for all tests that ask and change nothing; int8 and lanes take seconds."""
    return once(name, precision, sigma)


@functools.cache
def once(name, precision, sigma):
    return make(name, precision, sigma=sigma)


def trained(x, sigma=SIGMA):
    network, _ = classifier.load(exported() / "models/a-run")
    return network(x, torch.tensor(sigma))


@pytest.mark.parametrize(("name", "precision"), FUNCTIONS)
def test_a_backend_keeps_its_contract(name, precision):
    """Float32 in and out, and nothing that a batch or a caller could disturb."""
    backend = made(name, precision)
    x = noisy(7, SIGMA)
    before = x.clone()

    scores = backend.scores(x)

    assert registry.load("backends", name).__doc__
    assert backend.classes == list(digits.CLASSES)
    providers = {"onnx": "CPUExecutionProvider", "torch": "torch-cpu", "lanes": "lanes"}
    assert backend.provider.split()[0] == providers[name]
    assert (runtime.platform.machine() in backend.provider) == (precision == "int8")
    assert backend.device == scores.device == torch.device("cpu")
    assert (scores.shape, scores.dtype) == ((7, 10), torch.float32)
    assert torch.equal(x, before)
    assert torch.equal(scores, backend.scores(x))
    assert torch.equal(scores, backend.scores(x.mT.contiguous().mT))  # whatever the strides


@pytest.mark.parametrize(("name", "precision"), FUNCTIONS)
def test_a_row_s_place_and_company_do_not_matter(name, precision):
    """At one batch shape, bit for bit: the engine mixes images as it likes."""
    images = 33
    backend, x = made(name, precision), noisy(images, SIGMA)
    order = torch.randperm(images, generator=torch.Generator().manual_seed(0))
    company = torch.cat([x[: images // 2], 100 * x[images // 2 :].flip(0)])

    scores = backend.scores(x)

    assert torch.equal(backend.scores(x[order]), scores[order])
    assert torch.equal(backend.scores(company)[: images // 2], scores[: images // 2])


@pytest.mark.parametrize(("name", "precision"), FUNCTIONS)
def test_threads_share_a_backend(name, precision):
    """Each computes on its own thread, whatever the others do."""
    backend = made(name, precision)
    batches = noisy(96, SIGMA).split(8) * 3
    expected = [backend.scores(x) for x in batches]

    def task(x):
        torch.set_num_threads(2)  # as a new thread of a machine with two cores has it
        return backend.scores(x), torch.get_num_threads()

    with ThreadPoolExecutor(4) as pool:
        results = [*pool.map(task, batches)]

    assert all(torch.equal(s, e) for (s, _), e in zip(results, expected, strict=True))
    assert name == "onnx" or {threads for _, threads in results} == {1}


@pytest.mark.parametrize(
    ("name", "images", "sigma"),
    [*((name, 100, SIGMA) for name in registry.names("backends")), ("onnx", 1, 0.1)],
)
def test_float32_is_the_trained_network(name, images, sigma):
    x = noisy(images, sigma)
    ours, theirs = made(name, sigma=sigma).scores(x), trained(x, sigma)

    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)
    assert (ours.argmax(1) == theirs.argmax(1)).all()


@pytest.mark.parametrize(
    ("name", "precision", "low", "high"),
    [("onnx", "fp16", 1e-5, 0.005), ("onnx", "int8", 1e-3, 0.05), ("torch", "bf16", 1e-3, 0.02)],
)
def test_other_precisions_are_close_but_not_the_same(name, precision, low, high):
    x = noisy(200, SIGMA)
    exact, rounded = trained(x), made(name, precision).scores(x)

    assert low < (rounded - exact).std() / exact.std() < high
    assert (exact.argmax(1) == rounded.argmax(1)).float().mean() > 0.9


@pytest.mark.parametrize(("name", "precision"), [f for f in FUNCTIONS if f[0] != "lanes"])
def test_weights_say_which_function_it_is(name, precision):
    """Those that were trained, or, of a converted model, all of it."""
    weights = made(name, precision).weights
    own = precision in ("fp16", "int8")

    assert weights == make(name, precision).weights
    assert re.fullmatch("[0-9a-f]{64}", weights)
    assert (weights == sha256(exported() / WEIGHTS)) != own
    assert (weights == make(name, precision, sigma=0.6).weights) != own


def test_what_a_backend_does_not_offer_is_refused():
    with refused(BackendError, "int8 needs images to calibrate on"):
        make("onnx", "int8", calibration=None)
    with refused(BackendError, "onnx offers fp32, fp16, int8, not bf16; torch has bf16"):
        make("onnx", "bf16")
    with refused(BackendError, "torch offers fp32 and bf16, not int8; onnx has fp16 and int8"):
        make("torch", "int8")


def test_an_exported_file_says_what_it_is():
    model = onnx.load(exported() / "onnx/a-run.onnx")
    x, sigma = model.graph.input

    *_, ending = model.metadata_props
    assert {prop.key: prop.value for prop in model.metadata_props} == {
        DIGEST: ending.value,
        "run": "a-run",
        "weights": sha256(exported() / "models/a-run/model.safetensors"),
        "classes": json.dumps(list(digits.CLASSES)),
        "sigma": str(SIGMA),
    }
    assert (x.name, sigma.name, model.graph.output[0].name) == ("x", "sigma", "scores")
    assert [d.dim_param or d.dim_value for d in x.type.tensor_type.shape.dim] == ["batch", 1, 8, 8]
    assert not sigma.type.tensor_type.shape.dim
    assert model.opset_import[0].version == 20
    onnx.checker.check_model(model, full_check=True)
    content = (exported() / "onnx/a-run.onnx").read_bytes()
    for place in [*map(str, (ROOT, Path.cwd(), exported(), sys.prefix)), "site-packages", "File "]:
        assert place.encode() not in content, "it names this machine"


def test_a_file_that_is_not_ours_is_refused(tmp_path):
    path = tmp_path / "onnx/a-run.onnx"
    path.parent.mkdir()
    model = onnx.load(exported() / "onnx/a-run.onnx")
    write(model, path, {"run": "a-run", "weights": "0", "classes": '["cat", "dog"]'})
    with refused(BackendError, str(path), "10 scores per image, but 2 classes"):
        make("onnx", root=tmp_path)
    del model.metadata_props[:]
    onnx.save(model, path)

    with refused(BackendError, str(path), "no metadata of ours", "`rrcm repro export@a-run`"):
        make("onnx", root=tmp_path)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
@pytest.mark.parametrize("name", ["onnx", "torch"])  # lanes has no use for one
def test_a_missing_gpu_is_said(name):
    with refused(BackendError, "CUDA", "`rrcm doctor`"):
        make(name, device="cuda")
