"""Kernels of the backend `lanes` compute their formulas, with the same bits on every processor."""

import dataclasses
import functools
import hashlib
import re
from types import SimpleNamespace

import networks
import numpy as np
import pytest
import torch
from builders import refused, save_classifier
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr
from torch import nn

from rrcm.core import registry
from rrcm.core.errors import BackendError
from rrcm.inference.backends.lanes import NETWORKS, Backend
from rrcm.inference.lanes import kernels, resnet9, squares, winograd
from rrcm.inference.lanes.kernels import dense
from rrcm.inference.lanes.program import Machine, Program, here

HERE = here()
OLD = ("haswell", "+avx2,+fma")  # what other processors have; here they are compiled for as well
WIDTHS = [dataclasses.replace(HERE, lanes=4, registers=32)]
if "x86" in HERE.triple:
    WIDTHS.append(Machine(lanes=8, registers=16, cpu=OLD[0], features=OLD[1], triple=HERE.triple))
SHAPES = {  # what is changed in networks
    "lenet": {},
    "lenet in colour, 20 pixels": {"channels": 3, "image_size": 20},
    "lenet, 24 pixels": {"image_size": 24},  # whose rows are no whole tiles
    "resnet9 in colour": {"stem": 3},
    "vit": {"size": "64x3x4", "patch_size": 2, "final_norm": True},
    "vit in colour, 3 heads, no norm": {"size": "18x2x3", "channels": 3, "image_size": 12},
}


def kind(name):
    return re.match(r"\w+", name)[0]


def test_every_network_with_kernels_is_tested_here():
    assert {kind(name) for name in SHAPES} == {*NETWORKS}


def numbers(*shape, seed=0, scale=1.0):
    """Multiples of 2^-16 in [-scale/2, scale/2), the same with every library."""
    count = int(np.prod(shape))
    words = (np.arange(1, count + 1, dtype=np.uint64) + 7919 * seed) * np.uint64(2654435761)
    words = (words ^ (words >> np.uint64(15))) * np.uint64(2246822519) % np.uint64(2**32)
    whole = (words >> np.uint64(16)).astype(np.float64) / 2**16 - 0.5
    return torch.from_numpy(whole.reshape(shape)) * scale


def fixed(name):
    """A classifier with weights of `numbers`, in float64, at one sigma."""
    network = networks.build(kind(name), classes=10, **SHAPES[name]).eval()
    with torch.no_grad():
        for seed, parameter in enumerate(network.parameters()):
            fan = max(1, parameter[0].numel()) if parameter.dim() > 1 else 4
            parameter.copy_(numbers(*parameter.shape, seed=seed, scale=4 / fan**0.5))
    return registry.load("folding", kind(name)).fold(network.double()).fix(0.5)


def shape(name):
    """Of its images, [C, H, W]."""
    whole = networks.SHAPES[kind(name)] | SHAPES[name]
    return whole["channels"], whole["image_size"], whole["image_size"]


@functools.cache
def build(name, machine=HERE):
    return NETWORKS[kind(name)].build(fixed(name), shape(name), machine)


def pixels(name, images):
    return numbers(images, *shape(name), seed=5, scale=2.0).float()


@pytest.mark.parametrize("name", SHAPES)
def test_scores_are_those_of_the_network(name):
    """In float64, up to the rounding of float32."""
    x = pixels(name, 37)

    scores = build(name).run(x)

    exact = fixed(name).double()(x.double())
    assert 0.5 < exact.std() < 100
    torch.testing.assert_close(scores.double(), exact, rtol=0, atol=3e-5 * float(exact.std()))


@pytest.mark.parametrize(
    ("name", "machine"),
    [  # bits of the others are golden values below
        *((name, machine) for name in SHAPES if "colour" in name for machine in WIDTHS),
        ("lenet, 24 pixels", WIDTHS[-1]),
    ],
    ids=lambda one: one if isinstance(one, str) else f"{one.lanes}x{one.registers}-{one.cpu[:7]}",
)
def test_scores_have_the_same_bits_at_every_width(name, machine):
    """As many lanes and registers as processors have; so votes are equal on all of them."""
    x = pixels(name, 19)

    assert torch.equal(build(name, machine).run(x), build(name).run(x))


@pytest.mark.parametrize(
    ("name", "digest"), [("lenet", "d55eff109761b3ee"), ("vit", "1508a052aef24672")]
)
def test_scores_are_these_on_every_processor(name, digest):
    """Golden values, first computed with AVX-512; constants are exact in float32 or folded."""
    scores = build(name).run(pixels(name, 16))

    assert hashlib.sha256(scores.numpy().tobytes()).hexdigest()[:16] == digest


