"""Pre-training objectives: their equations, and what holds for each of them."""

import dataclasses
import re

import pytest
import torch
import unlabelled
from helpers import descent
from torch import nn
from unlabelled import SIGMAS, B, another, terms, valid, views

from rrcm.core import registry
from rrcm.core.errors import ConfigError
from rrcm.training.engine import distributed
from rrcm.training.engine.draws import Draws
from rrcm.training.objectives import moco_noise, rrcm
from rrcm.training.shared.losses import info_nce

NAMES = registry.names("objectives")
CFG = rrcm.Config(
    tau_contrast=0.3, tau_consistency=0.5, consistency=1.5, symmetric=False, align=[], ema=0.0
)
NOISE = moco_noise.Config(tau=0.3, levels=[0.0, 0.5, 40.0])


def naive(networks, cfg):
    """Equation 7 in separate passes: four, or six."""
    online, target = networks
    x1, x2, x = views(rrcm).values()
    draw = Draws(0, 0)
    if cfg.align:
        noisier, cleaner = cfg.align[draw.integer(len(cfg.align))] / 2, SIGMAS[-1]
    else:
        n = draw.integer(len(SIGMAS) - 1)
        noisier, cleaner = SIGMAS[n], SIGMAS[n + 1]
    z = draw.normal(x)

    def f(network, x, sigma):
        return network(x + sigma * z, torch.full((B,), sigma, dtype=torch.float64))

    def p(network, x):
        return network["projector"](f(network["encoder"], x, SIGMAS[-1]))

    contrast = info_nce(p(online, x1), p(target, x2).detach(), tau=0.3)
    if cfg.symmetric:
        contrast = (contrast + info_nce(p(online, x2), p(target, x1).detach(), tau=0.3)) / 2
    teacher = target["cleaner"] if cfg.ema else online["encoder"]
    cleaner = f(teacher, x, cleaner).detach()
    return contrast + 1.5 * info_nce(f(online["encoder"], x, noisier), cleaner, tau=0.5)


def gradients(loss, online):
    parameters = [*online.parameters()]
    return torch.autograd.grad(loss.sum(), parameters, allow_unused=True, materialize_grads=True)


@pytest.mark.parametrize(
    "changed", [{}, {"symmetric": True}, {"align": [0.3, 3.0]}, {"align": [1.0], "ema": 0.5}]
)
def test_loss_is_its_equation_with_its_gradient(changed):
    cfg = dataclasses.replace(CFG, **changed)
    networks = unlabelled.networks(rrcm, cfg)

    loss, expected = sum(terms(rrcm, networks, cfg).values()), naive(networks, cfg)

    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(*(gradients(each, networks[0]) for each in (loss, expected)))


def test_moco_with_noise_is_its_equation_with_its_gradient():
    """Image by image, with InfoNCE of all against all."""
    networks = unlabelled.networks(moco_noise, NOISE)
    online, target = networks
    both = [*views(moco_noise).values()]
    draw = Draws(0, 0)
    u, z = draw.uniform(both[0]), draw.normal(both[0])
    noisy = [torch.empty_like(view) for view in both]
    for i in range(B):
        sigma = NOISE.levels[int(3 * u[i])] / 2
        for old, new in zip(both, noisy, strict=True):
            new[i] = old[i] + sigma * z[i]

    def h(network, x):
        return network["projector"](network["encoder"](x, SIGMAS[-1]))

    (a, b), (c, d) = ([h(network, x) for x in noisy] for network in (online, target))
    expected = (info_nce(a, d.detach(), tau=0.3) + info_nce(b, c.detach(), tau=0.3)) / 2
    loss = terms(moco_noise, networks, NOISE)["contrast"]

    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(*(gradients(each, online) for each in (loss, expected)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda: dataclasses.replace(CFG, align=[0.5, 0.0]), r"align: .* got \[0.5, 0.0\]"),
        (lambda: dataclasses.replace(CFG, tau_contrast=0.0), "tau_contrast: must be positive"),
        (lambda: dataclasses.replace(CFG, ema=1.0), r"ema: a momentum in \[0, 1\), got 1.0"),
        (lambda: dataclasses.replace(NOISE, levels=[]), r"levels: at least one .* got \[\]"),
    ],
)
def test_constants_that_mean_nothing_are_refused(change, message):
    with pytest.raises(ConfigError, match=message):
        change()


