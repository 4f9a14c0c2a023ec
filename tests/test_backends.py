"""Backends run what was trained: ONNX Runtime as PyTorch does, from a file that says what it is."""

import json
import sys
from pathlib import Path

import onnx
import pytest
import torch
from builders import SIGMA, export_classifier, exported, refused, save_classifier, split

from rrcm import classifier, noise, registry
from rrcm.backends.onnx import Backend as Onnx
from rrcm.backends.torch import Backend as Torch
from rrcm.data import digits
from rrcm.errors import BackendError
from rrcm.files import sha256

CPU = {"precision": "fp32", "device": "cpu"}


def noisy(images, sigma):
    draws = torch.zeros(images, dtype=torch.int64)
    z = noise.gaussian(0, torch.arange(images), draws, (1, 8, 8), stream=noise.VALIDATE)
    return torch.from_numpy(split(images).pixels()) + sigma * z


@pytest.fixture
def copy(tmp_path):
    """A root whose ONNX file may be damaged."""
    (tmp_path / "onnx").mkdir()
    (tmp_path / "onnx/a-run.onnx").write_bytes((exported() / "onnx/a-run.onnx").read_bytes())
    return tmp_path


@pytest.mark.parametrize("name", registry.names("backends"))
def test_a_backend_keeps_its_contract(name):
    """What sample.Backend promises, and nothing that a batch or a caller could disturb."""
    module = registry.load("backends", name)
    backend = module.Backend(exported(), "a-run", **CPU)
    x = noisy(7, SIGMA)
    before = x.clone()

    scores = backend.scores(x, SIGMA)

    assert module.__doc__
    assert backend.classes == list(digits.CLASSES)
    assert backend.weights == sha256(exported() / "models/a-run/model.safetensors")
    assert backend.provider and isinstance(backend.provider, str)
    assert (scores.shape, scores.dtype, scores.device.type) == ((7, 10), torch.float32, "cpu")
    assert torch.equal(x, before)
    assert torch.equal(scores, backend.scores(x, SIGMA))


@pytest.mark.parametrize("name", registry.names("backends"))
def test_providers_tell_backends_apart(name):
    backend = registry.load("backends", name).Backend(exported(), "a-run", **CPU)

    assert backend.provider == {"onnx": "CPUExecutionProvider", "torch": "torch-cpu"}[name]


@pytest.mark.parametrize("sigma", [0.1, SIGMA, 1.0])
@pytest.mark.parametrize("images", [1, 3, 100])
def test_onnx_is_torch(sigma, images):
    """At any noise level and batch size: sigma and the batch are inputs, not constants."""
    x = noisy(images, sigma)
    ours, theirs = (b(exported(), "a-run", **CPU).scores(x, sigma) for b in (Onnx, Torch))

    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)
    assert (ours.argmax(1) == theirs.argmax(1)).all()


def test_torch_is_the_trained_network():
    network, _ = classifier.load(exported() / "models/a-run")
    x = noisy(5, SIGMA)

    assert torch.equal(
        Torch(exported(), "a-run", **CPU).scores(x, SIGMA), network(x, torch.tensor(SIGMA))
    )


def test_scores_depend_on_sigma():
    x = noisy(16, SIGMA)
    backend = Onnx(exported(), "a-run", **CPU)

    assert (backend.scores(x, SIGMA) - backend.scores(x, 2 * SIGMA)).abs().max() > 0.1


def test_an_export_is_reproducible_and_has_a_parity_record(tmp_path):
    save_classifier(tmp_path, "a-run")

    record = export_classifier(tmp_path, "a-run", tmp_path / "again.onnx")

    assert sha256(tmp_path / "again.onnx") == sha256(exported() / "onnx/a-run.onnx")
    assert record["images"] == 16
    assert record["max_abs_difference"] <= 1e-4 < 1 < record["max_abs_score"]
    assert record["argmax_agreement"] == 1


def test_an_export_that_disagrees_is_not_kept(tmp_path, monkeypatch):
    path = tmp_path / "onnx/a-run.onnx"
    traced = onnx.load(exported() / "onnx/a-run.onnx")
    monkeypatch.setattr("rrcm.export._trace", lambda *a, **k: traced)  # tracing takes seconds

    with refused(BackendError, str(path), "ONNX Runtime differs", "export.tolerance is 0"):
        export_classifier(exported(), "a-run", path, tolerance=0)

    assert not list(path.parent.iterdir())


def test_an_exported_file_says_what_it_is():
    model = onnx.load(exported() / "onnx/a-run.onnx")
    x, sigma = model.graph.input

    assert {prop.key: prop.value for prop in model.metadata_props} == {
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
    places = [Path(__file__).parents[1], Path.cwd(), Path.home(), exported(), sys.prefix]

    for place in [*map(str, places), "site-packages", ".py", "Traceback", "File "]:
        assert place.encode() not in content, place


def test_a_missing_file_is_named(tmp_path):
    with refused(BackendError, f"{tmp_path}/onnx/a-run.onnx: not found"):
        Onnx(tmp_path, "a-run", **CPU)


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

    with refused(BackendError, str(path)):
        Onnx(copy, "a-run", **CPU)


def test_a_file_that_is_not_ours_is_refused(copy):
    path = copy / "onnx/a-run.onnx"
    model = onnx.load(path)
    del model.metadata_props[:]
    onnx.save(model, path)

    with refused(BackendError, str(path), "no metadata of ours", "`dvc repro export@a-run`"):
        Onnx(copy, "a-run", **CPU)


def test_a_file_with_other_classes_than_scores_is_refused(copy):
    path = copy / "onnx/a-run.onnx"
    model = onnx.load(path)
    onnx.helper.set_model_props(
        model, {"run": "a-run", "weights": "0", "classes": '["cat", "dog"]'}
    )
    onnx.save(model, path)

    with refused(BackendError, str(path), "10 scores per image, but 2 classes"):
        Onnx(copy, "a-run", **CPU)


def test_bfloat16_is_close_to_float32_but_not_the_same():
    x = noisy(100, SIGMA)
    exact = Torch(exported(), "a-run", **CPU).scores(x, SIGMA)
    rounded = Torch(exported(), "a-run", precision="bf16", device="cpu").scores(x, SIGMA)

    assert rounded.dtype == torch.float32
    assert not torch.equal(exact, rounded)
    assert (exact.argmax(1) == rounded.argmax(1)).float().mean() > 0.8


def test_an_exported_file_runs_in_its_own_precision():
    with refused(BackendError, "fp32, not bf16"):
        Onnx(exported(), "a-run", precision="bf16", device="cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
@pytest.mark.parametrize("name", registry.names("backends"))
def test_a_missing_gpu_is_said(name):
    with refused(BackendError, "CUDA", "`rrcm doctor`"):
        registry.load("backends", name).Backend(
            exported(), "a-run", precision="fp32", device="cuda"
        )
