"""Folding changes the work, never the function."""

import dataclasses

import pytest
import torch
from helpers import MODEL, equal

from rrcm.core import registry
from rrcm.models.folding.vit import fold
from rrcm.models.trained.base import classifier

SHAPES = {
    "digits": {"image_size": 8, "channels": 1, "patch_size": 2},
    "coarse": {"image_size": 8, "channels": 1, "patch_size": 4},
    "colour": {"image_size": 12, "channels": 3, "patch_size": 4},
    "one patch": {"image_size": 4, "channels": 2, "patch_size": 4},
}


def build(shape, condition="exact", *, final_norm=True):
    """A network in which every parameter matters, those that start at 0 or 1 too."""
    torch.manual_seed(0)
    model = dataclasses.replace(MODEL, shape=MODEL.shape | SHAPES[shape])
    network = classifier.build(model, classes=7, condition=condition, final_norm=final_norm)
    network.requires_grad_(False).eval()
    for name, parameter in network.named_parameters():
        width = parameter[0].numel() if parameter.ndim > 1 else 16
        torch.nn.init.normal_(parameter, mean="norm" in name, std=width**-0.5)
    return network


def pixels(shape, images):
    side, channels = SHAPES[shape]["image_size"], SHAPES[shape]["channels"]
    return torch.rand(images, channels, side, side) + 0.5 * torch.randn(
        images, channels, side, side
    )


@pytest.mark.parametrize(
    ("shape", "sigma", "condition", "final_norm"),
    [
        *((shape, 1.0, "exact", True) for shape in SHAPES),
        ("digits", 0.001, "nearest", True),
        ("colour", 0.5, "exact", False),
    ],
)
def test_folding_is_exact(shape, sigma, condition, final_norm):
    """In float64 nothing is left but rounding."""
    network = build(shape, condition, final_norm=final_norm).double()
    x, level = pixels(shape, 3).double(), torch.tensor(sigma, dtype=torch.float64)
    folded = fold(network)

    expected = network(x, level)

    bound = {"atol": 1e-10 * expected.abs().max().item(), "rtol": 0}
    torch.testing.assert_close(folded(x, level), expected, **bound)
    torch.testing.assert_close(folded.fix(sigma)(x), expected, **bound)


def test_the_network_itself_is_left_alone():
    network = build("digits")
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}

    fold(network).fix(0.5).to(torch.bfloat16)

    assert equal(before, network.state_dict())


def test_every_architecture_can_be_folded():
    assert registry.names("folding") == registry.names("networks")
