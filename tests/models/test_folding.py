"""Folding changes the work, never the function; what a network cannot take is refused."""

import networks
import pytest
import torch
from builders import refused
from helpers import equal
from networks import IMAGENET, ODD, SHAPES, build

from rrcm.core import registry
from rrcm.core.errors import ConfigError

CASES = {  # architecture: what is changed in it, and how far folding may be off by rounding
    "lenet": (0.0, [{}, {"channels": 3}, {"image_size": 16}, {"image_size": 33}]),
    "resnet": (1e-12, [{}, ODD, IMAGENET]),
    "resnet9": (1e-12, [{}, {"channels": 1, "image_size": 28}, {"image_size": 11}]),
    "vit": (
        1e-10,
        [
            {"patch_size": 2, "final_norm": True},
            {"patch_size": 2, "final_norm": True, "condition": "nearest"},
            {"final_norm": True},
            {"image_size": 12, "channels": 3, "final_norm": True},
            {"image_size": 12, "channels": 3},
            {"image_size": 4, "channels": 2, "final_norm": True},  # one patch
        ],
    ),
}


@pytest.mark.parametrize(
    ("architecture", "changed"),
    [(name, one) for name, (_, every) in CASES.items() for one in every],
)
def test_folding_is_exact(architecture, changed):
    """In float64 nothing is left but rounding, at the edges too, where zeros are not black."""
    torch.manual_seed(0)
    network = build(architecture, **changed).double().eval().requires_grad_(False)
    networks.fill(network)
    shape = SHAPES[architecture] | changed
    x = torch.randn(3, shape["channels"], *[shape["image_size"]] * 2).double()
    folded = registry.load("folding", architecture).fold(network)
    for sigma in (0.001, 1.0):
        level = torch.tensor(sigma, dtype=torch.float64)

        expected = network(x, level)

        bound = {"atol": CASES[architecture][0] * expected.abs().max().item(), "rtol": 0}
        assert expected.abs().max() > 0.1 and expected.std(dim=0).min() > 1e-3
        torch.testing.assert_close(folded(x, level), expected, **bound)
        torch.testing.assert_close(folded.fix(sigma)(x), expected, **bound)
    assert not any(isinstance(module, torch.nn.BatchNorm2d) for module in folded.modules())


def test_the_network_itself_is_left_alone():
    network = build("vit", final_norm=True)
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}

    registry.load("folding", "vit").fold(network).fix(0.5).to(torch.bfloat16)

    assert equal(before, network.state_dict())


def test_every_architecture_can_be_folded_and_is_tested_here():
    assert registry.names("folding") == registry.names("networks") == [*CASES]


@pytest.mark.parametrize("architecture", ["lenet", "resnet", "resnet9"])
def test_images_of_another_size_and_a_norm_that_a_network_has_not_are_refused(architecture):
    channels, side = (SHAPES[architecture][key] for key in ("channels", "image_size"))
    said = f"models: the network is for images of ({channels}, {side}, {side})"

    with refused(ConfigError, said, f"gets ({channels}, {side}, {side + 1})"):
        build(architecture)(torch.rand(2, channels, side, side + 1), torch.tensor(0.5))
    with refused(ConfigError, f"final_norm: {architecture} has no LayerNorm", "set it to false"):
        build(architecture, final_norm=True)


VIT = "size: no 'b_deap', only tiny, s, b, b_deep, or WIDTHxDEPTHxHEADS such as 48x3x4"


@pytest.mark.parametrize(
    ("architecture", "changed", "message"),
    [
        ("lenet", {"image_size": 15}, "image_size: LeNet takes 16 pixels or more, got 15"),
        ("resnet9", {"image_size": 7}, "image_size: ResNet-9 takes 8 pixels or more, got 7"),
        (
            "resnet",
            {"size": "18"},
            "size: no '18', only '50', or 6 n + 2 such as '20', '56', '110'",
        ),
        ("resnet", {"channels": 3}, "mean: 1 numbers for 3 channels"),
        ("resnet", {"std": [0.0]}, "std: must be positive, got [0.0]"),
        ("vit", {"size": "b_deap"}, f"{VIT}. Did you mean 'b_deep'?"),
        ("vit", {"size": "48x2x5"}, "size: width 48 must be even and a multiple of 5 heads"),
        ("vit", {"size": "15x2x5"}, "size: width 15 must be even and a multiple of 5 heads"),
        ("vit", {"patch_size": 3}, "patch_size: 3 does not divide image_size 8"),
    ],
)
def test_impossible_shapes_are_refused(architecture, changed, message):
    with refused(ConfigError) as error:
        registry.load("networks", architecture).Config(**SHAPES[architecture] | changed)

    assert str(error.value) == message
