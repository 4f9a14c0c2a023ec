"""Gaussian noise in float32, as all of the literature adds it: fast, and sound but for rounding.

The theorem is about real numbers. What float32 does to it is not accounted for here; `sound` does.
"""

from torch import Tensor

from rrcm import noise
from rrcm.noises import _randomise

NAME = "philox4x32-10, box-muller, fp32"
ON_GRID = False


def noisy(
    x: Tensor, sigma: float, *, seed: int, images: Tensor, draws: Tensor, white: int
) -> Tensor:
    """``x + sigma * z``, float32 [B, C, H, W], with z of theory.md, eq. 2.

    Guarantee: row b depends on (x[b], sigma, seed, images[b], draws[b]) alone, and is the bits of
    ``x + sigma * noise.gaussian(seed, images, draws, shape)`` on the same device.

    Args:
        x: Pixels in [0, 1], float32 [B, C, H, W].
        sigma: Noise level on such pixels.
        seed: 0 <= seed < 2^64.
        images: Image indices below 2^32, int64 [B].
        draws: Draw indices below 2^32, int64 [B].
        white: Pixel value that became 1.0; makes no difference here.
    """
    if x.device.type != "cpu":
        return x + sigma * noise.gaussian(seed, images, draws, tuple(x.shape[1:]))
    from rrcm import philox  # numba takes a while to import

    words = philox.words(seed, images, draws, x.shape[1:].numel(), per_pixel=1)
    return philox.add_normals(x, sigma, words)


def normals(seed: int, images: Tensor, draws: Tensor, shape: tuple[int, ...]) -> Tensor:
    """What a random base classifier draws, float32 [B, *shape]; see rrcm/noises/_randomise.py."""
    return _randomise.normals(seed, images, draws, shape)


def slack(sigma: float, *, pixels: int, white: int) -> float:
    """0: by convention, certificates deduct nothing for the rounding of float32 noise."""
    return 0.0
