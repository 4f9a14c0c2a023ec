"""The vision transformer is the paper's: its size, its equations, its names on disk."""

import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F
from helpers import MODEL
from torch import nn

from rrcm.core import schema
from rrcm.core.errors import ConfigError
from rrcm.models.networks import vit
from rrcm.models.trained.base import classifier

TINY = schema.parse(MODEL.shape, vit.Config, where="tests/mini.yaml")
IMAGENET, CIFAR = {"image_size": 224, "patch_size": 16}, {"image_size": 32, "patch_size": 4}


def shape(size, projector_width=2048, **image):
    return vit.Config(
        size=size,
        channels=3,
        position_std=0.02,
        init="pytorch",
        projector_width=projector_width,
        projector_dim=256,
        **image,
    )


def count(*modules):
    return sum(p.numel() for module in modules for p in module.parameters())


@pytest.fixture
def encoder():
    torch.manual_seed(0)
    return vit.Encoder(TINY).eval()


@pytest.mark.parametrize(
    ("size", "image", "parameters", "at_2048", "at_4096"),
    [  # counted by hand: a block has 12 d^2 + 10 d
        ("s", IMAGENET, 19_401_728, 25_177_088, 39_341_056),
        ("b", IMAGENET, 85_771_776, 92_071_424, 106_759_680),
        ("b_deep", IMAGENET, 170_798_592, 177_098_240, 191_786_496),
        ("b", CIFAR, 85_117_440, 91_417_088, 106_105_344),
    ],
)
def test_parameters_are_as_many_as_the_paper_s(size, image, parameters, at_2048, at_4096):
    """25M, 90M (loosely) and 177M are encoder and projector, at a hidden width of 2048."""
    with torch.device("meta"):
        encoder = vit.Encoder(shape(size, **image))
        narrow, wide = (vit.Projector(shape(size, width, **image)) for width in (2048, 4096))

    assert count(encoder) == parameters
    assert count(encoder, narrow) == at_2048
    assert count(encoder, wide) == at_4096


