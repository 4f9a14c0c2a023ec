"""UNets of improved- and guided-diffusion: the same function, checked by name."""

import math

import pytest
import torch
import torch.nn.functional as F
from builders import refused
from openai_unets import GUIDED, IMPROVED, Form, config, drawn

from rrcm.core.errors import CheckpointError, ConfigError
from rrcm.diffusion import openai_unet
from rrcm.models.trained import denoiser
from rrcm.models.trained.denoiser import Schedule

CIFAR10 = Form(32, 3, 6, 128, (1, 2, 2, 2), 3, (16, 8), 4, None, False)
IMAGENET = Form(256, 3, 6, 256, (1, 1, 2, 2, 4, 4), 2, (32, 16, 8), None, 64, True)


def naive(w, x, t, form):
    """The forward pass of their UNet, from its description, straight from a state dict."""

    def norm(h, name):  # of 32 groups of channels
        parts = h.reshape(len(h), 32, -1)
        centred = parts - parts.mean(-1, keepdim=True)
        scaled = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        scale, shift = (
            w[f"{name}.{kind}"].view(-1, *[1] * (h.ndim - 2)) for kind in ("weight", "bias")
        )
        return scaled.reshape(h.shape) * scale + shift

    def silu(h):
        return h / (1 + torch.exp(-h))

    def conv(h, name, **how):
        kernel = w[f"{name}.weight"]
        return F.conv2d(h, kernel, w[f"{name}.bias"], padding=kernel.shape[-1] // 2, **how)

    def linear(h, name):
        return h @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def double(h):
        return h.repeat_interleave(2, dim=2).repeat_interleave(2, dim=3)

    def halve(h):
        return (
            h[:, :, ::2, ::2] + h[:, :, 1::2, ::2] + h[:, :, ::2, 1::2] + h[:, :, 1::2, 1::2]
        ) / 4

    def block(h, name, change=lambda h: h):
        inner = conv(change(silu(norm(h, f"{name}.in_layers.0"))), f"{name}.in_layers.2")
        said = linear(silu(emb), f"{name}.emb_layers.1")[:, :, None, None]
        scale, shift = said[:, : inner.shape[1]], said[:, inner.shape[1] :]
        inner = norm(inner, f"{name}.out_layers.0") * (1 + scale) + shift
        skip = change(h)
        if f"{name}.skip_connection.weight" in w:
            skip = conv(skip, f"{name}.skip_connection")
        return skip + conv(silu(inner), f"{name}.out_layers.3")

    def attend(h, name):
        b, c, *sides = h.shape
        rows = norm(h.flatten(2), f"{name}.norm")  # [B, C, pixels]
        qkv = w[f"{name}.qkv.weight"][:, :, 0] @ rows + w[f"{name}.qkv.bias"][:, None]
        size, looked = c // form.count(c), []
        for of_head in qkv.split(3 * size, dim=1):  # heads first, then q, k and v
            q, k, v = of_head.split(size, dim=1)
            weights = torch.softmax(q.transpose(1, 2) @ k / math.sqrt(size), dim=-1)
            looked.append(v @ weights.transpose(1, 2))
        out = w[f"{name}.proj_out.weight"][:, :, 0] @ torch.cat(looked, dim=1)
        return h + (out + w[f"{name}.proj_out.bias"][:, None]).reshape(b, c, *sides)

    def maybe(h, name):
        return attend(h, name) if f"{name}.qkv.weight" in w else h

    half = form.width // 2  # in float32, as theirs
    angles = t.float()[:, None] * torch.exp(-math.log(10000) * torch.arange(half) / half)
    emb = torch.cat([angles.cos(), angles.sin()], dim=1).to(x.dtype)
    emb = linear(silu(linear(emb, "time_embed.0")), "time_embed.2")
    kept, index = [conv(x, "input_blocks.0.0")], 0
    for level in range(len(form.mults)):
        for _ in range(form.blocks):
            name = f"input_blocks.{len(kept)}"
            kept.append(maybe(block(kept[-1], f"{name}.0"), f"{name}.1"))
        if level + 1 < len(form.mults):
            name, h = f"input_blocks.{len(kept)}.0", kept[-1]
            kept.append(block(h, name, halve) if form.residual else conv(h, f"{name}.op", stride=2))
    h = block(kept[-1], "middle_block.0")
    h = block(attend(h, "middle_block.1"), "middle_block.2")
    for level in reversed(range(len(form.mults))):
        for i in range(form.blocks + 1):
            name = f"output_blocks.{index}"
            h = block(torch.cat([h, kept.pop()], dim=1), f"{name}.0")
            seen, index = f"{name}.1.qkv.weight" in w, index + 1
            h = maybe(h, f"{name}.1")
            if level and i == form.blocks:
                name = f"{name}.{1 + seen}"
                h = block(h, name, double) if form.residual else conv(double(h), f"{name}.conv")
    return conv(silu(norm(h, "out.0")), "out.2")


def written(state, path, **options):
    torch.save(state, path, **options)
    return path


def read(path, form, **changes):
    asked = {"image_size": form.size, "heads": form.heads, "head_channels": form.head_channels}
    return openai_unet.read(path, **asked | changes)


@pytest.mark.parametrize("form", [IMPROVED, GUIDED], ids=["improved", "guided"])
def test_an_imported_unet_is_the_same_function(tmp_path, form):
    """Read, kept as our own files, loaded from there: a naive forward pass within 1e-10."""
    state = drawn(form)
    tensors, shape = read(written(state, tmp_path / "ema.pt"), form)
    schedule = Schedule(kind="cosine", steps=4000, rescale=True)
    denoiser.save(tmp_path / "mine", tensors, network="unet", shape=shape, schedule=schedule)
    whole, config = denoiser.load(tmp_path / "mine")
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(4, form.channels, 8, 8, generator=generator, dtype=torch.float64)
    t = torch.tensor([0.0, 17.25, 464.0, 999.75], dtype=torch.float64)

    expected = naive({name: tensor.double() for name, tensor in state.items()}, x, t, form)
    ours = whole.network.double()(x, t)

    assert expected.std() > 0.1 and expected.shape == (4, form.behind, 8, 8)
    torch.testing.assert_close(ours, expected, atol=1e-10, rtol=1e-10)
    assert config["schedule"] == {"kind": "cosine", "steps": 4000, "rescale": True}


@pytest.mark.parametrize(
    ("form", "count"),
    [(CIFAR10, 52_546_438), (IMAGENET, 552_814_086)],
    ids=["CIFAR-10", "ImageNet"],
)
def test_the_released_networks_have_as_many_numbers(form, count):
    """Golden; the forward pass above has their names."""
    assert sum(map(math.prod, openai_unet.wanted(config(form)).values())) == count


def test_shapes_tell_the_network_but_for_its_heads_and_its_pictures(tmp_path):
    path = written(drawn(GUIDED), tmp_path / "model.pt")

    _, shape = read(path, GUIDED, image_size=16)

    assert shape == {
        "channels": 1,
        "image_size": 16,
        "width": 32,
        "mults": [1, 1, 2],
        "blocks": 1,
        "attention": [8, 4],
        "head_channels": 32,
        "groups": 32,
        "dropout": 0.0,
        "resample": "residual",
        "learned_variance": False,
    }
    for asked in ({"head_channels": None}, {"heads": 2}):
        with pytest.raises(
            ConfigError, match="does not say how its attention is divided; give one"
        ):
            read(path, GUIDED, **asked)
    with pytest.raises(CheckpointError, match="--heads 4: attention is over 32 and 64 channels"):
        read(path, GUIDED, heads=4, head_channels=None)
    with pytest.raises(CheckpointError, match="image_size: 6 pixels cannot be halved 2 times"):
        read(path, GUIDED, image_size=6)
    with pytest.raises(CheckpointError, match=r"head_channels: 32 channels, .* no whole number of"):
        read(path, GUIDED, head_channels=5)


def without(*names):
    return lambda state: [state.pop(name) for name in names]


def but(name, tensor):
    return lambda state: state.update({name: tensor})


QKV = "middle_block.1.qkv.weight"
BROKEN = {
    "class-conditional": (
        but("label_emb.weight", torch.ones(10, 128)),
        "is told the class of what",
    ),
    "missing": (without(QKV), f"{QKV} is missing"),
    "another network": (without("time_embed.0.weight"), "missing, so this is no UNet of improved-"),
    "no skip": (
        without("output_blocks.0.0.skip_connection.bias"),
        "skip_connection.bias is missing",
    ),
    "unequal levels": (
        lambda s: [s.pop(name) for name in [*s] if name.startswith("output_blocks.5.")],
        "5 output_blocks, of which 2 double the image; every level",
    ),
    "queries alone": (but(QKV, torch.ones(64, 64, 1)), f"{QKV} is [64, 64, 1], not [192, 64, 1]"),
    "no scale-shift at all": (
        but("input_blocks.1.0.emb_layers.1.weight", torch.ones(32, 128)),
        "input_blocks.1.0.emb_layers.1.weight: the time shifts the channels of blocks, and does",
    ),
    "super-resolution": (
        but("input_blocks.0.0.weight", torch.ones(32, 6, 3, 3)),
        "out.2.weight: 1 channels come out and 6 go in",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_checkpoint_of_something_else_is_refused_in_one_line(tmp_path, case):
    change, message = BROKEN[case]
    state = drawn(GUIDED)
    change(state)

    with refused(CheckpointError, f"{tmp_path}/model.pt: ", message):
        read(written(state, tmp_path / "model.pt"), GUIDED)
