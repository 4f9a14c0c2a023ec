"""Pre-training objectives: which network sees which point, and what it costs."""

import re

import pytest
import torch
from helpers import constants, turned
from torch import nn

from benchmarks import training
from rrcm import distributed, registry
from rrcm.draws import Draws
from rrcm.losses import info_nce
from rrcm.models import vit
from rrcm.objectives import rrcm

B = 6
SIGMAS = torch.tensor([8.0, 4.0, 2.0, 1.0, 0.5], dtype=torch.float64)
CFG = {"tau_contrast": 0.3, "tau_consistency": 0.5, "consistency": 1.5, "symmetric": False}
VIEW_1, VIEW_2, PLAIN = 1000, 2000, 3000  # far apart, so that noise cannot hide who is who


class Encoder(nn.Module):
    """A small encoder of (x, sigma), in float64."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(17, 8, dtype=torch.float64)

    def forward(self, x, sigma):
        return self.inner(torch.cat([x.flatten(1), sigma[:, None].log()], dim=1)).tanh()


def networks(seed=0):
    torch.manual_seed(seed)
    projector = vit.Projector(
        vit.Config(
            size="tiny",
            image_size=4,
            channels=1,
            patch_size=4,
            position_std=0.5,
            init="pytorch",
            projector_width=16,
            projector_dim=5,
        )
    )
    projector[0] = nn.Linear(8, 16, bias=False)
    return nn.ModuleDict({"encoder": Encoder(), "projector": projector.double()})


def images():
    return torch.rand(B, 1, 4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def views(objective):
    """Views of the images, each moved by noise of its own."""
    generator = torch.Generator().manual_seed(1)
    return {
        name: images() + 0.3 * torch.randn(images().shape, generator=generator).double()
        for name in objective.VIEWS
    }


def terms(objective, online, target, cfg, *, weights=None, rows=slice(0, B)):
    """The terms of an objective's loss, of all images or of a part."""
    return objective.loss(
        online,
        target,
        {name: view[rows] for name, view in views(objective).items()},
        sigmas=SIGMAS,
        weights=weights,
        draw=Draws(0, 0, first=rows.start),
        cfg=objective.Config(**cfg),
    )


class SpyEncoder(nn.Module):
    """Writes down what it sees: whose network, which image, which sigma, z, gradient or not."""

    def __init__(self, owner, seen):
        super().__init__()
        self.owner, self.seen = owner, seen
        self.inner = nn.Linear(16, 4, dtype=torch.float64)

    def forward(self, x, sigma):
        tags = (x.mean(dim=(1, 2, 3)) / 1000).round() * 1000
        z = (x - tags.view(-1, 1, 1, 1)) / sigma.view(-1, 1, 1, 1)
        grad = torch.is_grad_enabled()
        for tag, level, noise in zip(tags.tolist(), sigma.tolist(), z, strict=True):
            self.seen.append((self.owner, tag, level, grad, noise))
        marks = torch.stack([tags, sigma], dim=1)
        return torch.cat([marks, self.inner(x.flatten(1))], dim=1)


class SpyProjector(nn.Module):
    """Writes down whose representation of which image it projects, one line per pass."""

    def __init__(self, owner, seen):
        super().__init__()
        self.owner, self.seen = owner, seen

    def forward(self, h):
        (mark,) = {tuple(row) for row in h[:, :2].tolist()}
        self.seen.append((self.owner, *mark, len(h), torch.is_grad_enabled()))
        return h


def spy(*, symmetric, step=0, weights=None):
    """What was encoded, as {(owner, image, sigma, grad): z [B, ...]}, and what was projected."""
    encoded, projected = [], []
    online, target = (
        nn.ModuleDict(
            {"encoder": SpyEncoder(who, encoded), "projector": SpyProjector(who, projected)}
        )
        for who in ("online", "target")
    )
    tags = {"first": VIEW_1, "second": VIEW_2, "plain": PLAIN}
    rrcm.loss(
        online,
        target,
        {name: torch.full((B, 1, 4, 4), tag, dtype=torch.float64) for name, tag in tags.items()},
        sigmas=SIGMAS,
        weights=weights,
        draw=Draws(0, step),
        cfg=rrcm.Config(**CFG | {"symmetric": symmetric}),
    )
    places = {}
    for *place, z in encoded:
        places.setdefault(tuple(place), []).append(z)
    return {place: torch.stack(z) for place, z in places.items()}, projected