def shared(objective, networks, cfg, monkeypatch):
    """The terms of the whole batch, as two processes that share it compute them."""

    def one(rank, answers):
        """The loss of one process; what it gives to the others, or gets instead of its own."""
        given = []

        def gather(x):
            given.append(x)
            return torch.cat([x, x]) if answers is None else answers[len(given) - 1]

        with monkeypatch.context() as patch:
            patch.setattr(distributed, "rank", lambda: rank)
            patch.setattr(distributed, "gather", gather)
            rows = slice(3 * rank, 3 * rank + 3)
            return given, terms(objective, networks, cfg, rows=rows)

    given = [one(rank, None)[0] for rank in range(2)]
    answers = [torch.cat(both) for both in zip(*given, strict=True)]
    assert not any(answer.requires_grad for answer in answers)
    parts = [one(rank, answers)[1] for rank in range(2)]
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


@pytest.mark.parametrize(
    ("name", "changed"), [*((name, {}) for name in NAMES), ("rrcm", {"symmetric": True})]
)
def test_processes_that_share_a_batch_compute_the_loss_of_one(name, changed, monkeypatch):
    """Each has half the rows; what it contrasts with is gathered, without a gradient."""
    objective = registry.load("objectives", name)
    cfg = objective.Config(**valid(objective) | changed)
    networks = unlabelled.networks(objective, cfg)
    for network in networks:  # without BatchNorm, whose statistics are another file's affair
        if "projector" in network:
            network["projector"] = nn.Linear(8, 5, dtype=torch.float64)

    torch.testing.assert_close(
        shared(objective, networks, cfg, monkeypatch), terms(objective, networks, cfg)
    )


@pytest.mark.parametrize("name", NAMES)
def test_objective(name):
    """The contract of an objective: a paper, terms per example, gradients where they belong.

    Every online parameter gets one: processes that share a batch wait for all of them.
    """
    objective = registry.load("objectives", name)
    cfg = objective.Config(**valid(objective))
    networks = online, target = unlabelled.networks(objective, cfg)

    history = descent(
        online, lambda: sum(terms(objective, networks, cfg).values()), lr=0.05, steps=20
    )
    losses = terms(objective, networks, cfg)

    assert re.search(r"\(20\d\d\)", objective.__doc__), "say which paper"
    assert all(term.shape == (B,) for term in losses.values()), "the trainer averages"
    assert history[-1] < history[0]
    assert all(p.grad is None for p in target.parameters())
    assert all(p.grad is not None and p.grad.any() for p in online.parameters())
    assert {source for source, _ in objective.targets(cfg).values()} <= online.keys()


@pytest.mark.parametrize("name", NAMES)
def test_every_knob_of_an_objective_turns_something(name):
    objective = registry.load("objectives", name)

    def loss(**changed):
        cfg = objective.Config(**valid(objective) | changed)
        networks = unlabelled.networks(objective, cfg)
        return sum(sum(terms(objective, networks, cfg, step=step).values()) for step in range(3))

    before = loss()
    for knob in valid(objective):
        changed = loss(**{knob: another(objective, knob)})
        assert not torch.allclose(before, changed, rtol=1e-9), f"{knob} does nothing"


@pytest.mark.parametrize("name", NAMES)
def test_two_images_that_are_all_the_same_have_a_loss(name):
    """The smallest batch, of constant images: finite, with finite gradients."""
    objective = registry.load("objectives", name)
    cfg = objective.Config(**valid(objective))
    networks = unlabelled.networks(objective, cfg)
    flat = {view: torch.full((2, 1, 8, 8), 0.5).double() for view in objective.VIEWS}

    loss = sum(terms(objective, networks, cfg, rows=slice(0, 2), seen=flat).values())

    assert loss.isfinite().all()
    assert all(gradient.isfinite().all() for gradient in gradients(loss, networks[0]))
