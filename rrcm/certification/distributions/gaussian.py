"""Gaussian noise in float32, as in the literature: fast, and sound up to rounding.

The theorem is about real numbers; the rounding of float32 is not accounted for (`sound` does).
"""

from torch import Tensor

from rrcm.certification.sampling.normals import normals
from rrcm.noise import streams

NAME = "philox4x32-10, box-muller, fp32"


def noisy(
    x: Tensor, sigma: float, *, seed: int, images: Tensor, draws: Tensor, max_value: int
) -> Tensor:
    """``x + sigma * z``, float32 [B, C, H, W], with z of theory.md, eq. 2.

    Guarantee: row b is a function of (x[b], sigma, seed, images[b], draws[b]), bit-identical to
    ``x + sigma * streams.gaussian(seed, images, draws, shape)`` on the same device.

    Args:
        x: Pixels in [0, 1], float32 [B, C, H, W].
        sigma: Noise level on such pixels.
        seed: 0 <= seed < 2^64.
        images: Image indices below 2^32, int64 [B].
        draws: Draw indices below 2^32, int64 [B].
        max_value: Pixel value that became 1.0; not used.
    """
    return x + sigma * normals(seed, images, draws, tuple(x.shape[1:]), stream=streams.CERTIFY)


def slack(sigma: float, *, pixels: int, max_value: int) -> float:
    """0: by convention, certificates deduct nothing for the rounding of float32 noise."""
    return 0.0
