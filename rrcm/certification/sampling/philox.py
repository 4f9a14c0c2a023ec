"""Compiled CPU kernels of the noise, bit-identical to rrcm/noise/streams.py.

numba compiles them for the processor at hand. Importing this module imports numba, so components
import it where they first draw; Python's import lock makes that safe from several threads. Kernels
release the GIL.

The bits agree because fastmath is off, so LLVM neither reorders nor fuses float32 operations, and
its square root is the IEEE 754 one; constants are rounded to float32 first, as PyTorch does.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numba import njit
from numba.extending import intrinsic
from torch import Tensor

from rrcm.noise import streams

_u32, _u64, _i32, _f32 = np.uint32, np.uint64, np.int32, np.float32
_HALF, _LOW = _u64(32), _u64(streams.MASK)
_MULTIPLY0, _MULTIPLY1 = _u64(0xD2511F53), _u64(0xCD9E8D57)
_WEYL0, _WEYL1 = _u64(0x9E3779B9), _u64(0xBB67AE85)
_ONE, _TWO, _ULP, _SQRT_HALF = _f32(1), _f32(2), _f32(2.0**-32), _f32(math.sqrt(0.5))
_LN2, _ANGLE = _f32(math.log(2)), _f32(math.pi / 2 * 2.0**-30)
_L3, _L5, _L7, _L9 = _f32(1 / 3), _f32(1 / 5), _f32(1 / 7), _f32(1 / 9)
_S3, _S5, _S7, _S9 = _f32(-1 / 6), _f32(1 / 120), _f32(-1 / 5040), _f32(1 / 362880)
_C2, _C4, _C6 = _f32(-1 / 2), _f32(1 / 24), _f32(-1 / 720)
_C8, _C10 = _f32(1 / 40320), _f32(-1 / 3628800)
_FRACTION, _UNIT = _i32(0x007FFFFF), _i32(0x3F000000)  # a float32's mantissa; the exponent of 1/2
_TURN, _EIGHTH, _ODD = _i32(0x3FFFFFFF), _i32(1 << 29), _i32(1 << 30)
BITS = 63  # of the uniform integer u made of two words; the most that int64 holds
_LEADING = 14  # bits of u that index a table, which leaves a step or two to search
_SHIFT = _u64(BITS - _LEADING)


def words(seed: int, images: Tensor, draws: Tensor, count: int, *, stream: int) -> np.ndarray:
    """``count`` Philox words of each (image, draw) in a stream, uint32 [B, whole blocks of 4].

    A row starts with the words that `rrcm.noise.streams.gaussian` computes for it.
    """
    out = np.empty((len(draws), -(-count // 4) * 4), dtype=np.uint32)
    places = (np.ascontiguousarray(index.numpy()) for index in (images, draws))
    _philox(out, _u64(seed), *places, _u64(stream))
    return out


def box_muller(words: np.ndarray, shape: tuple[int, ...]) -> Tensor:
    """Standard normal numbers, float32 [B, *shape], from one word each.

    Guarantee: the bits of `rrcm.noise.streams.box_muller` for ``words`` uint32 [B, as many as
    ``shape`` has numbers or more, even].
    """
    out = np.empty((len(words), math.prod(shape)), dtype=np.float32)
    radius = np.empty((len(words), words.shape[1] // 2), dtype=np.float32)
    _radius(radius.ravel(), words.ravel())
    _box_muller(out, words, radius)
    return torch.from_numpy(out).view(-1, *shape)


def guide(thresholds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Search table of `counts`: ``thresholds``, and how many are passed by the leading bits of u.

    They are ascending, 0 < threshold < 2^63, int64.
    """
    starts = np.arange(1 << _LEADING) << (BITS - _LEADING)
    passed = np.searchsorted(thresholds, starts, side="right").astype(np.int32)
    return np.append(thresholds.astype(np.uint64), _u64(1 << BITS)), passed


def counts(words: np.ndarray, guide: tuple[np.ndarray, np.ndarray], pixels: int) -> Tensor:
    """Number of thresholds of a `guide` at most u, float32 [B, pixels].

    A pair of ``words``, uint32 [B, 2 * pixels or more], makes u, ``first << 31 | second >> 1``.
    """
    out = np.empty((len(words), pixels), dtype=np.float32)
    _counts(out, words, *guide)
    return torch.from_numpy(out)


def _kernel(function: Callable[..., None]) -> Callable[..., None]:
    """Compile on first use, and cache the machine code if a cache folder is writable."""
    try:
        return njit(nogil=True, error_model="numpy", cache=True)(function)
    except RuntimeError:  # neither the package's folder nor the user's cache is writable
        return njit(nogil=True, error_model="numpy")(function)