@pytest.mark.parametrize("name", SHAPES)
def test_a_score_is_the_same_in_every_batch_and_what_is_not_a_number_is_none(name):
    """The engine refuses NaN; one that a maximum swallowed would be a vote."""
    compiled, x = build(name), pixels(name, 66)
    scores = compiled.run(x)
    for images in (1, 63, 65):
        assert torch.equal(compiled.run(x[:images]), scores[:images])
    x[3, 0, 5, 4] = float("nan")

    lost = compiled.run(x).isnan()

    assert lost[3].all()
    assert not lost[:3].any()
    assert not lost[4:].any()


def begun(*, pixels, classes, machine=HERE, **changed):
    """A program, and the buffer that its images are in."""
    program = Program(dataclasses.replace(machine, **changed), pixels=pixels, classes=classes)
    given = program.buffer(pixels)
    program.call(kernels.lanes_of, pixels, to=[given, program.images])
    return program, given


def applied(write, x):
    """``write(code, vector)`` of each number."""
    count = len(x)
    program, buffer = begun(pixels=count, classes=count)

    def each(code, pointers):
        y, given = pointers
        with code.loop(count) as k:
            code.store(write(code, code.load(given, k)), y, k)

    program.constant(torch.zeros(1))
    program.call(each, to=[program.scores, buffer])
    return program.compile().run(x[None])[0]


def test_exp_is_accurate():
    x = -torch.linspace(0, 87, 10_001)[:, None].squeeze()

    y = applied(kernels.exp, x).double()

    assert (y / x.double().exp() - 1).abs().max() < 1.2e-7
    assert applied(kernels.exp, torch.full((16,), -1e30)).max() < 1e-37


def test_gelu_is_accurate():
    """As accurate as PyTorch's, in float32."""
    x = torch.cat([torch.linspace(-8, 8, 10_001), torch.tensor([-1e30, -0.0, 1e30])])

    y = applied(kernels.gelu, x).double()

    exact = x.double() * torch.from_numpy(ndtr(x.double().numpy()))
    scale = torch.maximum(x.double().abs(), torch.tensor(1.0))
    assert ((y - exact).abs() / scale)[:-3].max() < 2e-7
    assert y[-3].abs() < 5e-7
    assert torch.equal(y[-2:], torch.tensor([0.0, 1e30]).double())


@settings(max_examples=12, deadline=None)
@given(
    outputs=st.integers(1, 20),
    inputs=st.integers(1, 20),
    places=st.integers(1, 9),
    registers=st.sampled_from([12, 16, 32]),
    activation=st.sampled_from(["", "relu", "gelu"]),
    residual=st.booleans(),
)
def test_a_product_is_the_product(outputs, inputs, places, registers, activation, residual):
    """Of any size, whatever is left over beside whole tiles, in order of the inputs."""
    layer = dense(inputs, outputs, places=places, activation=activation)
    weight, bias = numbers(outputs, inputs, seed=1), numbers(outputs, seed=2)
    x = numbers(4, places * inputs + 4, seed=3).float()  # the last four: as many as lanes
    sizes = {"pixels": x.shape[1], "classes": places * outputs}
    program, given_ = begun(**sizes, lanes=4, registers=registers)
    rest = program.buffer(places * outputs)
    start = program.constant(numbers(places * outputs, seed=4))
    program.call(kernels.fill, places * outputs, to=[rest, start])
    added = rest if residual else None
    program.product(layer, weight, bias, y=program.scores, x=given_, residual=added)

    y = program.compile().run(x).view(4, places, outputs)

    exact = x[:, :-4].double().view(4, places, inputs) @ weight.T + bias
    if activation:
        exact = {"relu": torch.relu, "gelu": nn.functional.gelu}[activation](exact)
    if residual:
        exact += numbers(places * outputs, seed=4).view(places, outputs)
    torch.testing.assert_close(y.double(), exact, rtol=0, atol=3e-6)


def convolution(channels, outputs, *how, **more):
    layer = nn.Conv2d(channels, outputs, *how, **more, dtype=torch.float64).requires_grad_(False)
    layer.weight.copy_(numbers(*layer.weight.shape, seed=1))
    layer.bias.copy_(numbers(outputs, seed=2))
    return layer


