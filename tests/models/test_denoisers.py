"""Networks that denoise, and the form of a trained denoiser on disk."""

import json

import pytest
import torch
import torch.nn.functional as F
from builders import refused
from helpers import equal
from networks import attended

from rrcm.core import registry
from rrcm.core.errors import CheckpointError, ConfigError
from rrcm.models.trained import denoiser
from rrcm.models.trained.denoiser import Denoiser, Schedule

UVIT = {
    "size": "16x5x2",
    "image_size": 8,
    "channels": 2,
    "patch_size": 4,
    "position_std": 0.5,
    "time_scale": 10.0,
}
DNCNN = {"image_size": 8, "channels": 2, "depth": 4, "width": 8, "momentum": 0.25}
UNET = {
    "channels": 2,
    "image_size": 8,
    "width": 8,
    "mults": [1, 2],
    "blocks": 1,
    "attention": [4],
    "head_channels": 8,
    "groups": 4,
    "dropout": 0.0,
    "resample": "conv",
    "learned_variance": True,
}
SHAPES = {"uvit": UVIT, "dncnn": DNCNN, "unet": UNET}
COSINE = Schedule(kind="cosine", steps=10, rescale=True)


def filled(name, **changed):
    """A network in float64, all of whose weights and statistics are random."""
    torch.manual_seed(0)
    network = denoiser.network(name, SHAPES[name] | changed, where="here").double()
    for tensor in (*network.parameters(), *network.buffers()):
        if tensor.is_floating_point():
            tensor.data = 0.1 + torch.rand_like(tensor) / 3
    return network


def given(batch=3):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(batch, 2, 8, 8, dtype=torch.float64, generator=generator)
    return x, torch.linspace(0.1, 30, batch, dtype=torch.float64)


def test_the_published_small_u_vit_has_its_number_of_parameters():
    """44,255,328 for CIFAR-10 without labels, by Bao et al.'s layers: 13 blocks, 6 long skips."""
    shape = UVIT | {"size": "small", "image_size": 32, "channels": 3, "patch_size": 2}
    with torch.device("meta"):
        network = denoiser.network("uvit", shape, where="here")

    assert sum(p.numel() for p in network.parameters()) == 44_255_328


def naive_uvit(w, x, told, condition=None):
    """U-ViT 16x5x2 on patches of 4 x 4, from its weights: patch by patch, block by block."""
    kernel = w["patch_embed.proj.weight"]  # [16, 2, 4, 4]
    places = [(slice(4 * i, 4 * i + 4), slice(4 * j, 4 * j + 4)) for i in (0, 1) for j in (0, 1)]
    patches = [
        torch.einsum("bcij,dcij->bd", x[:, :, rows, columns], kernel) + w["patch_embed.proj.bias"]
        for rows, columns in places
    ]
    angles = torch.stack([10 * told * 1e4 ** -(k / 8) for k in range(8)], dim=1)
    tokens = [torch.cat([angles.cos(), angles.sin()], dim=1), *patches]
    if condition is not None:
        tokens.append(condition @ w["condition_embed.weight"].T + w["condition_embed.bias"])
    tokens = torch.stack(tokens, dim=1) + w["pos_embed"]

    def joined(x, skip, name):
        return torch.cat([x, skip], dim=-1) @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    first = attended(tokens, w, "blocks.0", 2)
    second = attended(first, w, "blocks.1", 2)
    middle = attended(second, w, "blocks.2", 2)
    fourth = attended(joined(middle, second, "skips.0"), w, "blocks.3", 2)
    fifth = attended(joined(fourth, first, "skips.1"), w, "blocks.4", 2)
    last = F.layer_norm(fifth, (16,), w["norm.weight"], w["norm.bias"])
    pixels = last @ w["to_pixels.weight"].T + w["to_pixels.bias"]
    picture = torch.empty_like(x)
    for (rows, columns), patch in zip(places, pixels[:, 1:5].unbind(dim=1), strict=True):
        picture[:, :, rows, columns] = patch.view(-1, 4, 4, 2).permute(0, 3, 1, 2)
    return F.conv2d(picture, w["smooth.weight"], w["smooth.bias"], padding=1)


def test_u_vit_is_its_definition():
    network, (x, told) = filled("uvit"), given()

    torch.testing.assert_close(network(x, told), naive_uvit(network.state_dict(), x, told))


def test_a_condition_is_one_more_token_and_none_is_zeros():
    network, (x, told) = filled("uvit", condition=5), given()
    c = torch.arange(15, dtype=torch.float64).view(3, 5) / 15

    found = network(x, told, c)

    torch.testing.assert_close(found, naive_uvit(network.state_dict(), x, told, c))
    assert torch.equal(network(x, told), network(x, told, 0 * c))
    assert (network(x, told) - found).abs().max() > 1e-9


def test_recomputing_activations_gives_the_same_gradients():
    network, (x, told) = filled("uvit"), given()
    plain = torch.autograd.grad(network(x, told).square().sum(), [*network.parameters()])
    network.recompute = True

    again = torch.autograd.grad(network(x, told).square().sum(), [*network.parameters()])

    assert all(torch.equal(a, b) for a, b in zip(plain, again, strict=True))


