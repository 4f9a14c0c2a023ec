"""Statistical tests that the noise of a device is standard normal and independent.

Each test has a p-value under the hypothesis of independent standard normals (rounded to the grid,
for noise on a grid). A correct generator fails one of them less than once in a million runs.
Passing proves nothing against an adversary, who can build noise that passes any fixed test.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from scipy import fft
from scipy.special import chdtr, chdtrc, ndtr, ndtri
from scipy.stats import poisson
from torch import Tensor

Noisy = Callable[..., Tensor]  # `noisy` of a file of rrcm/certification/distributions

LEVEL = 1e-8  # significance level of one test, of about a dozen
MAX_VALUE = 16  # a coarse grid, on which half a step is large
SHAPE = (1, 32, 32)
IMAGES = 16
PIXELS = math.prod(SHAPE)
BINS = 256
TAIL = 4.0


@dataclass(frozen=True, kw_only=True, slots=True)
class NoiseTest:
    """The result of one test; a small ``p`` is evidence against the noise."""

    test: str
    statistic: float
    p: float

    @property
    def ok(self) -> bool:
        """Whether ``p`` is at least LEVEL."""
        return self.p >= LEVEL


def examine(
    noisy: Noisy, *, on_grid: bool, device: str, seed: int = 0, draws: int = 256
) -> list[NoiseTest]:
    """Test noise drawn on ``device``: its distribution, and independence of its parts.

    Guarantee: fewer than one false alarm in a million calls, if LEVEL holds for each test.

    Args:
        noisy: The function of a file of rrcm/certification/distributions/.
        on_grid: The component's ``ON_GRID``.
        device: Where to draw; the tests themselves run on the CPU.
        seed: Seed of the noise; the next seed is tested with it.
        draws: Draws for each of 16 images with 1,024 pixels; 256 make 4 million normals.
    """
    z = sample(noisy, device=device, seed=seed, draws=draws)  # [image, draw, pixel]
    after = sample(noisy, device=device, seed=seed + 1, draws=draws)
    return [
        *distribution(z, on_grid),
        *(() if on_grid else patterns(z)),
        *independence(z, after, on_grid),
    ]


def sample(noisy: Noisy, *, device: str, seed: int, draws: int) -> np.ndarray:
    """Noise at sigma = 1 on black images, float32 [IMAGES, draws, PIXELS]."""
    draw = torch.arange(draws, device=device)
    x = torch.zeros(1, *SHAPE, device=device).expand(draws, *SHAPE)
    parts = [
        noisy(
            x, 1.0, seed=seed, images=torch.full_like(draw, image), draws=draw, max_value=MAX_VALUE
        )
        for image in range(IMAGES)
    ]
    return torch.stack(parts).flatten(2).cpu().numpy()


def distribution(z: np.ndarray, on_grid: bool) -> Iterator[NoiseTest]:
    """Tests of the marginal distribution: moments, histogram, tails and the largest value."""
    n, flat = z.size, z.ravel().astype(np.float64)
    variance = 1 + on_grid / (12 * MAX_VALUE**2)  # Sheppard: rounding adds a uniform's variance
    mean = flat.sum() / math.sqrt(n * variance)
    yield NoiseTest(test="mean", statistic=mean, p=_two_sided(mean))
    square = float(flat @ flat) / variance
    yield NoiseTest(test="variance", statistic=square / n, p=_chi2("", square, n).p)
    for name, axis in (("means of rows", 2), ("means of pixels", (0, 1))):
        sums = z.sum(axis=axis, dtype=np.float64).ravel()
        yield _chi2(name, float(sums @ sums) * len(sums) / (n * variance), len(sums))
    # Edges between steps of the grid: rounding then moves no value into another bin.
    edges = np.unique((np.floor(ndtri(np.arange(1, BINS) / BINS) * MAX_VALUE) + 0.5) / MAX_VALUE)
    expected = n * np.diff(ndtr(edges), prepend=0, append=1)
    counts = np.bincount(np.searchsorted(edges, flat), minlength=len(expected))
    yield _chi2("histogram", float(((counts - expected) ** 2 / expected).sum()), len(edges))
    edge = (TAIL * MAX_VALUE + 0.5) / MAX_VALUE
    size = np.abs(flat)
    tail = int((size > edge).sum())
    yield NoiseTest(test="tails", statistic=tail, p=_poisson(tail, 2 * n * ndtr(-edge)))
    # Expected number beyond it; on a grid, each tail uses the conservative end of the step.
    largest, half = float(size.max()), on_grid * 0.5 / MAX_VALUE
    fewest, most = (2 * n * ndtr(-(largest + end)) for end in (half, -half))
    p = 2 * min(math.exp(-fewest), -math.expm1(-most))
    yield NoiseTest(test="largest", statistic=largest, p=min(1.0, p))


def patterns(z: np.ndarray) -> Iterator[NoiseTest]:
    """Test of repeated values: coarsely rounded noise repeats more than float32 noise."""
    n = z.size
    repeats = n - len(np.unique(z))
    # A value v has a probability of density x spacing; between powers of two spacing is constant.
    expected = float(n)
    for exponent in range(-30, 4):
        v = np.linspace(2.0**exponent, 2.0 ** (exponent + 1), 65)
        spacing = 2.0 ** (exponent - 23)
        missed = -np.expm1(-n * spacing * np.exp(-v * v / 2) / math.sqrt(2 * math.pi)) / spacing
        expected -= 2 * float(np.trapezoid(missed, v))
    yield NoiseTest(test="repeated values", statistic=repeats, p=_poisson(repeats, expected))


def independence(z: np.ndarray, after: np.ndarray, on_grid: bool) -> Iterator[NoiseTest]:
    """Tests of independence within a seed, and between this seed and the next.

    In the sequence in order (image, draw, pixel), a dependence between neighbours of any kind, or
    between parts at a constant distance, is a correlation at some lag; all lags are tested at once.
    """
    signed, unsigned = ([f(part) for part in (z, after)] for f in (np.copy, np.abs))
    for name, (a, b) in (("values", signed), ("sizes", unsigned)):
        yield _correlation(f"{name} at any lag", a, a)
        yield _correlation(f"{name} of two seeds", a, b)
    # Probability of two equal values, and values per block: blocks are never equal by chance
    alike, size = (1 / (2 * math.sqrt(math.pi) * MAX_VALUE), 8) if on_grid else (2.0**-24, 4)
    blocks = np.concatenate([z.reshape(-1, size), after.reshape(-1, size)])
    repeats = int(pd.DataFrame(blocks).duplicated().sum())
    expected = math.comb(len(blocks), 2) * alike**size
    p = float(poisson.sf(repeats - 1, expected))
    yield NoiseTest(test="repeated blocks", statistic=repeats, p=p)


def _correlation(name: str, a: np.ndarray, b: np.ndarray) -> NoiseTest:
    """The largest correlation over all circular lags, in standard errors; Bonferroni over lags."""
    n = a.size
    spectra = [fft.rfft((v.ravel() - v.mean(dtype=np.float64)) / v.std()) for v in (a, b)]
    lags = fft.irfft(spectra[0] * spectra[1].conj(), n) / math.sqrt(n)
    if a is b:
        lags = lags[1 : n // 2 + 1]  # without lag 0, and each other lag once
        lags[-1] /= math.sqrt(2)  # the middle lag has each pair twice
    largest = float(np.abs(lags).max())
    return NoiseTest(test=name, statistic=largest, p=min(1.0, len(lags) * _two_sided(largest)))


def _two_sided(standard: float) -> float:
    return float(2 * ndtr(-abs(standard)))


def _chi2(name: str, statistic: float, freedom: int) -> NoiseTest:
    p = 2 * min(chdtr(freedom, statistic), chdtrc(freedom, statistic))
    return NoiseTest(test=name, statistic=statistic, p=float(p))


def _poisson(count: int, expected: float) -> float:
    return min(1.0, float(2 * min(poisson.cdf(count, expected), poisson.sf(count - 1, expected))))