def test_names_and_shapes_are_those_of_the_reference_checkpoints():
    d, h, p, tokens = 64, TINY.projector_width, TINY.patch_size, 2 + (8 // 4) ** 2
    expected = {"cls_token": [1, 1, d], "pos_embed": [1, tokens, d]}
    expected |= {"patch_embed.proj.weight": [d, 1, p, p], "patch_embed.proj.bias": [d]}
    for i in range(4):
        for norm in ("norm1", "norm2"):
            expected |= {f"blocks.{i}.{norm}.{part}": [d] for part in ("weight", "bias")}
        expected |= {
            f"blocks.{i}.attn.qkv.weight": [3 * d, d],
            f"blocks.{i}.attn.proj.weight": [d, d],
            f"blocks.{i}.attn.proj.bias": [d],
            f"blocks.{i}.mlp.fc1.weight": [4 * d, d],
            f"blocks.{i}.mlp.fc1.bias": [4 * d],
            f"blocks.{i}.mlp.fc2.weight": [d, 4 * d],
            f"blocks.{i}.mlp.fc2.bias": [d],
        }
    expected |= {"norm.weight": [d], "norm.bias": [d]}
    projection = {"0.weight": [h, d], "3.weight": [h, h], "6.weight": [TINY.projector_dim, h]}
    for i in (1, 4):
        parts = ("weight", "bias", "running_mean", "running_var")
        projection |= {f"{i}.{part}": [h] for part in parts} | {f"{i}.num_batches_tracked": []}

    def shapes(module):
        return {name: [*tensor.shape] for name, tensor in module.state_dict().items()}

    assert shapes(vit.Encoder(TINY)) == expected
    assert shapes(vit.Projector(TINY)) == projection


def test_encoder_is_its_equations(encoder):
    """Pre-norm blocks on [cls, time, patches], written naively from the checkpoints' names."""
    w = {name: tensor.double() for name, tensor in encoder.state_dict().items()}
    x, sigma = torch.rand(2, 1, 8, 8).double(), torch.tensor([0.3, 1.7]).double()
    d, heads, t = 64, 4, 2 * sigma

    def norm(h, name):
        h = (h - h.mean(-1, keepdim=True)) / torch.sqrt(
            h.var(-1, correction=0, keepdim=True) + 1e-5
        )
        return h * w[f"{name}.weight"] + w[f"{name}.bias"]

    def attend(h, name):
        q, k, v = (h @ w[f"{name}.qkv.weight"].T).view(2, -1, 3, heads, d // heads).unbind(2)
        a = (torch.einsum("bnhc, bmhc -> bhnm", q, k) / math.sqrt(d / heads)).softmax(dim=-1)
        h = torch.einsum("bhnm, bmhc -> bnhc", a, v).flatten(2)
        return h @ w[f"{name}.proj.weight"].T + w[f"{name}.proj.bias"]

    def mlp(h, name):
        h = h @ w[f"{name}.fc1.weight"].T + w[f"{name}.fc1.bias"]
        h = h * (1 + torch.erf(h / math.sqrt(2))) / 2  # the exact GELU
        return h @ w[f"{name}.fc2.weight"].T + w[f"{name}.fc2.bias"]

    scaled = (2 * x - 1) / (t**2 + 0.25).sqrt().view(-1, 1, 1, 1)
    kernel = w["patch_embed.proj.weight"]
    patches = F.conv2d(scaled, kernel, w["patch_embed.proj.bias"], stride=4).flatten(2).mT
    cls, time = w["cls_token"].expand(2, -1, -1), vit.time_embedding(t, d).double()[:, None]
    h = torch.cat([cls, time, patches], dim=1) + w["pos_embed"]
    for i in range(4):
        h = h + attend(norm(h, f"blocks.{i}.norm1"), f"blocks.{i}.attn")
        h = h + mlp(norm(h, f"blocks.{i}.norm2"), f"blocks.{i}.mlp")

    torch.testing.assert_close(encoder.double()(x, sigma), norm(h, "norm")[:, 0])


def plainly(encoder, x, sigma):
    """Every block for every token, as timm has them."""
    seen = []
    hook = encoder.blocks[0].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    encoder(x, sigma)
    hook.remove()
    (tokens,) = seen
    for block in encoder.blocks:
        tokens = block(tokens)
    return encoder.norm(tokens[:, 0])


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("final_norm", [False, True])
def test_leaving_tokens_out_of_the_last_block_changes_nothing(recompute, final_norm):
    """Values and gradients of all parameters and of the input, in float64."""
    torch.manual_seed(0)
    encoder = vit.Encoder(dataclasses.replace(TINY, size="24x3x4"), final_norm=final_norm).double()
    encoder.recompute = recompute
    x, sigma = torch.rand(3, 1, 8, 8).double().requires_grad_(), torch.tensor([0.1, 0.5, 1.0])
    weigh = torch.randn(3, 24).double()

    def grown(function):
        y = function(encoder, x, sigma)
        parameters = dict(encoder.named_parameters())
        grads = torch.autograd.grad((weigh * y).sum(), [x, *parameters.values()])
        return dict(zip(["y", "x", *parameters], [y, *grads], strict=True))

    torch.testing.assert_close(grown(vit.Encoder.__call__), grown(plainly), atol=1e-12, rtol=1e-10)


FINE = dataclasses.replace(TINY, size="24x3x4", patch_size=2)  # 4 x 4 patches


@pytest.fixture
def fine():
    torch.manual_seed(0)
    return vit.Encoder(FINE).double()


@pytest.mark.parametrize("recompute", [False, True])
def test_what_is_not_hidden_is_encoded_as_if_there_were_nothing_else(fine, recompute):
    """Naively, image by image: the tokens that enter the first block, without the hidden ones."""
    fine.recompute = recompute
    x, sigma = torch.rand(3, 1, 8, 8).double(), torch.tensor([0.1, 0.5, 1.0]).double()
    hidden = torch.tensor([[15, 0, 7], [1, 2, 3], [4, 12, 9]])

    found = fine(x, sigma, hidden)

    seen = []
    with fine.blocks[0].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0])):
        fine(x, sigma)
    for i in range(3):
        kept = [n for n in range(18) if n - 2 not in hidden[i].tolist()]
        tokens = seen[0][i : i + 1, kept]
        for block in fine.blocks:
            tokens = block(tokens)
        torch.testing.assert_close(found[i : i + 1], fine.norm(tokens))


def test_predictor_is_its_equation():
    """Each block of each image from what was seen and the places asked for, one at a time."""
    torch.manual_seed(0)
    predictor = vit.Predictor(FINE, width=8, depth=2, heads=2).double()
    seen = torch.randn(2, 5, 24).double()
    visible = torch.tensor([[0, 3, 5, 6, 15], [1, 2, 8, 9, 10]])
    asked = torch.tensor([[[1, 2], [7, 11], [1, 2]], [[0, 4], [14, 15], [5, 6]]])

    found = predictor(seen, visible, asked)

    assert (predictor.side, found.shape) == (4, (2, 3, 2, 24))
    for i in range(2):
        for k in range(3):
            context = predictor.embed(seen[i]) + predictor.positions[visible[i]]
            unknown = predictor.mask_token + predictor.positions[asked[i, k]]
            tokens = torch.cat([context, unknown])[None]
            for block in predictor.blocks:
                tokens = block(tokens)
            expected = predictor.project(predictor.norm(tokens[0, -2:]))
            torch.testing.assert_close(found[i, k], expected)


