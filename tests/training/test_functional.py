"""``rrcm.losses``: the methods' losses in a loop of one's own, with a network that takes pixels."""

import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from builders import refused
from torch import nn

import rrcm
from rrcm.core.errors import ConfigError
from rrcm.noise import levels
from rrcm.training.engine.draws import Draws

SIGMA, B, K = 0.5, 6, 3
X = torch.rand(B, 1, 2, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
Y = torch.tensor([0, 1, 2, 0, 1, 2])
CONSISTENCY = {"lbd": 10.0, "eta": 0.5, "m": 2, "measure": "kl"}


class Recorded(nn.Module):
    """A linear network that remembers what it was called with."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, K, dtype=torch.float64)
        self.seen: list[torch.Tensor] = []

    def forward(self, x):
        self.seen.append(x.detach())
        return self.layer(x.flatten(1))


def network() -> Recorded:
    torch.manual_seed(0)
    return Recorded()


def test_consistency_is_the_equation():
    net, lbd, eta = network(), 10.0, 0.5

    loss = rrcm.losses.loss("consistency", net, X, Y, sigma=SIGMA, constants=CONSISTENCY)

    p = [F.softmax(net.layer(x.flatten(1)), 1).detach() for x in net.seen[0].chunk(2)]
    for i in range(B):
        mean = sum(one[i] for one in p) / 2
        expected = sum(-math.log(one[i, Y[i]]) for one in p) / 2
        expected += lbd / 2 * sum(float((mean * (mean / one[i]).log()).sum()) for one in p)
        expected -= eta * float((mean * mean.log()).sum())
        assert loss[i].item() == pytest.approx(expected, rel=1e-12)


def test_a_loss_trains_and_follows_the_seed():
    net = network()
    found = []
    for seed in (5, 5, 6):
        torch.manual_seed(seed)
        found.append(rrcm.losses.loss("stability", net, X, Y, sigma=SIGMA, constants={"lbd": 2.0}))
    found[0].mean().backward()

    assert found[0].shape == (B,) and found[0].isfinite().all()
    assert torch.equal(found[0], found[1]) and not torch.equal(found[0], found[2])
    assert net.layer.weight.grad.abs().sum() > 0 and net.training


def test_probabilities_are_labels_and_objects_have_logits():
    net, one_hot = network(), F.one_hot(Y, K).double()
    hugging = nn.Module()
    hugging.forward = lambda x: SimpleNamespace(logits=net(x))

    found = []
    for called, labels in ((net, Y), (net, one_hot), (hugging, Y)):
        torch.manual_seed(2)
        found.append(
            rrcm.losses.loss("consistency", called, X, labels, sigma=SIGMA, constants=CONSISTENCY)
        )

    assert torch.allclose(found[0], found[1], rtol=1e-12) and torch.equal(found[0], found[2])


def test_mistakes_are_named():
    for method, constants, words in (
        ("consistency", CONSISTENCY | {"m": 1}, "m: must be at least 2, got 1"),
        ("consistency", {"lbd": 1.0}, "consistency"),
        ("consistancy", CONSISTENCY, "Did you mean 'consistency'?"),
    ):
        with refused(ConfigError, words):
            rrcm.losses.loss(method, network(), X, Y, sigma=SIGMA, constants=constants)


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 5, dtype=torch.float64)

    def forward(self, x, sigma):
        return self.layer(x.flatten(1)) * (1 + sigma[:, None])


def test_representation_consistency_is_the_pretraining_loss(monkeypatch: pytest.MonkeyPatch):
    torch.manual_seed(3)
    encoder, projector = Encoder(), nn.Linear(5, 4, dtype=torch.float64)
    target = nn.ModuleDict({"encoder": Encoder(), "projector": nn.Linear(5, 4).double()})
    views = tuple(torch.rand(3, B, 1, 2, 2, dtype=torch.float64))
    grid = levels.karras_grid(8, t_min=0.002, t_max=80.0, rho=7.0)
    monkeypatch.setattr("rrcm.training.functional._draws", lambda: Draws(4, 0))

    loss = rrcm.losses.representation_consistency(
        encoder, projector, target, views, levels=grid, weight=2.0
    )

    draw = Draws(4, 0)
    n, z = draw.pair(8, None), draw.normal(views[2])
    end, noisier, cleaner = (float(grid[k]) / 2 for k in (-1, n, n + 1))

    def encoded(network, x, sigma):
        return network(x + sigma * z, torch.full((B,), sigma, dtype=torch.float64))

    def nce(a, b):
        a, b = F.normalize(a, dim=1), F.normalize(b, dim=1)
        return F.cross_entropy(a @ b.T / 0.2, torch.arange(B), reduction="none")

    anchor = projector(encoded(encoder, views[0], end))
    positive = target["projector"](encoded(target["encoder"], views[1], end))
    expected = nce(anchor, positive) + 2 * nce(
        encoded(encoder, views[2], noisier), encoded(encoder, views[2], cleaner)
    )
    assert torch.allclose(loss, expected, rtol=1e-6)
    loss.mean().backward()
    assert encoder.layer.weight.grad is not None and target["encoder"].layer.weight.grad is None
