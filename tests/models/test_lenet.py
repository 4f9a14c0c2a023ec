"""LeNet is that of the published table, and its inference form is the same function."""

import pytest
import torch
from builders import refused
from torch import nn

from rrcm.config.sections import Model
from rrcm.core.errors import ConfigError
from rrcm.models.folding.lenet import fold
from rrcm.models.networks import lenet
from rrcm.models.trained.base import classifier

SHAPE = {"image_size": 28, "channels": 1, "projector_width": 32, "projector_dim": 16}


def build(**changed) -> classifier.Classifier:
    torch.manual_seed(0)
    model = Model(architecture="lenet", shape=SHAPE | changed)
    return classifier.build(model, classes=10, condition="exact", final_norm=False).eval()


def published() -> nn.Sequential:
    """As Jeong & Shin (2020) describe it, layer by layer."""
    return nn.Sequential(
        *(nn.Conv2d(1, 20, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(20, 50, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(800, 500), nn.ReLU(), nn.Linear(500, 10)),
    )


def test_it_has_the_published_layers_and_their_initial_weights():
    """Golden: 431,080 parameters, started by the same random numbers in the same order."""
    network = build()
    torch.manual_seed(0)
    expected = published()

    found = [*network.parameters()]
    assert sum(p.numel() for p in found) == 431_080
    for ours, theirs in zip(found, expected.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=0, rtol=0)


def test_values_and_gradients_are_those_of_the_published_layers():
    """Pooling before ReLU, and channels last, change neither."""
    network = build().double()
    torch.manual_seed(0)
    expected = published().double()
    x = torch.rand(5, 1, 28, 28).double()
    ours, theirs = network(x, torch.tensor(0.5).double()), expected(x)
    ours.square().sum().backward()
    theirs.square().sum().backward()

    torch.testing.assert_close(ours, theirs, atol=1e-14, rtol=1e-12)
    for mine, other in zip(network.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad, atol=1e-14, rtol=1e-10)


@pytest.mark.parametrize("changed", [{}, {"channels": 3}, {"image_size": 16}, {"image_size": 33}])
def test_its_inference_form_is_the_same_function_to_the_bit(changed):
    network = build(**changed).double()
    x = torch.randn(7, *network.encoder.size)
    x, level = x.double(), torch.tensor(0.25, dtype=torch.float64)
    folded = fold(network)

    expected = network(x, level)

    assert torch.equal(folded(x, level), expected)
    assert torch.equal(folded.fix(0.25)(x), expected)


def test_what_it_cannot_take_is_refused():
    with refused(ConfigError, "image_size: LeNet takes 16 pixels or more, got 15"):
        lenet.Config(**SHAPE | {"image_size": 15})
    with refused(
        ConfigError, "models: the network is for images of (1, 28, 28)", "gets (1, 32, 28)"
    ):
        build()(torch.rand(1, 1, 32, 28), torch.tensor(0.5))
    model = Model(architecture="lenet", shape=SHAPE)
    with refused(ConfigError, "final_norm: lenet has no LayerNorm"):
        classifier.build(model, classes=10, condition="exact", final_norm=True)
