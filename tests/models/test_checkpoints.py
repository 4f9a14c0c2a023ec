"""Tensors on disk: bit for bit, whole or absent, and clear about what is wrong with them."""

import pytest
import torch
from builders import refused
from helpers import MODEL, equal
from torch import nn

from rrcm.core.errors import CheckpointError
from rrcm.models.trained.base import checkpoint, classifier

TENSORS = {
    "weight": torch.randn(3, 4, generator=torch.Generator().manual_seed(0)),
    "transposed": torch.arange(6.0).view(2, 3).T,
    "half": torch.tensor([1e-3, 1.0], dtype=torch.bfloat16),
    "count": torch.tensor(7),
    "extreme": torch.tensor([torch.inf, -0.0, 1e-45]),
}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "folder" / "model.safetensors"


def test_what_is_saved_is_loaded(path):
    checkpoint.save(path, TENSORS, {"note": "σ"})

    tensors, text = checkpoint.load(path)

    assert equal(tensors, TENSORS) and text == {"note": "σ"}
    assert {name: t.dtype for name, t in tensors.items()} == {
        n: t.dtype for n, t in TENSORS.items()
    }
    assert tensors["extreme"][1].signbit()


@pytest.mark.parametrize(
    ("saved", "difference"),
    [
        (nn.Linear(4, 3), "weight is [3, 4] in the file, [2, 4] in the model"),
        (nn.Linear(4, 2, bias=False), "bias is absent in the file, [2] in the model"),
        (nn.Bilinear(4, 4, 2), "weight is [2, 4, 4] in the file, [2, 4] in the model"),
    ],
    ids=str,
)
def test_another_architecture_is_refused_by_its_first_difference(saved, difference):
    network = nn.Linear(4, 2)
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}

    with refused(CheckpointError) as error:
        checkpoint.restore(network, saved.state_dict(), source="models/x")

    assert str(error.value) == (
        f"models/x: a checkpoint of another architecture: {difference} of params.yaml"
    )
    assert equal(network.state_dict(), before)


def untrained(*, final_norm, classes=3):
    network = classifier.build(MODEL, classes=classes, condition="exact", final_norm=final_norm)
    nn.init.normal_(network.head.weight)
    return network


@pytest.mark.parametrize("final_norm", [False, True])
def test_training_begins_with_an_encoder_or_with_a_whole_classifier(tmp_path, final_norm):
    """An encoder keeps its last norm where the classifier has one; the head is the classifier's."""
    theirs, ours = (untrained(final_norm=norm) for norm in (True, final_norm))
    head = ours.head.weight.clone()
    checkpoint.save(tmp_path / "a/encoder.safetensors", theirs.encoder.state_dict())

    classifier.begin(ours, tmp_path / "a")

    encoder = {
        n: t for n, t in theirs.encoder.state_dict().items() if final_norm or "norm." != n[:5]
    }
    assert equal(ours.encoder.state_dict(), encoder) and torch.equal(ours.head.weight, head)

    whole = untrained(final_norm=final_norm)
    checkpoint.save(tmp_path / "b/model.safetensors", whole.state_dict())
    classifier.begin(ours, tmp_path / "b")

    assert equal(ours.state_dict(), whole.state_dict())


def test_training_cannot_begin_with_nothing_or_with_another_classifier(tmp_path):
    network = untrained(final_norm=False)
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}

    neither = f"{tmp_path}: holds neither model.safetensors nor encoder.safetensors"
    with refused(CheckpointError, neither):
        classifier.begin(network, tmp_path)
    for other, difference in [
        (untrained(final_norm=True), "is [64] in the file, absent in the model"),
        (untrained(final_norm=False, classes=4), "head.weight is [4, 64] in the file, [3, 64] in"),
    ]:
        checkpoint.save(tmp_path / "model.safetensors", other.state_dict())
        with refused(CheckpointError, difference):
            classifier.begin(network, tmp_path)
    assert equal(network.state_dict(), before)


def test_a_saved_classifier_is_the_classifier(tmp_path):
    """Rebuilt from its folder alone: the same scores, ready to be certified."""
    condition = "nearest"
    torch.manual_seed(0)
    network = classifier.build(MODEL, classes=3, condition=condition, final_norm=True).eval()
    network.requires_grad_(False)
    config = {"classes": [*"abc"], "condition": condition, "final_norm": True, "sigma": 0.5}
    classifier.save(tmp_path, network.state_dict(), model=MODEL, config=config)

    loaded, found = classifier.load(tmp_path)

    x, sigma = torch.rand(2, 1, 8, 8), torch.tensor(0.5)
    assert torch.equal(loaded(x, sigma), network(x, sigma))
    assert not loaded.training and not any(p.requires_grad for p in loaded.parameters())
    assert found.items() >= config.items()
