"""The methods that the paper compares with: each against its equation, written naively in float64.

The attack inside is that of rrcm/training/shared/attacks.py, which
tests/training/test_attacks.py holds to its own equation.
"""

import math
from statistics import NormalDist

import pytest
import torch
from helpers import PRETRAIN, few
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from rrcm.core.errors import ConfigError
from rrcm.training.engine.computing import Computed
from rrcm.training.engine.draws import Draws
from rrcm.training.methods import (
    catrs,
    consistency,
    gaussian,
    macer,
    reweighting,
    smoothadv,
    smoothmix,
    stability,
)
from rrcm.training.shared import attacks

B, K = 12, 3
SIGMA = torch.tensor(0.4, dtype=torch.float64)
LABELS = torch.arange(B) % K
QUANTILE = NormalDist().inv_cdf

STABILITY = {"lbd": 2.0}
MACER = {"lbd": 6.0, "gamma": 0.5, "beta": 2.0, "m": 4, "defer": 0.5}
SMOOTHADV = {"attack": "pgd", "epsilon": 0.5, "steps": 3, "m": 3, "multi_noise": True}
SMOOTHADV |= {"warmup": 1.0, "lbd": 0.0, "eta": 0.0}
SMOOTHMIX = {"m": 3, "steps": 3, "alpha": 0.4, "eta": 5.0, "warmup": 1.0}
SMOOTHMIX |= {"one_step": False, "max_norm": math.inf}
CATRS = {"lbd": 3.0, "m": 3, "steps": 2, "epsilon": 0.6, "draws": 10}
REWEIGHTING = {"m": 3, "steps": 3, "step": 0.1, "begin": 0.5, "keep": 0.5, "every": 2}
TABLE = torch.tensor([[0.7, 0.3, 0.0], [0.2, 0.2, 0.6]]).double().repeat(B // 2, 1)


class Network(nn.Module):
    """A small network in float64; knows classes well enough to be right about some images."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, K)
        ).double()

    def forward(self, x, sigma):
        return 2 * self.layers(x)


def images():
    generator = torch.Generator().manual_seed(0)
    return torch.rand(B, 2, 2, 2, generator=generator, dtype=torch.float64)


def loss(method, network=None, *, constants, done=0.75, sigma=SIGMA, y=LABELS, **changed):
    cfg = method.Config(**constants | changed)
    network, named = network or Network(), {"sigma": sigma, "draw": Draws(0, 0), "done": done}
    named |= {"table": TABLE} if hasattr(method, "table") else {}
    return method.loss(network, images(), y, cfg=cfg, **named)


def drawn(m):
    """The noise of ``m`` copies, the spare direction, and the stream that goes on behind them."""
    draw = Draws(0, 0)
    noise = [SIGMA * draw.normal(images()) for _ in range(m)]
    return torch.stack(noise), draw


def p(network, x):
    """Probabilities of one image, [K]."""
    logits = network(x[None], SIGMA)[0]
    return logits.exp() / logits.exp().sum()


def kl(a, b):
    return sum(a[c] * (a[c] / b[c]).log() for c in range(K))


def entropy(a):
    return -sum(a[c] * a[c].log() for c in range(K))


def assert_same(found, expected, network):
    """Values, and gradients of the weights."""
    weights = [*network.parameters()]
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(
        torch.autograd.grad(found.sum(), weights), torch.autograd.grad(expected.sum(), weights)
    )


def test_stability_is_its_equation():
    network, x, (noise, _) = Network(), images(), drawn(1)
    expected = []
    for i in range(B):
        clean, noisy = p(network, x[i]), p(network, x[i] + noise[0, i])
        agreement = -sum(clean[c] * noisy[c].log() for c in range(K))
        expected.append(-clean[LABELS[i]].log() + 2 * agreement)

    assert_same(loss(stability, network, constants=STABILITY), torch.stack(expected), network)


def naive_macer(network, *, lbd):
    """Equation 42, and how many images were right, and not by a margin wide enough."""
    x, (noise, _) = images(), drawn(4)
    total, inside = [], 0
    for i in range(B):
        logits = [network((x[i] + e)[None], SIGMA)[0] for e in noise[:, i]]
        mean = sum(f.softmax(dim=0) for f in logits) / 4
        q = sum((MACER["beta"] * f).softmax(dim=0) for f in logits) / 4
        (first, second), (guess, _) = q.topk(2)
        normal = torch.distributions.Normal(0.0, 1.0)
        short = MACER["gamma"] - normal.icdf(first) + normal.icdf(second)
        total.append(-mean[LABELS[i]].log())
        if guess == LABELS[i] and short > 0:
            inside += 1
            total[-1] = total[-1] + lbd * SIGMA / 2 * short
    return torch.stack(total), inside


def test_macer_is_its_equation():
    network = Network()
    expected, inside = naive_macer(network, lbd=MACER["lbd"])

    assert 0 < inside < B, "the test should see both sides of the hinge"
    assert_same(loss(macer, network, constants=MACER), expected, network)


@few
@given(st.floats(1e-12, 0.49))
def test_the_margin_of_macer_is_that_of_normal_quantiles(small):
    """Of two classes it is twice that of the larger one; near 1 no digit is lost, in float32."""
    q = torch.tensor([[1 - small, small], [small, 1 - small]])

    margin, guess = macer._margin(q)

    assert guess.tolist() == [0, 1]
    assert margin.tolist() == pytest.approx(2 * [-2 * QUANTILE(q[0, 1].item())], rel=1e-4)


@pytest.mark.parametrize("q", [[1.0, 0.0], [1.0], [1.0, 0.0, 0.0], [1.0, 1e-30]])
def test_the_margin_of_certain_predictions_is_finite(q):
    """The normal quantiles of 0 and 1 are not; those of 1e-20 stand for them."""
    q = torch.tensor([q], requires_grad=True)

    margin, _ = macer._margin(q)
    margin.sum().backward()

    assert margin.item() == pytest.approx(-2 * QUANTILE(1e-20), rel=1e-5)
    assert q.grad.isfinite().all()


def attacked(network, noise, draw, *, attack="pgd", radius=0.375):
    """0.5, of which three quarters of the warm-up have been reached."""
    settings = {"sigma": SIGMA, "steps": 3, "radius": radius, "draw": draw}
    if attack == "ddn":
        return attacks.ddn(network, images(), LABELS, noise, **settings)
    return attacks.pgd(network, images(), LABELS, noise, step=2 * radius / 3, **settings)[-1]


@pytest.mark.parametrize(
    ("attack", "multi_noise", "lbd", "eta"),
    [("pgd", True, 0.0, 0.0), ("ddn", False, 0.0, 0.0), ("pgd", False, 3.0, 0.5)],
)
def test_smoothadv_is_its_equation(attack, multi_noise, lbd, eta):
    """The copies that are trained on have the noise of the attack."""
    network, (noise, draw) = Network(), drawn(3)
    x = attacked(network, noise, draw, attack=attack)
    expected = []
    for i in range(B):
        copies = [p(network, x[i] + e) for e in noise[:, i]]
        mean = sum(copies) / 3
        right = [-q[LABELS[i]].log() for q in (copies if multi_noise else copies[:1])]
        agreed = lbd * sum(kl(mean, q) for q in copies) / 3 + eta * entropy(mean)
        expected.append(sum(right) / len(right) + agreed)
    changed = {"attack": attack, "multi_noise": multi_noise, "lbd": lbd, "eta": eta}

    found = loss(smoothadv, network, constants=SMOOTHADV, **changed)

    assert_same(found, torch.stack(expected), network)


def naive_smoothmix(network, *, one_step=False, max_norm=math.inf):
    """Equation 43, and how many images were right on average."""
    x, (noise, draw) = images(), drawn(3)
    points = attacks.pgd(
        *(network, x, LABELS, noise), sigma=SIGMA, steps=3, step=0.4, radius=max_norm, draw=draw
    )
    if one_step:  # 0.4, of which three quarters of the warm-up have been reached
        offset = points[0] - x
        x = x + offset * (0.3 / offset.flatten(1).norm(dim=1)).clip(max=1)[:, None, None, None]
    u = draw.uniform(x, 1, 1, 1).flatten() / 2
    total, right = [], 0
    for i in range(B):
        mixed = (1 - u[i]) * x[i] + u[i] * points[-1][i]
        copies = [p(network, x[i] + e) for e in noise[:, i]]
        mean = sum(copies) / 3
        target = (1 - u[i]) * mean + u[i] / K
        total.append(sum(-q[LABELS[i]].log() for q in copies) / 3)
        if mean.argmax() == LABELS[i]:
            right += 1
            apart = sum(kl(target, p(network, mixed + e)) for e in noise[:, i]) / 3
            total[-1] = total[-1] + 5 * 0.75 * apart
    return torch.stack(total), right


@pytest.mark.parametrize("changed", [{}, {"one_step": True}, {"max_norm": 0.5}])
def test_smoothmix_is_its_equation(changed):
    """Its gradient too: it flows through the target of the mixture."""
    network = Network()
    expected, right = naive_smoothmix(network, **changed)

    assert 0 < right < B, "the test should see right and wrong answers"
    assert_same(loss(smoothmix, network, constants=SMOOTHMIX, **changed), expected, network)


def uphill(network, x, v, q):
    """Unit gradient, by the noise ``v`` of one copy, of its cross-entropy to ``q``."""
    v = v.clone().requires_grad_()
    (-(q * p(network, x + v).log()).sum()).backward()
    return v.grad / v.grad.norm()


def naive_catrs(network):
    """Equation 62, and how many images learn from all of their copies."""
    x, (noise, draw) = images(), drawn(3)
    chances, total, easy = draw.uniform(x, 3), [], 0
    for i in range(B):
        copies = [p(network, x[i] + e) for e in noise[:, i]]
        share = sum(int(c.argmax() == LABELS[i]) for c in copies) / 3
        count = max(1, int((chances[i] < share).sum()))
        losses = torch.stack([-c[LABELS[i]].log() for c in copies]).sort().values
        total.append(losses[:count].sum() / 3)
        if count < 3:
            continue
        easy, apart = easy + 1, []
        for e in noise[:, i]:
            v = e
            for _ in range(2):
                v = v + 0.6 * uphill(network, x[i], v, TABLE[i])
                v = e + (v - e) * min(1.0, 0.6 / (v - e).norm().item())
                scale = (e.square().mean() / v.square().mean()).sqrt()
                v = e.mean() + scale * (v - v.mean())
            q = p(network, x[i] + v)
            apart.append(sum(t * (t / c).log() for t, c in zip(TABLE[i], q, strict=True) if t > 0))
        total[-1] = total[-1] + 3 * torch.stack(apart).max()
    return torch.stack(total), easy


def test_catrs_is_its_equation():
    network = Network()
    expected, easy = naive_catrs(network)

    assert 0 < easy < B, "the test should see easy and hard images"
    assert_same(loss(catrs, network, constants=CATRS), expected, network)


def naive_reweighting(network):
    """Equation 63, and the copies that were never, later, and at once misclassified."""
    x, (noise, _), total, missed = images(), drawn(3), [], []
    for i in range(B):
        losses = []
        for e in noise[:, i]:
            v, taken = e, 0
            while taken < 3 and p(network, x[i] + v).argmax() == LABELS[i]:
                v = v + 0.1 * uphill(network, x[i], v, torch.eye(K)[LABELS[i]])
                v, taken = v * e.norm() / v.norm(), taken + 1
            missed.append(taken)
            losses.append(-p(network, x[i] + v)[LABELS[i]].log())
        total.append(sum(losses) / 3)
    return torch.stack(total), missed


def test_reweighting_is_its_equation():
    """And before its second phase it is cross-entropy on copies."""
    network, x, (noise, _) = Network(), images(), drawn(3)
    expected, taken = naive_reweighting(network)
    plain = [sum(-p(network, x[i] + e)[LABELS[i]].log() for e in noise[:, i]) / 3 for i in range(B)]

    assert {0, 1, 3} <= {*taken}, "the test should see every end of the search"
    assert_same(loss(reweighting, network, constants=REWEIGHTING), expected, network)
    found = loss(reweighting, network, constants=REWEIGHTING, done=0.49)
    assert_same(found, torch.stack(plain), network)


T, M = 5, 4
COSTS = [  # docs/methods.md: gradients of an image in a step, and passes
    (gaussian, {}, {}, (1, 3)),
    (stability, STABILITY, {}, (2, 6)),
    (consistency, {"lbd": 1.0, "eta": 0.5, "m": M, "measure": "kl"}, {}, (M, 3 * M)),
    (macer, MACER, {"m": M}, (M, 3 * M)),
    (smoothadv, SMOOTHADV, {"steps": T, "m": M}, (T * M + M, 2 * T * M + 3 * M)),
    (
        *(smoothadv, SMOOTHADV, {"steps": T, "m": M, "multi_noise": False, "attack": "ddn"}),
        ((T - 1) * M + 1, 2 * (T - 1) * M + 3),
    ),
    (smoothmix, SMOOTHMIX, {"steps": T, "m": M}, (T * M + 2 * M, 2 * T * M + 6 * M)),
    (catrs, CATRS, {"steps": T, "m": M}, (T * M + 2 * M, 2 * T * M + 6 * M)),
    (reweighting, REWEIGHTING, {"steps": T, "m": M}, (T * M + M, 2 * T * M + 3 * M)),
    (reweighting, REWEIGHTING, {"begin": 1.0, "m": M}, (M, 3 * M)),
]


@pytest.mark.parametrize(("method", "constants", "changed", "cost"), COSTS)
def test_a_step_costs_what_the_page_says(method, constants, changed, cost):
    called = Computed(Network(), PRETRAIN.compute)

    loss(method, called, constants=constants, **changed)
    passes, gradients = called.taken()

    assert (gradients / B, passes / B) == cost


REFUSED = [
    (stability, STABILITY, {"lbd": math.nan}, "lbd: must be finite and >= 0, got nan"),
    (macer, MACER, {"gamma": 0.0}, "gamma: must be positive, got 0.0"),
    (smoothadv, SMOOTHADV, {"m": 1, "lbd": 1.0}, "m: lbd needs at least 2, got 1"),
    (
        *(smoothadv, SMOOTHADV, {"attack": "ddn", "steps": 1}),
        "steps: ddn needs at least 2, got 1; its first point is the image itself",
    ),
    (smoothmix, SMOOTHMIX, {"max_norm": math.nan}, "max_norm: must be positive, got nan"),
]


@pytest.mark.parametrize(("method", "constants", "changed", "message"), REFUSED)
def test_constants_that_mean_nothing_are_refused_by_name(method, constants, changed, message):
    with pytest.raises(ConfigError) as error:
        method.Config(**constants | changed)

    assert str(error.value) == message
