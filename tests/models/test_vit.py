"""The vision transformer is the paper's: its size, its equations, its names on disk."""

import dataclasses
import math

import pytest
import torch
from helpers import MODEL
from torch import nn

from rrcm.core import schema
from rrcm.models.networks import vit
from rrcm.models.trained.base import classifier
from rrcm.models.trained.base.network import Projector

TINY = schema.parse(MODEL.shape, vit.Config, where="tests/mini.yaml")
IMAGENET, CIFAR = {"image_size": 224, "patch_size": 16}, {"image_size": 32, "patch_size": 4}


def shape(size, projector_width=2048, **image):
    widths = {"projector_width": projector_width, "projector_dim": 256}
    return dataclasses.replace(TINY, size=size, channels=3, **widths, **image)


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
        narrow, wide = (Projector(shape(size, width, **image)) for width in (2048, 4096))

    assert count(encoder) == parameters
    assert count(encoder, narrow) == at_2048
    assert count(encoder, wide) == at_4096


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


@pytest.mark.parametrize(("recompute", "final_norm"), [(False, True), (True, False)])
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


def test_what_is_not_hidden_is_encoded_as_if_there_were_nothing_else(fine):
    """Naively, image by image: the tokens that enter the first block, without the hidden ones."""
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
    cfg = shape(f"{d}x2x4", image_size=32, patch_size=p)
    encoder = vit.Encoder(dataclasses.replace(cfg, init="xavier", position_std=0.02))
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


def test_attention_without_the_fused_kernel_is_the_same_function(encoder):
    """Values and gradients, in float64; bfloat16 on a CPU takes this way."""
    encoder, found = encoder.double(), {}
    size = TINY.image_size
    x = torch.rand(3, TINY.channels, size, size, generator=torch.Generator().manual_seed(1))
    for fused in (True, False):
        for block in encoder.blocks:
            block.attn.fused_attn = fused
        encoder.zero_grad()
        y = encoder(x.double(), torch.tensor(0.5, dtype=torch.float64))
        y.square().sum().backward()
        found[fused] = [y.detach(), *(p.grad.clone() for p in encoder.parameters())]

    for one, other in zip(found[True], found[False], strict=True):
        torch.testing.assert_close(one, other, atol=1e-12, rtol=1e-9)