@pytest.mark.parametrize("symmetric", [False, True])
def test_each_network_sees_its_points_at_their_sigma(symmetric):
    encoded, projected = spy(symmetric=symmetric)
    end = SIGMAS[-1].item()
    (sigma_n,) = {level for who, tag, level, grad in encoded if tag == PLAIN and grad}
    n = SIGMAS.tolist().index(sigma_n)

    views = [VIEW_1, VIEW_2] if symmetric else [VIEW_1]
    others = [VIEW_2, VIEW_1] if symmetric else [VIEW_2]
    expected = {("online", view, end, True) for view in views}
    expected |= {("target", view, end, False) for view in others}
    expected |= {("online", PLAIN, sigma_n, True)}
    expected |= {("online", PLAIN, SIGMAS[n + 1].item(), False)}  # online, and no gradient

    assert encoded.keys() == expected
    assert sorted(projected) == sorted(
        [("online", view, end, B, True) for view in views]
        + [("target", view, end, B, False) for view in others]
    ), "the projector serves the contrast only, one view at a time"


@pytest.mark.parametrize("symmetric", [False, True])
def test_every_point_shares_the_noise_of_its_image(symmetric):
    encoded, _ = spy(symmetric=symmetric)
    z, *others = encoded.values()

    assert z.shape[0] == B and len(z.flatten().unique()) == z.numel()
    for other in others:
        torch.testing.assert_close(other, z, atol=1e-9, rtol=0)


def levels(weights=None, steps=60):
    """The noisier level of each step's pair."""
    found = [spy(symmetric=False, step=step, weights=weights)[0] for step in range(steps)]
    return [level for each in found for _, tag, level, grad in each if tag == PLAIN and grad]


def test_one_n_serves_the_batch_and_every_n_is_reached():
    found = levels()

    assert len(found) == 60
    assert {*found} == {*SIGMAS[:-1].tolist()}


def test_weights_say_how_often_a_pair_is_drawn():
    found = levels(torch.tensor([0.0, 3.0, 0.0, 1.0]))

    assert {*found} == {SIGMAS[1].item(), SIGMAS[3].item()}
    assert found.count(SIGMAS[1].item()) / 60 == pytest.approx(0.75, abs=0.15)


def naive(online, target, *, symmetric):
    """Equation 7 in separate passes: four, or six."""
    x1, x2, x = views(rrcm).values()
    draw = Draws(0, 0)
    n = draw.integer(len(SIGMAS) - 1)
    z = draw.normal(x)

    def f(network, x, sigma):
        return network["encoder"](x + sigma * z, sigma.repeat(B))

    def p(network, x):
        return network["projector"](f(network, x, SIGMAS[-1]))

    contrast = info_nce(p(online, x1), p(target, x2).detach(), tau=0.3)
    if symmetric:
        contrast = (contrast + info_nce(p(online, x2), p(target, x1).detach(), tau=0.3)) / 2
    f_n, f_next = f(online, x, SIGMAS[n]), f(online, x, SIGMAS[n + 1]).detach()
    return contrast + 1.5 * info_nce(f_n, f_next, tau=0.5)


@pytest.mark.parametrize("symmetric", [False, True])
def test_loss_is_its_equation_with_its_gradient(symmetric):
    online, target = networks(0), networks(1)

    loss = sum(terms(rrcm, online, target, CFG | {"symmetric": symmetric}).values())

    expected = naive(online, target, symmetric=symmetric)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(
        *(torch.autograd.grad(each.sum(), [*online.parameters()]) for each in (loss, expected))
    )


