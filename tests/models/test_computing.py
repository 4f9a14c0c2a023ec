"""How a network is computed changes its cost and its rounding, not what it is."""

import dataclasses

import pytest
import torch
from helpers import MODEL, PRETRAIN
from torch import nn

from rrcm.models.trained.base import classifier
from rrcm.noise import units
from rrcm.training.engine.computing import Computed, prepare

FP32 = PRETRAIN.compute
CALLS = {
    "plain": FP32,
    "recompute": dataclasses.replace(FP32, recompute=True),
    "bf16": dataclasses.replace(FP32, precision="bf16"),
    "compile": dataclasses.replace(FP32, compile=True),
}


def computed(name):
    """Scores, gradients and state of a small classifier under one way to compute it."""
    torch.manual_seed(0)
    network = classifier.build(MODEL, classes=4, condition="exact", final_norm=True)
    nn.init.normal_(network.head.weight)
    prepare(network.encoder, CALLS[name], name="vit")
    names = [*network.state_dict()]
    called = Computed(network.train(), CALLS[name])
    y = called(torch.rand(8, 1, 8, 8), torch.tensor(0.5))
    y.square().sum().backward()

    assert [*network.state_dict()] == names
    assert {p.dtype for p in network.parameters()} == {torch.float32} == {y.dtype}
    return {"y": y.detach()} | {n: p.grad for n, p in network.named_parameters()}, called


@pytest.mark.parametrize("name", ["recompute", pytest.param("compile", marks=pytest.mark.slow)])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # within torch.compile
def test_the_same_numbers_at_another_cost(name):
    torch.testing.assert_close(computed(name)[0], computed("plain")[0], rtol=1e-3, atol=1e-3)


def test_bfloat16_rounds_products_only():
    (plain, fused), (rounded, narrow) = computed("plain"), computed("bf16")

    kinds = [{block.attn.fused_attn for block in c.module.encoder.blocks} for c in (fused, narrow)]
    assert kinds == [{True}, {False}]
    for name, gradient in plain.items():
        error = (rounded[name] - gradient).norm() / gradient.norm()
        assert 0 < error < 0.05, name


def test_passes_are_counted_in_training_and_a_backward_one_twice():
    _, called = computed("plain")
    assert (called.taken(), called.taken()) == ((24, 8), (0, 0))  # 8 rows

    x, sigma = torch.rand(5, 1, 8, 8), units.to_sigma(torch.tensor(1.0))
    with torch.no_grad():
        called(x, sigma)
        called.eval()
        called(x, sigma)
    assert called.taken() == (5, 0)
    called(x, sigma)  # an attack
    assert called.taken() == (10, 5)
