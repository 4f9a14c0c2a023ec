"""Uniform noise in steps of the pixel grid, whose certificates are of L1, valid in floating point.

Sources: Lee et al. (2019), arXiv:1906.04948, and Yang et al. (2020), arXiv:2002.08118, who draw it
from an interval. Theorem and proof on the grid: docs/theory.md, eq. 62.
"""

import math
from functools import lru_cache

import numpy as np
from torch import Tensor

from rrcm.certification.distributions import _steps
from rrcm.core.errors import DataError

NAME = "philox4x32-10, uniform on steps of the pixel grid, 63-bit thresholds"
LARGEST = 2**16  # steps: k + i stays far below 2^23, so its halves are exact in float32
BITS, ROUNDING = 63, 1e-12  # of u; more than that of a product


def noisy(
    x: Tensor, sigma: float, *, seed: int, images: Tensor, draws: Tensor, max_value: int
) -> Tensor:
    """``(k + i - (q - 1) / 2) / max_value`` for pixels ``x = k / max_value``, [B, C, H, W].

    i is uniform on 0 .. q - 1. Guarantee, arguments and errors are those of `sound.noisy`.
    """
    return _steps.noisy(x, sigma, max_value, (seed, images, draws), thresholds)


def slack(sigma: float, *, pixels: int, max_value: int) -> float:
    """Bound of the total variation between one draw of ``pixels`` values and exact noise.

    Of the 2^63 values of u, each of the q steps has its share to less than one.
    """
    return pixels * (len(thresholds(sigma, max_value)) + 1) * 2.0**-BITS


@lru_cache(maxsize=16)
def thresholds(sigma: float, max_value: int) -> np.ndarray:
    """The q - 1 numbers that part 2^63 into q steps, q = 2 sqrt(3) sigma max_value, rounded up."""
    steps = 2 * math.sqrt(3) * sigma * max_value * (1 - ROUNDING)
    if not 0 < steps <= LARGEST:
        of = f"max_value {max_value} and sigma {sigma}"
        raise DataError(
            f"uniform noise: up to {LARGEST} steps of the pixel grid, not those of {of}"
        )
    q = math.ceil(steps)
    return np.array([(j << BITS) // q for j in range(1, q)], dtype=np.int64)
