"""What noises in steps of the pixel grid share: a search among thresholds, by exact numbers."""

from collections.abc import Callable
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from rrcm.core.errors import DataError
from rrcm.noise import streams

Thresholds = Callable[[float, int], np.ndarray]  # of sigma and the white level, as `sound` has them


def noisy(
    x: Tensor, sigma: float, max_value: int, at: tuple[int, Tensor, Tensor], thresholds: Thresholds
) -> Tensor:
    """``(k + i - m) / max_value`` for pixels ``x = k / max_value``, float32 [B, C, H, W].

    i counts the thresholds up to a word, and m is half their number: halves are exact, too. ``at``
    are seed, images and draws.
    """
    below = thresholds(sigma, max_value)
    middle = _levels(x, at[1], max_value) - len(below) / 2
    (seed, images, draws), pixels = at, x.shape[1:].numel()
    if draws.device.type == "cpu":
        from rrcm.certification.sampling import philox  # numba takes a while to import

        words = philox.words(seed, images, draws, 2 * pixels, stream=streams.CERTIFY)
        counts = philox.counts(words, _guide(thresholds, sigma, max_value), pixels)
    else:
        counts = bucketized(below, seed, images, draws, pixels)
    return _pixels(counts.view(x.shape) + middle, max_value)


def bucketized(below: np.ndarray, seed: int, images: Tensor, draws: Tensor, pixels: int) -> Tensor:
    """Number of thresholds at most u, float32 [B, pixels], in PyTorch, for any device."""
    blocks = torch.arange(-(-pixels // 2), device=draws.device)
    counter = torch.stack(
        torch.broadcast_tensors(
            blocks, draws[:, None], images[:, None], torch.full_like(blocks, streams.CERTIFY)
        ),
        dim=-1,
    )
    words = streams.philox(counter, (seed & streams.MASK, seed >> 32)).view(len(draws), -1, 2)
    u = (words[:, :pixels, 0] << 31) | (words[:, :pixels, 1] >> 1)
    return torch.bucketize(u, torch.from_numpy(below).to(u.device), right=True).float()


@lru_cache(maxsize=16)
def _guide(thresholds: Thresholds, sigma: float, max_value: int) -> tuple[np.ndarray, np.ndarray]:
    from rrcm.certification.sampling import philox

    return philox.guide(thresholds(sigma, max_value))


def _pixels(k: Tensor, max_value: int) -> Tensor:
    """``k / max_value`` rounded once; PyTorch on CUDA would multiply by a number's reciprocal."""
    return k / torch.tensor(max_value, dtype=torch.float32).to(k.device)


def _levels(x: Tensor, images: Tensor, max_value: int) -> Tensor:
    """k of x = k / max_value, float32; [1, C, H, W] where all rows are one and the same."""
    if x.stride(0) == 0:
        x = x[:1]
    k = (x * max_value).round()
    wrong = (_pixels(k, max_value) != x) | (k < 0) | (k > max_value)
    if bool(wrong.any()):
        row = int(wrong.flatten(1).any(1).nonzero()[0])
        raise DataError(
            f"image {int(images[row])}: pixel {float(x[row][wrong[row]][0])} is not on the grid "
            f"0/{max_value} … {max_value}/{max_value}; sound noise needs it there, "
            "`gaussian` does not"
        )
    return k
