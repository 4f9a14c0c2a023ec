"""The smoothed attack: its equations, written naively, known optima, and what it must not touch."""

import math

import pytest
import torch
from helpers import Linear, few
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from rrcm.training.engine.draws import Draws
from rrcm.training.shared import attacks

B, M, K, PIXELS = 5, 3, 4, 12
SIGMA = torch.tensor(0.25)
LABELS = torch.arange(B) % K


class Curved(nn.Module):
    """A small network with a layer of each kind that knows a mode."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(
            nn.Flatten(),
            *(nn.Linear(PIXELS, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(), nn.Linear(8, K)),
        )

    def forward(self, x, sigma):
        return 3 * self.layers(x)


def curved():
    """In float64, with statistics that are not those at the start."""
    network = Curved().double()
    network(images(seed=7), SIGMA)
    return network.eval()


def straight(weight, bias=0.0, *, dtype=torch.float64):
    """Two classes: class 1 where ``weight`` x + ``bias`` is positive."""
    network = Linear(len(weight), 2).to(dtype)
    with torch.no_grad():
        network.linear.weight.copy_(torch.stack([torch.zeros_like(weight), weight]))
        network.linear.bias.copy_(torch.tensor([0.0, bias]))
    return network


def images(seed=0, batch=B):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(batch, 3, 2, 2, generator=generator, dtype=torch.float64)


def noises(x, m=M, *, sigma=SIGMA):
    generator = torch.Generator().manual_seed(1)
    return sigma * torch.randn(m, *x.shape, generator=generator, dtype=x.dtype)


def lengths(x):
    return x.flatten(1).norm(dim=1)


def attack(name, network, x=None, y=LABELS, *, noise=None, steps=5, radius=0.5, draw=None):
    """The last point of either attack; PGD's steps are SmoothAdv's."""
    x = images() if x is None else x
    noise = noises(x) if noise is None else noise
    settings = {"sigma": SIGMA, "steps": steps, "radius": radius, "draw": draw or Draws(0, 0)}
    if name == "ddn":
        return attacks.ddn(network, x, y, noise, **settings)
    return attacks.pgd(network, x, y, noise, step=2 * radius / steps, **settings)[-1]


both = pytest.mark.parametrize("name", ["pgd", "ddn"])


def naive_gradient(network, point, label, noise):
    point = point.clone().requires_grad_()
    p = sum(network((point + e)[None], SIGMA)[0].softmax(dim=0) for e in noise) / len(noise)
    (-p[label].log()).backward()
    return point.grad / point.grad.norm()


def naive_pgd(network, x, label, noise, *, steps, step, radius):
    """Equation 39 for one image; all points."""
    points = [x]
    for _ in range(steps):
        point = points[-1] + step * naive_gradient(network, points[-1], label, noise)
        offset = point.clip(0, 1) - x
        points.append(x + offset / max(1.0, (offset.norm() / radius).item()))
    return points[1:]


def naive_ddn(network, x, label, noise, *, steps, radius):
    """Equation 40 for one image."""
    offset, norm, found = torch.zeros_like(x), radius, []
    farthest = torch.where(x > 0.5, x, 1 - x).norm().item()
    for k in range(steps):
        votes = [network((x + offset + e)[None], SIGMA).argmax().item() for e in noise]
        fools = max(sorted(votes), key=votes.count) != label
        if fools:
            found.append(offset)
        norm = min(norm * (0.95 if fools else 1.05), farthest)
        rate = 0.01 + 0.99 * (1 + math.cos(math.pi * k / steps)) / 2
        offset = offset + rate * naive_gradient(network, x + offset, label, noise)
        offset = offset * norm / offset.norm()
        offset = ((x + offset) * 255).round().div(255).clip(0, 1) - x
    best = min(found, key=lambda each: each.norm().item(), default=torch.zeros_like(x))
    return x + best / max(1.0, (best.norm() / radius).item())


@pytest.mark.parametrize("m", [1, M])
@pytest.mark.parametrize("radius", [0.3, math.inf])
def test_pgd_is_its_equation(m, radius):
    network, x = curved(), images()
    noise, settings = noises(x, m), {"steps": 4, "step": 0.2, "radius": radius}
    found = attacks.pgd(network, x, LABELS, noise, sigma=SIGMA, draw=Draws(0, 0), **settings)

    for i in range(B):
        expected = naive_pgd(network, x[i], LABELS[i], noise[:, i], **settings)
        torch.testing.assert_close([point[i] for point in found], expected)


@pytest.mark.parametrize(("m", "radius"), [(1, 0.6), (2, 0.6), (M, 0.6), (M, 9.0)])
def test_ddn_is_its_equation(m, radius):
    """Two copies vote too, the lower class wins a tie, and no norm leaves the box."""
    network, x = curved(), images(batch=12)
    y, noise = torch.arange(12) % K, noises(x, m)
    found = attack("ddn", network, x, y, noise=noise, steps=8, radius=radius)

    expected = [
        naive_ddn(network, x[i], y[i], noise[:, i], steps=8, radius=radius) for i in range(12)
    ]
    moved = lengths(found - x) > 0

    torch.testing.assert_close(found, torch.stack(expected))
    assert moved.any() and not moved.all(), "the test should see both"


@both
@few
@given(st.integers(0, 10**6), st.floats(0.01, 5.0), st.integers(2, 6), st.floats(0, 100))
def test_attacks_stay_in_the_ball_and_in_the_box(name, seed, radius, steps, scale):
    """In float32, of images that touch the edges of the box."""
    torch.manual_seed(seed)
    network, x = Linear(PIXELS, K), torch.rand(B, 3, 2, 2).mul(2).sub(0.5).clamp(0, 1)
    network.linear.weight.data *= scale

    found = attack(name, network, x, steps=steps, radius=radius)

    assert (lengths(found - x) <= radius * (1 + 1e-5) + 1e-6).all()
    assert ((found >= 0) & (found <= 1)).all()


@both
def test_a_zero_gradient_is_replaced_by_a_random_direction(name):
    """One for each image, and the same whatever part of a batch it is in."""
    network = Linear(PIXELS, K).double()
    nn.init.zeros_(network.linear.weight)
    nn.init.zeros_(network.linear.bias)
    x = torch.full_like(images(), 0.5)
    y = torch.ones(B, dtype=torch.int64)  # what a tie is not given

    def found(rows):
        draw, noise = Draws(0, 0, first=rows.start), noises(x)[:, rows]
        return attack(name, network, x[rows], y[rows], noise=noise, steps=4, draw=draw)

    whole = found(slice(0, B))

    assert whole.isfinite().all()
    if name == "pgd":  # 4 steps of 0.25, and a ball of 0.5
        torch.testing.assert_close(lengths(whole - x), torch.full_like(x[:, 0, 0, 0], 0.5))
        assert len(whole.unique(dim=0)) == B
    torch.testing.assert_close(torch.cat([found(slice(0, 2)), found(slice(2, B))]), whole)


@pytest.mark.parametrize("scale", [1e-30, 1e4])
def test_a_gradient_has_a_direction_however_small_or_large_it_is(scale):
    """Squares of 1e-30 are 0 in float32, and certain predictions have no gradient at all."""
    w = torch.tensor([0.3, -0.4, 1.2])
    x, y = torch.full((1, 3, 1, 1), 0.5), torch.tensor([0])
    network = straight(scale * w, -scale * 0.5, dtype=torch.float32)

    found = attack("pgd", network, x, y, noise=noises(x, sigma=torch.tensor(0.0)), radius=0.25)

    if scale < 1:
        torch.testing.assert_close(found.flatten(), 0.5 + 0.25 * w / 1.3)
    assert found.isfinite().all() and lengths(found - x) <= 0.25001


@few
@given(st.integers(0, 10**6), st.floats(0.01, 5.0))
def test_noise_that_ascends_ends_where_it_may(seed, step):
    """On the sphere of its own length, and higher than it began; other rows do not matter."""
    network, x = curved(), images(seed)
    noise, settings = noises(x), {"sigma": SIGMA, "steps": 3, "step": step, "onto": attacks.as_long}

    def found(rows):
        return attacks.noise_ascent(
            *(network, x[rows], LABELS[rows], noise[:, rows]),
            draw=Draws(0, 0, first=rows.start),
            until_wrong=False,
            **settings,
        )

    whole = found(slice(0, B))

    torch.testing.assert_close(lengths(whole.flatten(0, 1)), lengths(noise.flatten(0, 1)))
    torch.testing.assert_close(torch.cat([found(slice(0, 2)), found(slice(2, B))], dim=1), whole)
    assert not whole.requires_grad and not torch.equal(whole, noise)


@both
def test_attacks_leave_the_network_as_it_was(name):
    """Modes of all its layers, BatchNorm's statistics, gradients of the weights; and no graph."""
    network = curved().train()
    network.layers[2].eval()  # a layer that is kept as it is
    network(images(), SIGMA).sum().backward()
    modes = [module.training for module in network.modules()]
    gradients = [p.grad.clone() for p in network.parameters()]
    state = {key: value.clone() for key, value in network.state_dict().items()}

    found = attack(name, network)

    assert not found.requires_grad
    assert [module.training for module in network.modules()] == modes
    torch.testing.assert_close([p.grad for p in network.parameters()], gradients, rtol=0, atol=0)
    torch.testing.assert_close(dict(network.state_dict()), state, rtol=0, atol=0)
    torch.testing.assert_close(found, attack(name, curved()), msg="the mode must not matter")
