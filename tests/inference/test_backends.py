"""Backends run what was trained, in a precision that they say, one image at a time."""

import functools
import json
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import onnx
import onnxruntime
import pytest
import torch
from builders import SIGMA, export_classifier, exported, refused, save_classifier, split
from workspace import ROOT

from rrcm.core import registry
from rrcm.core.errors import BackendError
from rrcm.core.files import sha256
from rrcm.data.datasets import digits
from rrcm.inference.backends.onnx import DIGEST, cuda_options, write
from rrcm.models.trained.base import classifier
from rrcm.noise import streams

FUNCTIONS = [("onnx", "fp32"), ("onnx", "fp16"), ("onnx", "int8"), ("torch", "fp32")]
FUNCTIONS += [("torch", "bf16"), ("lanes", "fp32")]
WEIGHTS = "models/a-run/model.safetensors"


def noisy(images, sigma):
    draws = torch.zeros(images, dtype=torch.int64)
    z = streams.gaussian(0, torch.arange(images), draws, (1, 8, 8), stream=streams.VALIDATE)
    return torch.from_numpy(split(images).pixels()) + sigma * z


@pytest.fixture
def copy(tmp_path):
    """A root whose ONNX file may be damaged."""
    (tmp_path / "onnx").mkdir()
    (tmp_path / "onnx/a-run.onnx").write_bytes((exported() / "onnx/a-run.onnx").read_bytes())
    return tmp_path


def images():
    return noisy(64, SIGMA)


def make(name, precision="fp32", *, root=None, sigma=SIGMA, device="cpu", calibration=images):
    return registry.load("backends", name).Backend(
        root or exported(),
        "a-run",
        sigma=sigma,
        precision=precision,
        device=device,
        calibration=calibration,
    )


made = functools.cache(make)  # of tests that ask and change nothing; int8 and lanes take seconds


def trained(x, sigma=SIGMA):
    network, _ = classifier.load(exported() / "models/a-run")
    return network(x, torch.tensor(sigma))


def test_functions_are_of_all_backends():
    assert sorted({name for name, _ in FUNCTIONS}) == registry.names("backends")
    for name in registry.names("backends"):
        assert {p for n, p in FUNCTIONS if n == name} == {
            *registry.load("backends", name).PRECISIONS
        }


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
    assert backend.provider == providers[name]
    assert backend.device == scores.device == torch.device("cpu")
    assert (scores.shape, scores.dtype) == ((7, 10), torch.float32)
    assert torch.equal(x, before)
    assert torch.equal(scores, backend.scores(x))
    assert torch.equal(scores, backend.scores(x.mT.contiguous().mT))  # whatever the strides


@pytest.mark.parametrize("images", [2, 7, 33])
@pytest.mark.parametrize(("name", "precision"), FUNCTIONS)
def test_a_row_s_place_and_company_do_not_matter(name, precision, images):
    """At one batch shape, bit for bit: the engine mixes images as it likes."""
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


@pytest.mark.parametrize(("images", "sigma"), [(1, 0.1), (3, 1.0), (100, SIGMA)])
@pytest.mark.parametrize("name", registry.names("backends"))
def test_float32_is_the_trained_network(name, images, sigma):
    """At any noise level and batch size."""
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


@pytest.mark.parametrize(("name", "precision"), FUNCTIONS)
def test_weights_say_which_function_it_is(name, precision):
    """Those that were trained, or, of a converted model, all of it."""
    weights = made(name, precision).weights
    own = precision in ("fp16", "int8")

    assert weights == make(name, precision).weights
    assert re.fullmatch("[0-9a-f]{64}", weights)
    assert (weights == sha256(exported() / WEIGHTS)) != own
    assert (weights == make(name, precision, sigma=0.6).weights) != own


def test_int8_needs_images():
    with refused(BackendError, "int8 needs images to calibrate on"):
        make("onnx", "int8", calibration=None)


@pytest.mark.parametrize(
    ("name", "precision", "offer"),
    [
        ("onnx", "bf16", "onnx offers fp32, fp16, int8, not bf16; torch has bf16"),
        ("torch", "int8", "torch offers fp32 and bf16, not int8; onnx has fp16 and int8"),
        ("torch", "fp16", "torch offers fp32 and bf16, not fp16; onnx has fp16 and int8"),
    ],
)
def test_a_precision_of_the_other_backend_is_refused(name, precision, offer):
    with refused(BackendError, offer):
        make(name, precision)


def test_an_export_is_reproducible_and_has_a_parity_record(tmp_path):
    save_classifier(tmp_path, "a-run")

    record = export_classifier(tmp_path, "a-run", tmp_path / "again.onnx")

    assert sha256(tmp_path / "again.onnx") == sha256(exported() / "onnx/a-run.onnx")
    assert record["images"] == 16
    assert record["max_abs_difference"] <= 1e-4 < 1 < record["max_abs_score"]
    assert record["argmax_agreement"] == 1


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


def test_an_exported_file_knows_nothing_of_this_machine():
    content = (exported() / "onnx/a-run.onnx").read_bytes()
    places = [ROOT, Path.cwd(), Path.home(), exported(), sys.prefix]

    for place in [*map(str, places), "site-packages", ".py", "Traceback", "File "]:
        assert place.encode() not in content, place


def misspell(content):
    return content.replace(b"LayerNormalization", b"LayerNormalizatiom")


@pytest.mark.parametrize(
    "damage",
    [lambda b: b"", lambda b: b"garbage", lambda b: b[:-1], lambda b: b[:1000], misspell],
    ids=["empty", "garbage", "torn", "short", "invalid"],
)
def test_a_damaged_file_is_refused(copy, damage):
    path = copy / "onnx/a-run.onnx"
    path.write_bytes(damage(path.read_bytes()))

    for precision in ("fp32", "int8"):
        with refused(BackendError, str(path)):
            make("onnx", precision, root=copy)


def test_a_file_that_is_not_ours_is_refused(copy):
    path = copy / "onnx/a-run.onnx"
    model = onnx.load(path)
    del model.metadata_props[:]
    onnx.save(model, path)

    with refused(BackendError, str(path), "no metadata of ours", "`dvc repro export@a-run`"):
        make("onnx", root=copy)


def test_a_file_with_other_classes_than_scores_is_refused(copy):
    path = copy / "onnx/a-run.onnx"
    model = onnx.load(path)
    onnx.helper.set_model_props(
        model, {"run": "a-run", "weights": "0", "classes": '["cat", "dog"]'}
    )
    write(model, path)

    with refused(BackendError, str(path), "10 scores per image, but 2 classes"):
        make("onnx", root=copy)


def test_options_of_the_cuda_provider_are_known_to_its_library():
    # The library does not load without CUDA, so it is read: ONNX Runtime refuses other names.
    library = Path(onnxruntime.__file__).parent / "capi/libonnxruntime_providers_cuda.so"
    content = library.read_bytes()

    given = cuda_options(7)

    assert given.pop("user_compute_stream") == "7"  # an address in decimal
    for text in ("user_compute_stream", *given, given["cudnn_conv_algo_search"]):
        assert text.encode() + b"\0" in content
    assert b"cudnn_conv_algorithm_search\0" not in content


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
@pytest.mark.parametrize("name", ["onnx", "torch"])  # lanes has no use for one
def test_a_missing_gpu_is_said(name):
    with refused(BackendError, "CUDA", "`rrcm doctor`"):
        make(name, device="cuda")
