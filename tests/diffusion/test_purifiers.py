"""Purifiers do what their equations say: on oracles, and in the coordinates of the literature."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from builders import refused
from torch import nn

from rrcm.core.errors import ConfigError
from rrcm.diffusion.networks import dncnn
from rrcm.diffusion.purifiers import learned, multi_step, one_shot
from rrcm.models.trained.denoiser import Denoiser, Schedule, Times

LINEAR = Schedule(kind="linear", steps=1000, rescale=False)
COSINE = Schedule(kind="cosine", steps=4000, rescale=True)
EDM = Schedule(kind="edm", steps=0, rescale=False)
every_schedule = pytest.mark.parametrize("schedule", [LINEAR, COSINE, EDM], ids=lambda s: s.kind)
MU, TAU, SIGMA = 0.1, 0.2, torch.tensor(0.25, dtype=torch.float64)


class Oracle(nn.Module):
    """What a perfect network says, where clean pictures are normal with mean MU and spread TAU."""

    def __init__(self, schedule: Schedule) -> None:
        super().__init__()
        self.schedule, self.times = schedule, Times(schedule)

    def forward(self, x: torch.Tensor, told: torch.Tensor) -> torch.Tensor:
        told = told[:, None, None, None]
        if self.schedule.kind == "edm":
            s = (4 * told).exp()
            x = x * (s**2 + 0.25).sqrt()
            skip = 0.25 / (s**2 + 0.25) * x
            return (posterior(x, s)[0] - skip) / (0.5 * s / (s**2 + 0.25).sqrt())
        s = self.times.level(told * (4 if self.schedule.rescale else 1))
        x = x * (1 + s**2).sqrt()
        return (x - posterior(x, s)[0]) / s


def posterior(x, s):
    """Mean and variance of a clean value, given ``x`` of noise ``s``."""
    return (TAU**2 * x + s**2 * MU) / (TAU**2 + s**2), TAU**2 * s**2 / (TAU**2 + s**2)


class Network(nn.Module):
    """A random function of both arguments, with channels for a variance in (-1, 1)."""

    def __init__(self, outputs: int = 2) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.convolution = nn.Conv2d(1, outputs, 3, padding=1, dtype=torch.float64)

    def forward(self, x: torch.Tensor, told: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.convolution(x) + 0.01 * told[:, None, None, None])


def pixels(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


def steps(network, schedule, count, variance="small", rule="first"):
    cfg = multi_step.Config(steps=count, rule=rule, variance=variance)
    return multi_step.Purifier(Denoiser(network, Times(schedule)), cfg)


# One shot.


@every_schedule
def test_one_shot_gives_the_mean_of_clean_pictures_that_may_have_been(schedule):
    purify = one_shot.Purifier(
        Denoiser(Oracle(schedule), Times(schedule)), one_shot.Config(rule="exact")
    )
    x = pixels(6, 1, 4, 4)

    expected = (posterior(2 * x - 1, 0.5)[0] + 1) / 2

    torch.testing.assert_close(purify(x, SIGMA), expected, rtol=0, atol=1e-9)


def test_what_is_purified_lies_between_black_and_white():
    x = 10 * pixels(4, 1, 4, 4) - 5
    purify = steps(Oracle(EDM), EDM, 1, rule="nearest")

    found = purify(x, SIGMA)

    assert found.min() == 0
    assert found.max() == 1


# Several steps.


@every_schedule
def test_one_step_is_one_shot_bit_for_bit(schedule):
    denoiser, x = Denoiser(Network(), Times(schedule)), pixels(3, 1, 4, 4)
    single = one_shot.Purifier(denoiser, one_shot.Config(rule="nearest"))
    cfg = multi_step.Config(steps=1, rule="nearest", variance="learned")

    assert (cfg.normals, replace(cfg, steps=5).normals) == (0, 4)
    assert torch.equal(multi_step.Purifier(denoiser, cfg)(x, SIGMA), single(x, SIGMA))


def ddpm(network, x, times, z, variance):
    """Ho et al.'s posterior steps on a process re-spaced to ``times``, which scales images down.

    Everything in float64, from the betas of Nichol & Dhariwal's cosine of 40 steps.
    """
    f = [math.cos((i / 40 + 0.008) / 1.008 * math.pi / 2) ** 2 for i in range(41)]
    bar = np.cumprod([1 - min(1 - f[i + 1] / f[i], 0.999) for i in range(40)])
    bars = [*(bar[t] for t in times), 1.0]
    x = math.sqrt(bars[0]) * x
    for i, t in enumerate(times):
        here, there = bars[i], bars[i + 1]
        beta = 1 - here / there
        found = network(x, torch.full((len(x),), t, dtype=torch.float64))
        noise, rest = found[:, :1], found[:, 1:]
        clean = ((x - math.sqrt(1 - here) * noise) / math.sqrt(here)).clamp(-1, 1)
        mean = math.sqrt(there) * beta / (1 - here) * clean
        mean = mean + math.sqrt(here / there) * (1 - there) / (1 - here) * x
        if i + 1 == len(times):
            return mean
        small = torch.tensor(beta * (1 - there) / (1 - here))
        share = (rest + 1) / 2
        spread = {
            "small": small.sqrt(),
            "large": math.sqrt(beta),
            "learned": (share * math.log(beta) + (1 - share) * small.log()).exp().sqrt(),
        }[variance]
        x = mean + spread * z[:, i]
    return None


@pytest.mark.parametrize("variance", ["learned", "small", "large"])
def test_a_step_is_that_of_ddpm_in_other_coordinates(variance):
    schedule, network = Schedule(kind="cosine", steps=40, rescale=False), Network()
    purify, x, z = steps(network, schedule, 4, variance), pixels(3, 1, 4, 4), normal(3, 3, 1, 4, 4)
    t = int(purify.denoiser.times.at(2 * SIGMA, "first"))
    times = [t, *(round(t - i * t / 4) for i in (1, 2, 3))]

    expected = (ddpm(network, 2 * x - 1, times, z, variance) + 1) / 2

    torch.testing.assert_close(purify(x, SIGMA, z), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("schedule", "variance"), [(EDM, "small"), (COSINE, "large")])
def test_many_steps_draw_from_the_clean_pictures_that_may_have_been(schedule, variance):
    """Mean and variance of 4000 draws, of two noisy values."""
    count, draws = 100, 4000
    x = torch.tensor([0.4, 0.8], dtype=torch.float64).repeat(draws // 2).view(-1, 1, 1, 1)
    purify = steps(Oracle(schedule), schedule, count, variance, rule="exact")

    found = 2 * purify(x, SIGMA, normal(draws, count - 1, 1, 1, 1)) - 1

    for half in (0, 1):
        mean, var = posterior(float(2 * x[half] - 1), 0.5)
        got = found[half::2]
        assert abs(got.mean() - mean) < 4 * math.sqrt(var / len(got)) + 0.005
        assert 0.9 < got.var() / var < 1.1


def test_steps_that_start_at_one_time_add_no_noise():
    """A picture with next to no noise: there are fewer times than steps."""
    network = Network()
    purify = steps(network, LINEAR, 5, "learned")
    sigma, x = torch.tensor(0.006, dtype=torch.float64), pixels(2, 1, 4, 4)

    assert purify(x, sigma, normal(2, 4, 1, 4, 4)).isfinite().all()


# Learned.


def test_a_learned_purifier_is_its_network_on_pixels_and_is_not_clipped():
    torch.manual_seed(0)
    cfg = dncnn.Config(channels=1, image_size=4, depth=3, width=4, momentum=0.1)
    network = dncnn.Network(cfg).double().eval()
    nn.init.normal_(network.last.weight)
    x = pixels(3, 1, 4, 4)
    found = learned.Purifier(network, learned.Config())(x, SIGMA)

    assert torch.equal(found, network(x, torch.zeros(3)))
    assert found.min() < 0


# What is refused.


def test_a_variance_that_was_not_learned_is_refused():
    purify, x = steps(Network(outputs=1), EDM, 2, "learned"), pixels(1, 1, 4, 4)

    with refused(ConfigError, "variance: learned", "use small or large"):
        purify(x, SIGMA, x[:, None])
