"""Is the noise that a device draws standard normal and independent? Tests of the actual stream.

Every test has a p-value under "independent standard normals" (of a grid component: their rounding
to the grid), so that a sound generator fails one of them less often than once in a million runs.
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

Noisy = Callable[..., Tensor]  # `noisy` of a component of rrcm/noises

LEVEL = 1e-8  # of one test; there are a dozen
WHITE = 16  # a coarse grid, on which half a step is a lot
SHAPE = (1, 32, 32)
IMAGES = 16
PIXELS = math.prod(SHAPE)
BINS = 256
TAIL = 4.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """What one test says: ``p`` is small where the noise is not as it should be."""

    test: str
    statistic: float
    p: float

    @property
    def ok(self) -> bool:
        """Whether a sound generator does this more often than once in 1/LEVEL times."""
        return self.p >= LEVEL


def examine(
    noisy: Noisy, *, on_grid: bool, device: str, seed: int = 0, draws: int = 256
) -> list[Finding]:
    """Test noise drawn on ``device``: its distribution, and whether any two parts of it are alike.

    Guarantee: fewer than one false alarm in a million calls, if LEVEL holds for each test.

    Args:
        noisy: Of a component of rrcm/noises.
        on_grid: The component's ``ON_GRID``.
        device: Where to draw; the tests themselves run on the CPU.
        seed: Tested together with the seed after it.
        draws: Of each of 16 images with 1,024 pixels; 256 make 4 million normals.
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
        noisy(x, 1.0, seed=seed, images=torch.full_like(draw, image), draws=draw, white=WHITE)
        for image in range(IMAGES)
    ]
    return torch.stack(parts).flatten(2).cpu().numpy()


def distribution(z: np.ndarray, on_grid: bool) -> Iterator[Finding]:
    """Is each value standard normal: moments, histogram, tails and the largest value?"""
    n, flat = z.size, z.ravel().astype(np.float64)
    variance = 1 + on_grid / (12 * WHITE**2)  # Sheppard: rounding adds that of a uniform
    mean = flat.sum() / math.sqrt(n * variance)
    yield Finding(test="mean", statistic=mean, p=_two_sided(mean))
    square = flat @ flat / variance
    yield Finding(test="variance", statistic=square / n, p=_chi2("", square, n).p)
    for name, axis in (("means of rows", 2), ("means of pixels", (0, 1))):
        sums = z.sum(axis=axis, dtype=np.float64).ravel()
        yield _chi2(name, sums @ sums * len(sums) / (n * variance), len(sums))
    # Edges between steps of the grid: rounding then moves no value into another bin.
    edges = np.unique((np.floor(ndtri(np.arange(1, BINS) / BINS) * WHITE) + 0.5) / WHITE)
    expected = n * np.diff(ndtr(edges), prepend=0, append=1)
    counts = np.bincount(np.searchsorted(edges, flat), minlength=len(expected))
    yield _chi2("histogram", float(((counts - expected) ** 2 / expected).sum()), len(edges))
    edge = (TAIL * WHITE + 0.5) / WHITE
    size = np.abs(flat)
    tail = int((size > edge).sum())
    yield Finding(test="tails", statistic=tail, p=_poisson(tail, 2 * n * ndtr(-edge)))
    # Expected beyond it; of a grid's step, the end that makes the p-value larger.
    largest, half = float(size.max()), on_grid * 0.5 / WHITE
    fewest, most = (2 * n * ndtr(-(largest + end)) for end in (half, -half))
    p = 2 * min(math.exp(-fewest), -math.expm1(-most))
    yield Finding(test="largest", statistic=largest, p=min(1.0, p))


def patterns(z: np.ndarray) -> Iterator[Finding]:
    """Does float32 noise have all the values that float32 has? Rounded noise repeats itself."""
    n = z.size
    repeats = n - len(np.unique(z))
    # A value v has a probability of density x spacing; between powers of two spacing is constant.
    expected = float(n)
    for exponent in range(-30, 4):
        v = np.linspace(2.0**exponent, 2.0 ** (exponent + 1), 65)
        spacing = 2.0 ** (exponent - 23)
        missed = -np.expm1(-n * spacing * np.exp(-v * v / 2) / math.sqrt(2 * math.pi)) / spacing
        expected -= 2 * np.trapezoid(missed, v)
    yield Finding(test="repeated values", statistic=repeats, p=_poisson(repeats, expected))


def independence(z: np.ndarray, after: np.ndarray, on_grid: bool) -> Iterator[Finding]:
    """Is any part like another: of this seed, or of this seed and the one after it?

    In the order (image, draw, pixel), neighbours of each kind and any two parts at a constant
    distance are a lag of one long sequence; all lags are tested at once.
    """
    signed, unsigned = ([f(part) for part in (z, after)] for f in (np.copy, np.abs))
    for name, (a, b) in (("values", signed), ("sizes", unsigned)):
        yield _correlation(f"{name} at any lag", a, a)
        yield _correlation(f"{name} of two seeds", a, b)
    # P of two equal values; enough of them in a block that two are never equal by chance
    alike, size = (1 / (2 * math.sqrt(math.pi) * WHITE), 8) if on_grid else (2.0**-24, 4)
    blocks = np.concatenate([z.reshape(-1, size), after.reshape(-1, size)])
    repeats = int(pd.DataFrame(blocks).duplicated().sum())
    expected = math.comb(len(blocks), 2) * alike**size
    p = float(poisson.sf(repeats - 1, expected))
    yield Finding(test="repeated blocks", statistic=repeats, p=p)


def _correlation(name: str, a: np.ndarray, b: np.ndarray) -> Finding:
    """The largest correlation over all circular lags, in standard errors; Bonferroni over lags."""
    n = a.size
    spectra = [fft.rfft((v.ravel() - v.mean(dtype=np.float64)) / v.std()) for v in (a, b)]
    lags = fft.irfft(spectra[0] * spectra[1].conj(), n) / math.sqrt(n)
    if a is b:
        lags = lags[1 : n // 2 + 1]  # without itself, and each lag once
        lags[-1] /= math.sqrt(2)  # which has each pair twice
    largest = float(np.abs(lags).max())
    return Finding(test=name, statistic=largest, p=min(1.0, len(lags) * _two_sided(largest)))


def _two_sided(standard: float) -> float:
    return float(2 * ndtr(-abs(standard)))


def _chi2(name: str, statistic: float, freedom: int) -> Finding:
    p = 2 * min(chdtr(freedom, statistic), chdtrc(freedom, statistic))
    return Finding(test=name, statistic=statistic, p=float(p))


def _poisson(count: int, expected: float) -> float:
    return min(1.0, float(2 * min(poisson.cdf(count, expected), poisson.sf(count - 1, expected))))
