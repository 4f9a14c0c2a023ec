"""Whole steps of the pixel grid, whose certificates hold for the floats that are computed.

Source: Voráček & Hein (2023), arXiv:2207.07209. They show classifiers that read x from the low bits
of the float32 sum x + noise, and whose Gaussian certificates are false. Noise in whole steps leaves
no such bits. Derivation and statement: docs/theory.md, Sound noise.
"""

import threading
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from rrcm import noise
from rrcm.errors import DataError
from rrcm.noises import _randomise

NAME = "philox4x32-10, rounded normal on the pixel grid, 63-bit thresholds"
ON_GRID = True
LARGEST = 2**12  # of white * sigma: (k + i) stays far below 2^24, up to which float32 counts
BITS = 63

_one_at_a_time = threading.Lock()  # mpmath keeps constants in a cache that threads would tear


def noisy(
    x: Tensor, sigma: float, *, seed: int, images: Tensor, draws: Tensor, white: int
) -> Tensor:
    """``(k + i) / white`` for pixels ``x = k / white``, float32 [B, C, H, W] (theory.md, eq. 31).

    Guarantee: row b depends on (x[b], sigma, seed, images[b], draws[b], white) alone, with the same
    bits on every device, because all arithmetic up to one IEEE 754 division is exact. A pixel
    depends on k and i through their sum only.

    Args:
        x: Pixels k / white with k in 0 .. white, float32 [B, C, H, W].
        sigma: Noise level on such pixels.
        seed: 0 <= seed < 2^64.
        images: Image indices below 2^32, int64 [B].
        draws: Draw indices below 2^32, int64 [B].
        white: Pixel value that became 1.0: 255 for images of 8 bits.

    Raises:
        DataError: A pixel of ``x`` is not on the grid, or the grid is too fine for sigma.
    """
    k = _levels(x, images, white)
    lowest = -(len(thresholds(sigma, white)) // 2)
    counts = _counts(sigma, white, seed, images, draws, x.shape[1:].numel()).view(x.shape)
    return _pixels(counts + (k + lowest), white)


def normals(seed: int, images: Tensor, draws: Tensor, shape: tuple[int, ...]) -> Tensor:
    """What a random base classifier draws, float32 [B, *shape]; see rrcm/noises/_randomise.py."""
    return _randomise.normals(seed, images, draws, shape)


def slack(sigma: float, *, pixels: int, white: int) -> float:
    """How far one draw of ``pixels`` values is from exact noise, in total variation (eq. 33).

    Probabilities of classes are that close to those under exact Gaussian noise, and of whatever N
    draws decide, N times that.
    """
    return pixels * (len(thresholds(sigma, white)) + 2) * 2.0**-BITS


@lru_cache(maxsize=16)
def thresholds(sigma: float, white: int) -> np.ndarray:
    """``round(2^63 Phi((2i + 1) / (2 white sigma)))`` for i = -m .. m - 1, int64 [2m] (eq. 32).

    All that lie strictly between 0 and 2^63, ascending. Each is within one unit of its real value.
    """
    if not 0 < white * sigma <= LARGEST:
        raise DataError(
            f"sound noise needs 0 < white * sigma <= {LARGEST}, got white {white} and sigma "
            f"{sigma}; use the noise `gaussian` for finer grids"
        )
    import mpmath

    with _one_at_a_time:
        mp = mpmath.MPContext()
        mp.prec = 128
        scale = mp.mpf(2) * white * mp.mpf(sigma)
        upper: list[int] = []  # 2^63 (1 - Phi), where float64 would keep 10 bits of it
        while tail := int(mp.nint(mp.ldexp(mp.ncdf(-(2 * len(upper) + 1) / scale), BITS))):
            upper.append(tail)
    return np.array(upper[::-1] + [2**BITS - tail for tail in upper], dtype=np.int64)


def _counts(
    sigma: float, white: int, seed: int, images: Tensor, draws: Tensor, pixels: int
) -> Tensor:
    """How many thresholds are at most u, float32 [B, pixels], for 63 bits u of two words each."""
    if draws.device.type == "cpu":
        from rrcm import philox  # numba takes a while to import

        words = philox.words(seed, images, draws, pixels, per_pixel=2)
        return philox.counts(words, _guide(sigma, white), pixels)
    return _bucketized(sigma, white, seed, images, draws, pixels)


def _bucketized(
    sigma: float, white: int, seed: int, images: Tensor, draws: Tensor, pixels: int
) -> Tensor:
    """The counts by PyTorch, on any device."""
    blocks = torch.arange(-(-pixels // 2), device=draws.device)
    counter = torch.stack(
        torch.broadcast_tensors(
            blocks, draws[:, None], images[:, None], torch.full_like(blocks, noise.CERTIFY)
        ),
        dim=-1,
    )
    words = noise.philox(counter, (seed & noise.MASK, seed >> 32)).view(len(draws), -1, 2)
    u = (words[:, :pixels, 0] << 31) | (words[:, :pixels, 1] >> 1)
    below = torch.from_numpy(thresholds(sigma, white)).to(u.device)
    return torch.bucketize(u, below, right=True).float()


@lru_cache(maxsize=16)
def _guide(sigma: float, white: int) -> tuple[np.ndarray, np.ndarray]:
    from rrcm import philox

    return philox.guide(thresholds(sigma, white))


def _pixels(k: Tensor, white: int) -> Tensor:
    """``k / white``, rounded once: by a number, PyTorch on CUDA multiplies by its reciprocal."""
    return k / torch.tensor(white, dtype=torch.float32).to(k.device)


def _levels(x: Tensor, images: Tensor, white: int) -> Tensor:
    """k of x = k / white, float32; [1, C, H, W] where all rows are one and the same."""
    if x.stride(0) == 0:
        x = x[:1]
    k = (x * white).round()
    wrong = (_pixels(k, white) != x) | (k < 0) | (k > white)
    if bool(wrong.any()):
        row = int(wrong.flatten(1).any(1).nonzero()[0])
        raise DataError(
            f"image {int(images[row])}: pixel {float(x[row][wrong[row]][0])} is not on the grid "
            f"0/{white} … {white}/{white}; sound noise needs it there, `gaussian` does not"
        )
    return k