@pytest.mark.parametrize("cfg", [training.LOSS, training.ONE_WAY], ids=["both ways", "one way"])
def test_the_benchmark_s_reference_step_computes_the_same_loss(cfg):
    """Value and gradient: what it is slower at changes nothing."""
    declared = training.shape("12x2x2", 8)
    shape = vit.Config(**declared.shape | {"projector_width": 16, "projector_dim": 5})
    torch.manual_seed(0)
    online, target = (
        nn.ModuleDict({"encoder": vit.Encoder(shape), "projector": vit.Projector(shape)}).double()
        for _ in range(2)
    )
    generator = torch.Generator().manual_seed(0)
    seen = {
        name: torch.rand(B, 3, 8, 8, generator=generator, dtype=torch.float64)
        for name in rrcm.VIEWS
    }

    ours = rrcm.loss(
        online,
        target,
        seen,
        sigmas=SIGMAS,
        weights=None,
        draw=Draws(0, 0),
        cfg=cfg,
    )
    theirs = training.reference_loss(online, target, seen, sigmas=SIGMAS, draw=Draws(0, 0), cfg=cfg)

    torch.testing.assert_close(sum(ours.values()), theirs)
    parameters = [*online.parameters()]
    torch.testing.assert_close(
        *(
            torch.autograd.grad(each.sum(), parameters, allow_unused=True, materialize_grads=True)
            for each in (sum(ours.values()), theirs)
        )
    )


def test_consistency_leaves_the_projector_alone():
    """Its BatchNorm counts the views only."""
    online, target = networks(0), networks(1)
    terms(rrcm, online, target, CFG)

    assert [network["projector"][1].num_batches_tracked for network in (online, target)] == [1, 1]


@pytest.mark.parametrize("symmetric", [False, True])
def test_processes_that_share_a_batch_compute_the_loss_of_one(symmetric, monkeypatch):
    """Each has half the rows; what it contrasts with is gathered, without a gradient.

    Without BatchNorm, whose statistics are another file's affair.
    """
    online, target = networks(0), networks(1)
    for network in (online, target):
        network["projector"] = nn.Linear(8, 5, dtype=torch.float64)
    cfg = CFG | {"symmetric": symmetric}
    whole = terms(rrcm, online, target, cfg)

    def shared(rank, answers):
        """The loss of one process; what it gives to the others, or gets instead of its own."""
        given = []

        def gather(x):
            given.append(x)
            return torch.cat([x, x]) if answers is None else answers[len(given) - 1]

        with monkeypatch.context() as patch:
            patch.setattr(distributed, "rank", lambda: rank)
            patch.setattr(distributed, "gather", gather)
            rows = slice(3 * rank, 3 * rank + 3)
            return given, terms(rrcm, online, target, cfg, rows=rows)

    given = [shared(rank, None)[0] for rank in range(2)]
    answers = [torch.cat(both) for both in zip(*given, strict=True)]
    parts = [shared(rank, answers)[1] for rank in range(2)]

    assert not any(answer.requires_grad for answer in answers)
    for name, term in whole.items():
        torch.testing.assert_close(torch.cat([part[name] for part in parts]), term)


@pytest.mark.parametrize("name", registry.names("objectives"))
def test_objective(name):
    """The contract of rrcm/objectives/: a paper, terms per example, no gradient for the target."""
    objective, online, target = registry.load("objectives", name), networks(0), networks(1)
    optimizer = torch.optim.SGD(online.parameters(), lr=0.1)

    history = []
    for _ in range(20):
        losses = terms(objective, online, target, constants(objective))
        history.append(sum(losses.values()).mean())
        optimizer.zero_grad()
        history[-1].backward()
        optimizer.step()

    assert re.search(r"\(20\d\d\)", objective.__doc__), "say which paper"
    assert all(term.shape == (B,) for term in losses.values()), "the trainer averages"
    assert history[-1] < history[0]
    assert all(p.grad is None for p in target.parameters())
    assert all(p.grad is not None for p in online.parameters())


@pytest.mark.parametrize("name", registry.names("objectives"))
def test_every_knob_of_an_objective_turns_something(name):
    objective, online, target = registry.load("objectives", name), networks(0), networks(1)

    def loss(**changed):
        return sum(terms(objective, online, target, constants(objective) | changed).values())

    for knob, value in constants(objective).items():
        assert not torch.allclose(loss(), loss(**{knob: turned(value)})), f"{knob} does nothing"
