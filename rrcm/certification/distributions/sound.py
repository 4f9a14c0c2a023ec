"""Noise in whole steps of the pixel grid, with certificates valid in floating point.

Source: Voráček & Hein (2023), arXiv:2207.07209. They construct classifiers that recover x from the
low bits of the float32 sum x + noise and have false Gaussian certificates. Noise in whole steps has
no such bits. Theorem and proof: docs/theory.md, Sound noise.
"""

import threading
from functools import lru_cache

import numpy as np
from torch import Tensor

from rrcm.certification.distributions import _steps
from rrcm.core.errors import DataError

NAME = "philox4x32-10, rounded normal on the pixel grid, 63-bit thresholds"
LARGEST = 2**12  # of max_value * sigma: k + i stays far below 2^24, so it is exact in float32
BITS = 63

_one_at_a_time = threading.Lock()  # mpmath's cache of constants is not thread-safe


def noisy(
    x: Tensor, sigma: float, *, seed: int, images: Tensor, draws: Tensor, max_value: int
) -> Tensor:
    """``(k + i) / max_value`` for pixels ``x = k / max_value``, float32 [B, C, H, W] (eq. 31).

    Guarantee: row b depends on (x[b], sigma, seed, images[b], draws[b], max_value) alone, with the
    same bits on every device, because all arithmetic up to one IEEE 754 division is exact. A pixel
    depends on k and i through their sum only. Equation numbers are those of docs/theory.md.

    Arguments are those of `gaussian.noisy`, with k in 0 .. max_value, 255 for images of 8 bits.

    Raises:
        DataError: A pixel of ``x`` is not on the grid, or the grid is too fine for sigma.
    """
    return _steps.noisy(x, sigma, max_value, (seed, images, draws), thresholds)


def slack(sigma: float, *, pixels: int, max_value: int) -> float:
    """Bound of the total variation between one draw of ``pixels`` values and exact noise (eq. 33).

    Class probabilities differ from those under exact Gaussian noise by at most this; probabilities
    of events of N draws by at most N times this.
    """
    return pixels * (len(thresholds(sigma, max_value)) + 2) * 2.0**-BITS


@lru_cache(maxsize=16)
def thresholds(sigma: float, max_value: int) -> np.ndarray:
    """``round(2^63 Phi((2i + 1) / (2 max_value sigma)))`` for i = -m .. m - 1, int64 [2m] (eq. 32).

    Those strictly between 0 and 2^63, ascending. Each is within one unit of its exact value.
    """
    if not 0 < max_value * sigma <= LARGEST:
        raise DataError(
            f"sound noise needs 0 < max_value * sigma <= {LARGEST}, got max_value {max_value} "
            f"and sigma {sigma}; use the noise `gaussian` for finer grids"
        )
    import mpmath

    with _one_at_a_time:
        mp = mpmath.MPContext()
        mp.prec = 128
        scale = mp.mpf(2) * max_value * mp.mpf(sigma)
        upper: list[int] = []  # 2^63 (1 - Phi), where float64 would keep 10 bits of it
        while tail := int(mp.nint(mp.ldexp(mp.ncdf(-(2 * len(upper) + 1) / scale), BITS))):
            upper.append(tail)
    return np.array(upper[::-1] + [2**BITS - tail for tail in upper], dtype=np.int64)