@intrinsic
def _bits(context: Any, value: Any, kind: Any) -> Any:
    """The bits of a 32-bit number, read as another type."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], context.get_value_type(signature.return_type))

    return kind.dtype(value, kind), generate


@_kernel
def _philox(
    out: np.ndarray, seed: np.uint64, images: np.ndarray, draws: np.ndarray, stream: np.uint64
) -> None:
    """See streams.philox; 32-bit words in 64 bits, so that products keep their upper halves."""
    rows, blocks = out.shape[0], out.shape[1] // 4
    for row in range(rows):
        image, draw = _u64(images[row]), _u64(draws[row])
        for block in range(blocks):
            c0, c1, c2, c3 = _u64(block), draw, image, stream
            k0, k1 = seed & _LOW, seed >> _HALF
            for _ in range(10):
                product0, product1 = _MULTIPLY0 * c0, _MULTIPLY1 * c2
                c0, c1 = (product1 >> _HALF) ^ c1 ^ k0, product1 & _LOW
                c2, c3 = (product0 >> _HALF) ^ c3 ^ k1, product0 & _LOW
                k0, k1 = (k0 + _WEYL0) & _LOW, (k1 + _WEYL1) & _LOW
            out[row, 4 * block] = c0
            out[row, 4 * block + 1] = c1
            out[row, 4 * block + 2] = c2
            out[row, 4 * block + 3] = c3


@_kernel
def _radius(out: np.ndarray, words: np.ndarray) -> None:
    """The root of -2 ln u of the first word of each pair; see streams.box_muller and _log."""
    for i in range(out.size):
        a = words[2 * i]
        # a + 1, except that 2^32 - 1 would wrap; as float32 it is 2^32 anyway
        u = _f32(_u32(a + _u32(a != _LOW))) * _ULP
        bits: Any = _bits(u, _i32)  # type: ignore[call-arg]  # numba passes the context
        exponent = _i32((bits >> _i32(23)) - _i32(126))
        mantissa = _bits(_i32((bits & _FRACTION) | _UNIT), _f32)
        small = mantissa < _SQRT_HALF
        mantissa = _TWO * mantissa if small else mantissa
        exponent = _i32(exponent - _i32(small))
        s = (mantissa - _ONE) / (mantissa + _ONE)
        z = s * s
        series = z * (_L3 + z * (_L5 + z * (_L7 + z * _L9)))
        out[i] = np.sqrt(-_TWO * (_f32(exponent) * _LN2 + _TWO * (s + s * series)))


@njit(inline="always")
def _pair(word: np.uint32, radius: np.float32) -> tuple[np.float32, np.float32]:
    """See streams.box_muller and _sin_cos."""
    b = _i32(word)
    x = _f32(_i32((b & _TURN) - _EIGHTH)) * _ANGLE
    z = x * x
    sin = x + x * z * (_S3 + z * (_S5 + z * (_S7 + z * _S9)))
    cos = _ONE + z * (_C2 + z * (_C4 + z * (_C6 + z * (_C8 + z * _C10))))
    odd = (b & _ODD) != 0
    sign = -_ONE if b < 0 else _ONE
    return (-sin if odd else cos) * sign * radius, (cos if odd else sin) * sign * radius


@_kernel
def _box_muller(out: np.ndarray, words: np.ndarray, radius: np.ndarray) -> None:
    rows, pixels = out.shape
    pairs = pixels // 2
    for row in range(rows):
        for i in range(pairs):
            z0, z1 = _pair(words[row, 2 * i + 1], radius[row, i])
            out[row, 2 * i] = z0
            out[row, 2 * i + 1] = z1
        if pixels % 2:
            z0, _ = _pair(words[row, pixels], radius[row, pairs])
            out[row, pixels - 1] = z0


@_kernel
def _counts(out: np.ndarray, words: np.ndarray, thresholds: np.ndarray, passed: np.ndarray) -> None:
    """Linear search from the table's guess; the last threshold is above every u and ends it."""
    rows, pixels = out.shape
    for row in range(rows):
        for p in range(pixels):
            u = (_u64(words[row, 2 * p]) << _u64(31)) | (_u64(words[row, 2 * p + 1]) >> _u64(1))
            i = _u64(passed[u >> _SHIFT])  # unsigned, so that numba looks for no negative index
            while thresholds[i] <= u:
                i += _u64(1)
            out[row, p] = i
