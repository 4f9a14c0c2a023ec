"""The self-tests are silent on good noise, and each kind of bad noise is heard."""

from functools import cache

import numpy as np
import pytest
import torch
from scipy.special import ndtri
from scipy.stats import norm

from rrcm.certification import randomness
from rrcm.certification.distributions import gaussian, secure, sound
from rrcm.certification.randomness import NoiseTest, examine

DRAWS = 64


def failed(noisy, *, on_grid=False, seed=0):
    findings = examine(noisy, on_grid=on_grid, device="cpu", seed=seed, draws=DRAWS)
    return {finding.test for finding in findings if not finding.ok}


@pytest.mark.parametrize("seed", [0, 2**63])
@pytest.mark.parametrize("component", [gaussian, sound, secure])
def test_good_noise_passes_with_room_to_spare(component, seed):
    """A dozen p-values, none of which would be remarkable: 1e-8 is not what saves them."""
    findings = examine(
        component.noisy, on_grid=component.ON_GRID, device="cpu", seed=seed, draws=DRAWS
    )

    assert all(finding.ok for finding in findings)
    assert min(finding.p for finding in findings) > 1e-3
    assert len({finding.test for finding in findings}) == len(findings) == 13 - component.ON_GRID


def test_a_finding_is_ok_above_the_level():
    assert NoiseTest(test="mean", statistic=0.0, p=1e-8).ok
    assert not NoiseTest(test="mean", statistic=9.0, p=1e-9).ok
    assert not NoiseTest(test="mean", statistic=9.0, p=float("nan")).ok


@cache
def base(seed):
    """All that `examine` draws under a seed, [image, draw, pixel]."""
    return randomness.sample(gaussian.noisy, device="cpu", seed=seed, draws=DRAWS)


def bad(change):
    """A component whose noise under a seed is ``change`` of the good noise."""
    changed = cache(lambda seed: change(base(seed).copy()))

    def noisy(x, sigma, *, seed, images, draws, max_value):
        z = changed(seed)[images.numpy(), draws.numpy()]
        return x + sigma * torch.from_numpy(z.astype(np.float32)).view(x.shape)

    return noisy


def shared_by_two_images(z):
    z[9] = z[4]
    return z


def shared_by_draws(z):
    z[:] = z[:, :1]
    return z


def faintly_lagged(z):
    """A hundredth of the variance is that of the draw before: 1 % correlation of neighbours."""
    return np.sqrt(0.9999) * z + 0.01 * np.roll(z, 1, axis=1)


def mirrored(z):
    """Antithetic draws have no noise in common but in size."""
    z[:, 1::2] = -z[:, ::2]
    return z


def repeated_blocks(z):
    """A counter that wraps once: 64 blocks of four come twice, far apart."""
    z[11, 50, :256] = z[2, 7, 512:768]
    return z


def one_mean_per_row(z):
    return z + 0.05 * np.random.default_rng(0).standard_normal((*z.shape[:2], 1))


def one_mean_per_pixel(z):
    return z + 0.02 * np.random.default_rng(0).standard_normal(z.shape[2])


def truncated(z):
    return np.where(np.abs(z) > 3.7, z / 2, z)


def heavy(z):
    """A fraction of 2e-4 is five times too large."""
    return np.where(np.random.default_rng(0).random(z.shape) < 2e-4, 5 * z, z)


def uneven(z):
    """A histogram with ripples that leave mean and variance alone."""
    return z + 0.02 * np.sin(12 * z)


FAULTS = [
    (shared_by_two_images, {"values at any lag", "repeated blocks", "repeated values"}),
    (shared_by_draws, {"values at any lag", "means of pixels"}),
    (faintly_lagged, {"values at any lag"}),
    (mirrored, {"values at any lag", "sizes at any lag"}),
    (repeated_blocks, {"repeated blocks"}),
    (one_mean_per_row, {"means of rows"}),
    (one_mean_per_pixel, {"means of pixels"}),
    (lambda z: 0.99 * z, {"variance"}),
    (lambda z: z + 0.01, {"mean"}),
    (truncated, {"tails", "largest"}),
    (heavy, {"tails", "largest"}),
    (uneven, {"histogram"}),
    (lambda z: z.astype(np.float16), {"repeated values"}),
]