def test_xavier_is_moco_s():
    """Uniform within a bound of its own for each matrix; a uniform's deviation is bound / sqrt 3.

    Source: Chen et al. (2021), arXiv:2104.02057, and Glorot & Bengio (2010).
    """
    torch.manual_seed(0)
    d, p, c = 96, 8, 3
    cfg = vit.Config(
        size=f"{d}x2x4",
        image_size=32,
        channels=c,
        patch_size=p,
        position_std=0.02,
        init="xavier",
        projector_width=8,
        projector_dim=8,
    )
    encoder = vit.Encoder(cfg)
    matrices = {"patch": (encoder.patch_embed.proj.weight, math.sqrt(6 / (p * p * c + d)))}
    for i, block in enumerate(encoder.blocks):
        for part, matrix in zip("qkv", block.attn.qkv.weight.chunk(3), strict=True):
            matrices[f"{part}{i}"] = matrix, math.sqrt(6 / (2 * d))
        matrices[f"proj{i}"] = block.attn.proj.weight, math.sqrt(6 / (2 * d))
        matrices[f"fc1 {i}"] = block.mlp.fc1.weight, math.sqrt(6 / (5 * d))
        matrices[f"fc2 {i}"] = block.mlp.fc2.weight, math.sqrt(6 / (5 * d))

    for name, (matrix, bound) in matrices.items():
        assert 0.98 * bound < matrix.abs().max().item() <= bound, name
        assert matrix.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.03), name
    biases = [t for n, t in encoder.named_parameters() if n.endswith("bias")]
    assert not any(bias.any() for bias in biases)
    assert 0 < encoder.cls_token.abs().max() < 1e-5
    assert encoder.pos_embed.std().item() == pytest.approx(0.02, rel=0.05)


def test_time_embedding_is_its_equation():
    times = [0.002, 0.5, 1.0, 2.0, 80.0]

    expected = [
        [f(250 * math.log(t) * 1e-4 ** (k / 32)) for f in (math.cos, math.sin) for k in range(32)]
        for t in times
    ]

    embedded = vit.time_embedding(torch.tensor(times, dtype=torch.float64), 64)
    torch.testing.assert_close(embedded, torch.tensor(expected), atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"size": "b_deap"},
            "size: no 'b_deap', only tiny, s, b, b_deep, or WIDTHxDEPTHxHEADS such as 48x2x4. "
            "Did you mean 'b_deep'?",
        ),
        ({"size": "48x2x5"}, "size: width 48 must be even and a multiple of 5 heads"),
        ({"size": "15x2x5"}, "size: width 15 must be even and a multiple of 5 heads"),
        ({"patch_size": 3}, "patch_size: 3 does not divide image_size 8"),
    ],
)
def test_impossible_shapes_are_refused(changed, message):
    with pytest.raises(ConfigError) as error:
        dataclasses.replace(TINY, **changed)

    assert str(error.value) == message


class Spy(nn.Module):
    """An encoder that keeps the sigma it is given."""

    head_init = "uniform"

    def forward(self, x, sigma):
        self.sigma = sigma
        return x.flatten(1)


@pytest.mark.parametrize(
    ("condition", "told"),
    [
        ("exact", [0.25, 0.5, 1.0]),
        ("nearest", [0.49271 / 2, 0.96542 / 2, 2.00365 / 2]),  # on the paper's 81-point grid
    ],
)
def test_condition_decides_which_sigma_the_encoder_is_told(condition, told):
    network = classifier.Classifier(spy := Spy(), width=64, classes=3, condition=condition)

    def tell(sigma):
        network(torch.rand(2, 1, 8, 8), torch.tensor(sigma))
        return spy.sigma.item()

    assert [tell(sigma) for sigma in (0.25, 0.5, 1.0)] == pytest.approx(told, abs=3e-6)


def test_an_untrained_classifier_starts_near_uniform():
    torch.manual_seed(0)
    network = classifier.build(MODEL, classes=10, condition="exact", final_norm=True)

    scores = network(torch.rand(4, 1, 8, 8), torch.tensor(0.5))

    assert scores.shape == (4, 10)
    assert 0 < scores.abs().max() < 1e-2


def test_attention_without_the_fused_kernel_is_the_same_function(encoder, monkeypatch):
    """Values and gradients, in float64; bfloat16 on a CPU takes this way."""
    encoder, found = encoder.double(), {}
    size = TINY.image_size
    x = torch.rand(3, TINY.channels, size, size, generator=torch.Generator().manual_seed(1))
    for fused in (True, False):
        monkeypatch.setattr(vit, "_fused_is_fast", lambda x, fused=fused: fused)
        encoder.zero_grad()
        y = encoder(x.double(), torch.tensor(0.5, dtype=torch.float64))
        y.square().sum().backward()
        found[fused] = [y.detach(), *(p.grad.clone() for p in encoder.parameters())]

    for one, other in zip(found[True], found[False], strict=True):
        torch.testing.assert_close(one, other, atol=1e-12, rtol=1e-9)


def test_bfloat16_on_a_cpu_does_not_use_the_fused_kernel(encoder, monkeypatch):
    """Its backward pass is many times slower there."""
    called = []
    fused = F.scaled_dot_product_attention
    monkeypatch.setattr(
        F, "scaled_dot_product_attention", lambda *a, **k: called.append(1) or fused(*a, **k)
    )
    x = torch.rand(2, TINY.channels, TINY.image_size, TINY.image_size)

    with torch.autocast("cpu", torch.bfloat16):
        encoder(x, torch.tensor(0.5))
    assert not called
    encoder(x, torch.tensor(0.5))
    assert len(called) == len(encoder.blocks)
