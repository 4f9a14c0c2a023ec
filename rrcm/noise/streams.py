"""Random streams: the noise of certification, and seeds for everything else.

The noise of certification is counter-based: draw d of image i under a seed is one function of
(seed, i, d), computed with Philox4x32-10 (Salmon et al., 2011, "Parallel random numbers: as easy
as 1, 2, 3") and a Box-Muller transform that uses only operations whose IEEE 754 result is unique
(+, -, *, /, sqrt). A library logarithm or cosine may round differently in a vector lane than in the
remainder of a loop, and votes would then depend on the batch that contains a draw.
"""

import math

import torch
from torch import Tensor

MASK = 0xFFFFFFFF
# One stream per purpose, so that no random number is used for two.
CERTIFY, VALIDATE, PARITY, INITIALISE, ORDER, STEP, RANDOMISE, LOCAL = range(8)


def torch_seed(seed: int, stream: int, step: int = 0) -> int:
    """A seed for torch's generator, distinct for each stream below 2^6 and (seed, step) in use."""
    return (stream << 56) + seed * 1_000_003 + step


def philox(counter: Tensor, key: tuple[int | Tensor, int | Tensor]) -> Tensor:
    """Philox4x32-10: the 128-bit ``counter`` [..., 4] under a 64-bit key, as words [..., 4].

    Words are unsigned 32-bit integers held in int64; the key has two, the lower one first.
    """
    c0, c1, c2, c3 = counter.unbind(-1)
    k0, k1 = key
    for _ in range(10):
        product0, product1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2  # wraps, keeping all 64 bits
        c0, c1, c2, c3 = (
            ((product1 >> 32) & MASK) ^ c1 ^ k0,
            product1 & MASK,
            ((product0 >> 32) & MASK) ^ c3 ^ k1,
            product0 & MASK,
        )
        k0, k1 = (k0 + 0x9E3779B9) & MASK, (k1 + 0xBB67AE85) & MASK
    return torch.stack([c0, c1, c2, c3], dim=-1)


def gaussian(
    seed: int, images: Tensor, draws: Tensor, shape: tuple[int, ...], *, stream: int = CERTIFY
) -> Tensor:
    """Standard normal noise for draw ``draws[b]`` of image ``images[b]``, float32 [B, *shape].

    Guarantee: a pixel depends only on its position, (seed, image, draw) and the stream, not on the
    batch, its row in the batch, or the number of threads.

    Args:
        seed: 0 <= seed < 2^64.
        images: Image indices, int64 [B], below 2^32.
        draws: Draw indices, int64 [B], below 2^32.
        shape: Shape of one image.
        stream: Purpose of the noise; streams are independent of each other.
    """
    flat = of_key((seed & MASK, seed >> 32), images, draws, math.prod(shape), stream)
    return flat.reshape(-1, *shape)


def of_key(
    key: tuple[int | Tensor, int | Tensor], images: Tensor, draws: Tensor, size: int, stream: int
) -> Tensor:
    """`gaussian` for images of ``size`` pixels, [B, size], and the two words of a seed."""
    blocks = torch.arange(-(-size // 4), device=draws.device)
    parts = (blocks, draws[:, None], images[:, None], torch.full_like(blocks, stream))
    counter = torch.stack(torch.broadcast_tensors(*parts), dim=-1)  # [B, ceil(size / 4), 4]
    words = philox(counter, key).flatten(1).view(len(draws), -1, 2)
    return box_muller(words[..., 0], words[..., 1]).flatten(1)[:, :size]


def box_muller(a: Tensor, b: Tensor) -> Tensor:
    """Two independent normals, float32 [..., 2], from two uniform 32-bit words [...] (eq. 2)."""
    # The square root is taken in float64: that of PyTorch's CPU build (MKL) in float32 may be off
    # by one unit in the last place.
    radius = torch.sqrt((-2 * _log((a + 1).float() * 2.0**-32)).double()).float()
    # The top two bits of b choose a quadrant, the others an angle in [-pi/4, pi/4) within it.
    quadrant = b >> 30
    angle = ((b & 0x3FFFFFFF) - (1 << 29)).float() * (math.pi / 2 * 2.0**-30)
    sin, cos = _sin_cos(angle)
    odd = (quadrant & 1).bool()
    sign = (1 - (quadrant & 2)).float()
    first = torch.where(odd, -sin, cos) * sign * radius
    second = torch.where(odd, cos, sin) * sign * radius
    return torch.stack([first, second], dim=-1)


def _log(u: Tensor) -> Tensor:
    """Natural logarithm of 0 < u <= 1: 2 artanh(s) of the mantissa, plus the exponent's ln 2."""
    mantissa, exponent = torch.frexp(u)  # mantissa in [1/2, 1), both exact
    small = mantissa < math.sqrt(0.5)
    mantissa = torch.where(small, 2 * mantissa, mantissa)
    exponent = torch.where(small, exponent - 1, exponent)
    s = (mantissa - 1) / (mantissa + 1)  # |s| < 0.172
    z = s * s
    series = z * (1 / 3 + z * (1 / 5 + z * (1 / 7 + z * (1 / 9))))
    return exponent * math.log(2) + 2 * (s + s * series)


def _sin_cos(x: Tensor) -> tuple[Tensor, Tensor]:
    """Taylor series on |x| <= pi/4, where their remainders are below 3e-9."""
    z = x * x
    sin = x + x * z * (-1 / 6 + z * (1 / 120 + z * (-1 / 5040 + z * (1 / 362880))))
    cos = 1 + z * (-1 / 2 + z * (1 / 24 + z * (-1 / 720 + z * (1 / 40320 + z * (-1 / 3628800)))))
    return sin, cos