@pytest.mark.parametrize(("change", "heard"), FAULTS, ids=lambda v: getattr(v, "__name__", ""))
def test_a_planted_fault_is_found_by_the_test_for_it(change, heard):
    assert heard <= failed(bad(change))


def test_seeds_that_share_noise_are_found():
    """seed + draw instead of (seed, draw): draw 1 of one seed is draw 0 of the next."""

    def noisy(x, sigma, *, seed, images, draws, max_value):
        return gaussian.noisy(
            x, sigma, seed=0, images=images, draws=draws + seed, max_value=max_value
        )

    def sizes(x, sigma, *, seed, images, draws, max_value):
        """The same, but with independent signs."""
        here = gaussian.noisy(x, sigma, seed=seed, images=images, draws=draws, max_value=max_value)
        return (
            noisy(x, sigma, seed=seed, images=images, draws=draws, max_value=max_value).abs()
            * here.sign()
        )

    assert {"values of two seeds", "repeated blocks"} <= failed(noisy)
    assert "sizes of two seeds" in failed(sizes)


def test_faults_of_whole_steps_are_found():
    """The same tests on a grid, where values repeat by nature but blocks do not."""

    def shared(x, sigma, *, seed, images, draws, max_value):
        return sound.noisy(x, sigma, seed=seed, images=0 * images, draws=draws, max_value=max_value)

    def wide(x, sigma, *, seed, images, draws, max_value):
        return sound.noisy(
            x, 1.01 * sigma, seed=seed, images=images, draws=draws, max_value=max_value
        )

    def floored(x, sigma, *, seed, images, draws, max_value):
        """Half a step too low."""
        y = sound.noisy(x, sigma, seed=seed, images=images, draws=draws, max_value=max_value)
        return y - torch.randint(2, y.shape, generator=torch.Generator().manual_seed(0)) / max_value

    assert {"values at any lag", "repeated blocks"} <= failed(shared, on_grid=True)
    assert "variance" in failed(wide, on_grid=True)
    assert "repeated values" not in failed(wide, on_grid=True)
    assert "mean" in failed(floored, on_grid=True)


def test_p_values_are_uniform_on_true_noise():
    """NumPy's generator, many small samples: a level means what it says."""
    rng = np.random.default_rng(0)
    below = {}
    for _ in range(200):
        z, after = rng.standard_normal((2, 4, 8, 256)).astype(np.float32)
        for f in [*randomness.distribution(z, False), *randomness.independence(z, after, False)]:
            below.setdefault(f.test, []).append(f.p)

    for test, p in below.items():
        assert (np.array(p) < 0.05).mean() < 0.05 + 4 * (0.05 * 0.95 / 200) ** 0.5, test
    for test in ("mean", "variance", "means of rows", "histogram"):
        assert abs(np.median(below[test]) - 0.5) < 0.15, test


def test_rounding_to_the_grid_is_no_excess_of_variance():
    """Quantiles of the normal, rounded to sixteenths: their variance is 1 + 1 / (12 * 16^2)."""
    n = 2**18
    z = np.round(16 * ndtri((np.arange(n) + 0.5) / n)).reshape(4, 64, 1024) / 16

    heard = next(f for f in randomness.distribution(z, True) if f.test == "variance")

    assert heard.statistic == pytest.approx(1, abs=5e-5)


@pytest.mark.parametrize("largest", [4.0, 4.5, 6.0])
def test_the_largest_value_has_its_closed_form(largest):
    """P[max |z| <= v] = (1 - 2 Phi(-v))^n, which is exp(-2 n Phi(-v)) for large n."""
    n = 2**18
    z = np.clip(np.random.default_rng(0).standard_normal((4, 64, 1024)), -3, 3)
    z[0, 0, 0] = -largest
    below = np.exp(-2 * n * norm.cdf(-largest))

    heard = next(f for f in randomness.distribution(z, False) if f.test == "largest")

    assert heard.statistic == largest
    assert heard.p == pytest.approx(2 * min(below, 1 - below), rel=1e-6)