@settings(max_examples=12, deadline=None)
@given(
    outputs=st.integers(1, 9),
    channels=st.integers(1, 5),
    height=st.integers(6, 13),
    tiles=st.integers(1, 3),
    odd=st.booleans(),
    registers=st.sampled_from([12, 16, 32]),
)
def test_a_convolution_is_the_convolution(outputs, channels, height, tiles, odd, registers):
    """Of any size that tiles fit; what pooling leaves over is not read."""
    width = 4 * tiles + 4 + odd
    layer = convolution(channels, outputs, 5)
    sizes = winograd.Convolution(outputs=outputs, channels=channels, size=(height, width))
    assert sizes.is_tiled
    x = numbers(4, height, width, channels, seed=3).float()
    into = int(np.prod(sizes.pooled)) * outputs
    program, given_ = begun(pixels=x[0].numel(), classes=into, lanes=4, registers=registers)
    winograd.convolve(program, sizes, layer, y=program.scores, x=given_)

    y = program.compile().run(x).view(4, *sizes.pooled, outputs)

    exact = nn.functional.max_pool2d(layer(x.double().movedim(-1, 1)), 2).relu().movedim(1, -1)
    torch.testing.assert_close(y.double(), exact, rtol=0, atol=3e-5)


@settings(max_examples=8, deadline=None)
@given(
    outputs=st.integers(1, 9),
    channels=st.integers(1, 5),
    side=st.sampled_from([4, 8, 12]),
    pool=st.booleans(),
    residual=st.booleans(),
    images=st.integers(1, 3),
    registers=st.sampled_from([12, 16, 32]),
)
def test_squares_are_the_convolution(outputs, channels, side, pool, residual, images, registers):
    """Of one or more images at once, padded, pooled and beside a shortcut."""
    layer = convolution(channels, outputs, 3, padding=1)
    pooled = side // 2 if pool else side
    into = (images, pooled + 2, pooled + 2, outputs)
    x = nn.functional.pad(numbers(4, images, side, side, channels, seed=3), (0, 0, 1, 1, 1, 1))
    beside = nn.functional.pad(numbers(4, *into, seed=4)[:, :, 1:-1, 1:-1], (0, 0, 1, 1, 1, 1))
    pixels = torch.cat([x.flatten(1), beside.flatten(1)], dim=1).float()
    places = {"pixels": pixels.shape[1], "classes": int(np.prod(into))}
    program, given_ = begun(**places, lanes=4, registers=registers)
    y = program.buffer(program.classes)
    rest = program.code.within(given_, x[0].numel())
    part = SimpleNamespace(conv=layer, pool=pool)
    added = squares.Images(rest, pooled, images) if residual else None
    squares.convolve(program, part, squares.Images(given_, side, images), to=y, residual=added)
    program.call(copied, program.classes, to=[program.scores, y])

    found = program.compile().run(pixels).view(4, *into)

    exact = nn.functional.conv2d(x.flatten(0, 1).movedim(-1, 1), layer.weight, layer.bias)
    exact = (nn.functional.max_pool2d(exact, 2) if pool else exact).relu().movedim(1, -1)
    exact = exact.unflatten(0, (4, images)) + residual * beside[:, :, 1:-1, 1:-1]
    torch.testing.assert_close(found[:, :, 1:-1, 1:-1].double(), exact, rtol=0, atol=3e-5)
    found[:, :, 1:-1, 1:-1] = 0
    assert not found.any()  # the border


def copied(code, count, pointers):
    y, x = pointers
    with code.loop(count) as k:
        code.store(code.load(x, k), y, k)


def test_what_it_does_not_run_is_refused(tmp_path):
    save_classifier(tmp_path, "a-run")
    asked = {"sigma": 0.5, "device": "cpu", "calibration": None}

    with refused(BackendError, "lanes offers fp32, not int8; torch has bf16, onnx has fp16"):
        Backend(tmp_path, "a-run", precision="int8", **asked)
    config = tmp_path / "models/a-run/config.json"
    good = config.read_text()
    config.write_text(good.replace('"architecture": "vit"', '"architecture": "resnet"'))
    single = f"networks of {', '.join(NETWORKS)}, and ensembles of them"
    with refused(BackendError, "models/a-run", single):
        Backend(tmp_path, "a-run", precision="fp32", **asked)
    with refused(
        BackendError, "ResNet-9 on images whose sides are a multiple of 32 pixels, not 28"
    ):
        resnet9.build(fixed("resnet9 in colour"), (3, 28, 28), HERE)
    config.write_text(good.replace('"image_size": 8', '"image_size": 2'))
    with refused(BackendError, "models/a-run", "images of 16 numbers or more"):
        Backend(tmp_path, "a-run", precision="fp32", **asked)
