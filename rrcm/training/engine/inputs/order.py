"""The order of training images, a function of (seed, step), so that resuming is exact."""

from functools import lru_cache
from itertools import accumulate

import torch
from torch import Tensor

from rrcm.core.errors import ConfigError
from rrcm.noise import streams

WINDOW = 16  # shards whose images are shuffled together, and so read at the same time


def steps_per_epoch(images: int, *, batch_size: int) -> int:
    """Number of full batches in an epoch; a remainder, different each epoch, is dropped."""
    if batch_size > images:
        raise ConfigError(
            f"batch_size: {batch_size} is larger than the training split, {images} images"
        )
    return images // batch_size


def rows(
    step: int, *, shards: tuple[int, ...], batch_size: int, seed: int, weights: Tensor | None = None
) -> Tensor:
    """Rows of the training split at ``step``, int64 [batch_size].

    ``shards`` counts the images of each shard; images in memory are one shard. Shards are shuffled,
    then the images of each group of `WINDOW` shards, so that a step reads from a few files only.

    With ``weights`` [N] the rows of an epoch are drawn from all, independently and in proportion to
    them, without regard to shards.

    Guarantee: within an epoch without weights no row comes twice, and every epoch has its own
    order. The cost does not depend on ``step``.
    """
    epoch, place = divmod(step, steps_per_epoch(sum(shards), batch_size=batch_size))
    order = _order(shards, seed, epoch) if weights is None else _drawn(weights, seed, epoch)
    return order[place * batch_size : (place + 1) * batch_size]


@lru_cache(maxsize=2)  # ordering a million images takes longer than a step
def _order(shards: tuple[int, ...], seed: int, epoch: int) -> Tensor:
    generator = torch.Generator().manual_seed(streams.torch_seed(seed, streams.ORDER, epoch))
    if len(shards) <= WINDOW:
        return torch.randperm(sum(shards), generator=generator)
    ends = [*accumulate(shards)]
    parts = []
    for window in torch.randperm(len(shards), generator=generator).split(WINDOW):
        images = torch.cat([torch.arange(ends[i] - shards[i], ends[i]) for i in window.tolist()])
        parts.append(images[torch.randperm(len(images), generator=generator)])
    return torch.cat(parts)


@lru_cache(maxsize=2)  # a tensor equals itself alone
def _drawn(weights: Tensor, seed: int, epoch: int) -> Tensor:
    generator = torch.Generator().manual_seed(streams.torch_seed(seed, streams.ORDER, epoch))
    return torch.multinomial(weights, len(weights), replacement=True, generator=generator)
