"""``rrcm.losses``: the methods' losses in a loop of one's own, with a network that takes pixels."""

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
from rrcm.training.objectives import rrcm as objective
from rrcm.training.shared import losses

SIGMA, B, K = 0.5, 6, 3
X = torch.rand(B, 1, 2, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
Y = torch.tensor([0, 1, 2, 0, 1, 2])
CONSISTENCY = {"lbd": 10.0, "eta": 0.5, "m": 2, "measure": "kl"}


def plain() -> nn.Sequential:
    """A linear network of pixels."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(4, K, dtype=torch.float64))


def test_a_loss_is_that_of_the_method(monkeypatch: pytest.MonkeyPatch):
    net = plain()
    monkeypatch.setattr("rrcm.training.functional._draws", lambda: Draws(4, 0))

    loss = rrcm.losses.loss("consistency", net, X, Y, sigma=SIGMA, constants=CONSISTENCY)

    told = {"sigma": torch.tensor(SIGMA), "draw": Draws(4, 0), "done": 1.0}
    cfg = losses.Consistency(**CONSISTENCY)
    assert torch.equal(loss, losses.consistency(lambda x, sigma: net(x), X, Y, cfg=cfg, **told))


def test_a_loss_trains_and_follows_the_seed():
    net = plain()
    found = []
    for seed in (5, 5, 6):
        torch.manual_seed(seed)
        found.append(rrcm.losses.loss("stability", net, X, Y, sigma=SIGMA, constants={"lbd": 2.0}))
    found[0].mean().backward()

    assert found[0].shape == (B,) and found[0].isfinite().all()
    assert torch.equal(found[0], found[1]) and not torch.equal(found[0], found[2])
    assert net[1].weight.grad.abs().sum() > 0 and net.training


def test_probabilities_are_labels_and_objects_have_logits():
    net, one_hot = plain(), F.one_hot(Y, K).double()
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
            rrcm.losses.loss(method, plain(), X, Y, sigma=SIGMA, constants=constants)


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

    cfg = objective.Config(
        tau_contrast=0.2, tau_consistency=0.2, consistency=2.0, symmetric=False, align=[], ema=0.0
    )
    terms, _ = objective.loss(
        nn.ModuleDict({"encoder": encoder, "projector": projector}),
        target,
        dict(zip(objective.VIEWS, views, strict=True)),
        levels=grid,
        weights=None,
        draw=Draws(4, 0),
        cfg=cfg,
    )
    assert torch.equal(loss, sum(terms.values()))
    loss.mean().backward()
    assert encoder.layer.weight.grad is not None and target["encoder"].layer.weight.grad is None
