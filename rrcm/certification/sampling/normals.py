"""Counter-based normal numbers: by compiled kernels on a CPU and on a GPU, else by PyTorch."""

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from rrcm.noise import streams

# The bits of the same operations one by one: no fused multiply-add, and division as in IEEE 754.
AS_WRITTEN: dict[str, str | int | bool | Callable[..., Any]] = {
    "emulate_precision_casts": True,
    "eager_numerics.division_rounding": True,
}


def normals(
    seed: int, images: Tensor, draws: Tensor, shape: tuple[int, ...], *, stream: int
) -> Tensor:
    """Standard normal numbers of each (image, draw) in a stream, float32 [B, *shape].

    Guarantee: row b depends on (seed, images[b], draws[b], stream) alone, and is the bits of
    `rrcm.noise.streams.gaussian` on the same device.
    """
    if draws.device.type == "cpu":
        from rrcm.certification.sampling import philox  # numba takes a while to import

        words = philox.words(seed, images, draws, math.prod(shape), stream=stream)
        return philox.box_muller(words, shape)
    if draws.device.type != "cuda":
        return streams.gaussian(seed, images, draws, shape, stream=stream)
    key = torch.tensor([seed & streams.MASK, seed >> 32]).to(draws.device)
    return _compiled()(tuple(key), images, draws, math.prod(shape), stream).view(-1, *shape)


@cache
def _compiled() -> Callable[..., Any]:
    """`streams.of_key` as one kernel. Seeds are tensors, so that it is not compiled for each."""
    return torch.compile(streams.of_key, fullgraph=True, options=AS_WRITTEN)
