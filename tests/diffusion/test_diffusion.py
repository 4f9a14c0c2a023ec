"""Noise schedules, and networks as predictions of the clean image."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rrcm.core.errors import ConfigError
from rrcm.models.trained.denoiser import Denoiser, Schedule, Times

LINEAR = Times(Schedule(kind="linear", steps=1000, rescale=False))
COSINE = Times(Schedule(kind="cosine", steps=4000, rescale=True))
EDM = Times(Schedule(kind="edm", steps=0, rescale=False))


def s_of(sigma: float) -> torch.Tensor:
    return torch.tensor(2 * sigma, dtype=torch.float64)


@pytest.mark.parametrize(
    "times, sigma, first, nearest, noise",
    [  # the released code of DDS and DiffSmooth (first) and DensePure (nearest), run by hand
        (LINEAR, 0.25, 145, 144, 0.25158),
        (LINEAR, 0.5, 259, 258, 0.50239),
        (LINEAR, 1.0, 396, 396, 1.00024),
        (COSINE, 0.25, 1158, 1158, 0.25012),
        (COSINE, 0.5, 1984, 1983, 0.50031),
        (COSINE, 1.0, 2809, 2809, 1.00001),
    ],
)
def test_the_time_of_a_noise_level_is_that_of_the_released_code(
    times: Times, sigma: float, first: int, nearest: int, noise: float
):
    s = s_of(sigma)

    assert times.at(s, "first").item() == first
    assert times.at(s, "nearest").item() == nearest
    assert times.level(times.at(s, "first")).item() / 2 == pytest.approx(noise, abs=5e-6)


@pytest.mark.parametrize("sigma, published", [(0.25, 1158.51), (0.5, 1984.20), (1.0, 2809.99)])
def test_the_exact_time_of_a_cosine_is_its_closed_form(sigma: float, published: float):
    """Which counts from 1, and was computed for DensePure's CIFAR-10 model."""
    inside = math.sin(math.pi / 2.016) / math.sqrt(1 + 4 * sigma**2)
    closed = 4000 * (1 - 2 * 1.008 * math.asin(inside) / math.pi)

    found = COSINE.at(s_of(sigma), "exact").item() + 1

    assert found == pytest.approx(closed, abs=2e-4)
    assert found == pytest.approx(published, abs=6e-3)


@pytest.mark.parametrize(
    "sigma, published",
    [
        (0.25, [144, 115, 86, 58, 29]),
        (0.5, [258, 206, 155, 103, 52]),
        (1.0, [396, 317, 238, 158, 79]),
    ],
)
def test_five_steps_start_where_those_of_densepure_do(sigma: float, published: list[int]):
    found = LINEAR.spaced(LINEAR.at(s_of(sigma), "nearest"), 5)

    assert [int(t) for t in found] == published


@given(st.floats(0.011, 150), st.sampled_from([LINEAR, COSINE]))
def test_rules_bracket_the_noise(s: float, times: Times):
    level = torch.tensor(s, dtype=torch.float64)
    first, nearest, exact = (times.at(level, rule) for rule in ("first", "nearest", "exact"))

    assert times.level(first) >= level
    assert first == 0 or times.level(first - 1) < level
    gap = (times.levels - level).abs().min()
    assert (times.level(nearest) - level).abs() == pytest.approx(gap.item(), rel=1e-12)
    assert times.level(exact).item() == pytest.approx(s, rel=1e-9)
    assert first - 1 <= exact <= first


@pytest.mark.parametrize("times", [LINEAR, COSINE])
def test_beyond_its_ends_a_schedule_is_its_ends(times: Times):
    for rule in ("first", "nearest", "exact"):
        assert times.at(torch.tensor(1e-9), rule) == 0
        assert times.at(torch.tensor(1e9), rule) == len(times.levels) - 1


def test_edm_has_every_time_and_says_its_quarter_logarithm():
    s = torch.tensor(0.7, dtype=torch.float64)

    assert EDM.at(s, "first") == s == EDM.level(s)
    assert EDM.told(s).item() == pytest.approx(math.log(0.7) / 4, rel=1e-15)
    assert [t.item() for t in EDM.spaced(s, 2)] == pytest.approx([0.7, 0.35])


def test_a_network_is_told_times_as_of_a_thousand_steps_if_it_is_to():
    assert COSINE.told(torch.tensor(2000.0)) == 500
    assert LINEAR.told(torch.tensor(396.0)) == 396


class Network(torch.nn.Module):
    """Something that depends on all that it is given, with more channels than it needs."""

    def forward(self, x: torch.Tensor, told: torch.Tensor) -> torch.Tensor:
        told = told.view(-1, 1, 1, 1) / 1000
        return torch.cat([x.tanh() + told, x - 3 * told], dim=1)


@pytest.mark.parametrize("times", [LINEAR, COSINE])
def test_the_clean_image_is_what_is_left_without_the_predicted_noise(times: Times):
    """In the coordinates of a VP process, as papers write it."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(3, 2, 4, 4, dtype=torch.float64, generator=g)
    t = torch.tensor([3.0, 200.0, 700.0], dtype=torch.float64)
    bar = (1 / (1 + times.levels[t.long()] ** 2)).view(-1, 1, 1, 1)
    x_t = bar.sqrt() * x
    found = Network()(x_t, times.told(t))
    wanted = (x_t - (1 - bar).sqrt() * found[:, :2]) / bar.sqrt()

    clean, more = Denoiser(Network(), times)(x, t)

    assert torch.allclose(clean, wanted, rtol=1e-12, atol=1e-12)
    assert torch.allclose(more, found[:, 2:], rtol=1e-12, atol=1e-12)


def test_edm_is_preconditioned_as_published():
    x = torch.randn(2, 2, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    s = torch.tensor([0.3, 7.0], dtype=torch.float64)
    by = s.view(-1, 1, 1, 1)
    root = (by**2 + 0.25).sqrt()
    raw = Network()(x / root, s.log() / 4)[:, :2]
    wanted = 0.25 / (by**2 + 0.25) * x + by * 0.5 / root * raw

    clean, _ = Denoiser(Network(), EDM)(x, s)

    assert torch.allclose(clean, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "kind, steps, said", [("edm", 10, "steps: edm has no"), ("linear", 1, "steps: must be above 1")]
)
def test_a_schedule_that_is_none_is_refused(kind: str, steps: int, said: str):
    with pytest.raises(ConfigError, match=said):
        Schedule(kind=kind, steps=steps, rescale=False)
