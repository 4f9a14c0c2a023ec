"""Which images a training step sees: a function of (seed, step), so that resuming is exact."""

import torch
from torch import Tensor

from rrcm import noise
from rrcm.errors import ConfigError


def steps_per_epoch(images: int, *, batch_size: int) -> int:
    """Full batches in one pass; the remainder of a pass is dropped (another one each epoch)."""
    if batch_size > images:
        raise ConfigError(
            f"batch_size: {batch_size} is larger than the training split, {images} images"
        )
    return images // batch_size


def rows(step: int, *, images: int, batch_size: int, seed: int) -> Tensor:
    """Rows of the training split at ``step``, int64 [batch_size].

    Guarantee: within an epoch no row comes twice, and every epoch has an order of its own.
    """
    epoch, place = divmod(step, steps_per_epoch(images, batch_size=batch_size))
    generator = torch.Generator().manual_seed(noise.torch_seed(seed, noise.ORDER, epoch))
    order = torch.randperm(images, generator=generator)
    return order[place * batch_size : (place + 1) * batch_size]