def test_dncnn_takes_its_residual_away():
    """In evaluation, from its weights."""
    network, (x, told) = filled("dncnn").eval(), given()
    w = network.state_dict()
    inner = F.conv2d(x, w["first.weight"], w["first.bias"], padding=1).clamp(min=0)
    for i in range(2):
        inner = F.conv2d(inner, w[f"convolutions.{i}.weight"], padding=1)
        norm = {
            name: w[f"norms.{i}.{name}"].view(-1, 1, 1)
            for name in ("running_mean", "running_var", "weight", "bias")
        }
        inner = (inner - norm["running_mean"]) / (norm["running_var"] + 1e-4).sqrt()
        inner = (inner * norm["weight"] + norm["bias"]).clamp(min=0)

    torch.testing.assert_close(network(x, told), x - F.conv2d(inner, w["last.weight"], padding=1))
    assert torch.equal(network(x, told), network(x, told + 1)), "it is not told how noisy x is"


@pytest.mark.parametrize("training", [True, False])
def test_dncnn_starts_as_the_identity_with_orthogonal_layers(training):
    network = denoiser.network("dncnn", DNCNN, where="here").train(training)
    x = given()[0].float()

    assert torch.equal(network(x, torch.zeros(3)), x)
    for convolution in network.convolutions:
        rows = convolution.weight.flatten(1)
        torch.testing.assert_close(rows @ rows.T, torch.eye(8))


def test_an_untrained_unet_predicts_zero_and_can_learn_not_to():
    """In the third step at the latest every tensor has a gradient, so that none is stuck at zero.

    But biases of keys, which move all attention scores of a query alike: they do nothing.
    """
    torch.manual_seed(0)
    network, (x, told) = denoiser.network("unet", UNET, where="here").double(), given()
    rate = torch.optim.SGD(network.parameters(), lr=0.1)

    assert torch.equal(network(x, told), torch.zeros(3, 4, 8, 8).double())
    for _ in range(3):
        rate.zero_grad()
        (network(x, told) - 1).square().mean().backward()
        rate.step()

    still = {name for name, p in network.named_parameters() if not p.grad.any()}
    assert {name for name in still if not name.endswith("to_k.bias")} == set()


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("uvit", {"size": "smal"}, "size: no 'smal', only small, .* Did you mean 'small'"),
        ("uvit", {"size": "16x4x2"}, "size: depth 4 must be odd"),
        ("uvit", {"size": "15x5x3"}, "size: width 15 must be even"),
        ("uvit", {"patch_size": 3}, "patch_size: 3 does not divide image_size 8"),
        ("uvit", {"time_scale": 0.0}, "time_scale: must be positive"),
        ("uvit", {"condition": -1}, "condition: must be finite and >= 0"),
        ("dncnn", {"depth": 2}, "depth: must be above 2"),
        ("dncnn", {"momentum": 0.0}, r"momentum: must be in \(0, 1\]"),
        ("unet", {"width": 6}, "width: must be even and a multiple of groups = 4, got 6"),
        ("unet", {"image_size": 7}, "image_size: 7 pixels cannot be halved 1 times"),
        ("unet", {"attention": [2]}, r"attention: no level has images of 2 .*, only \[8, 4\]"),
        ("unet", {"attention": [], "head_channels": 3}, "head_channels: 16 channels, which have"),
    ],
)
def test_impossible_shapes_are_refused(name, change, message):
    with pytest.raises(ConfigError, match=message):
        registry.load("denoiser_networks", name).Config(**SHAPES[name] | change)


@pytest.mark.parametrize(
    ("name", "side", "message"),
    [
        *((name, 4, r"of \(2, 8, 8\), .* gets \(2, 8, 4\); set") for name in ("uvit", "dncnn")),
        ("unet", 7, "sides are multiples of 2, and these have 8 x 7 pixels"),
    ],
)
def test_images_of_another_size_are_refused(name, side, message):
    with pytest.raises(ConfigError, match=message):
        filled(name)(torch.zeros(1, 2, 8, side).double(), torch.zeros(1))


@pytest.mark.parametrize(("name", "schedule"), [("dncnn", None), ("uvit", COSINE)])
def test_a_denoiser_comes_back_from_its_folder(name, schedule, tmp_path):
    """As it was in evaluation, and frozen: the network, or the clean image that it predicts."""
    network, (x, told) = filled(name).float().eval(), given()
    x, told = x.float(), told.float()
    denoiser.save(
        tmp_path, network.state_dict(), network=name, shape=SHAPES[name], schedule=schedule
    )

    found, config = denoiser.load(tmp_path)

    inner = found if schedule is None else found.network
    assert isinstance(found, Denoiser) == (schedule is not None)
    assert torch.equal(inner(x, told), network(x, told))
    assert equal(inner.state_dict(), network.state_dict())
    assert not any(part.training for part in found.modules())
    assert not any(p.requires_grad for p in found.parameters())
    assert (config["network"], config["shape"]) == (name, SHAPES[name])
    assert schedule is None or found.times.cfg == schedule
    again = denoiser.build(config, network.state_dict(), source="here")
    assert equal(again.state_dict(), found.state_dict())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda config: config.pop("schedule"), "damaged (KeyError('schedule'"),
        (lambda config: config.update(network="unit"), "has no 'unit', only"),
        (lambda config: config["shape"].pop("size"), "shape: missing size"),
        (lambda config: config["shape"].update(size="16x7x2"), "of another architecture"),
    ],
)
def test_a_damaged_denoiser_is_refused_in_one_line(change, message, tmp_path):
    network = filled("uvit")
    denoiser.save(tmp_path, network.state_dict(), network="uvit", shape=UVIT, schedule=COSINE)
    config = json.loads((tmp_path / "config.json").read_text())
    change(config)
    (tmp_path / "config.json").write_text(json.dumps(config))

    with refused(CheckpointError, message):
        denoiser.load(tmp_path)
