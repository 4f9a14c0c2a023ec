"""Normalises noisy pixels by a network's mean and standard deviation."""

import numpy as np
import torch
from torch import Tensor, nn

from rrcm.core.errors import ConfigError

Channels = tuple[float, ...] | None
SMALLEST = 16.0  # std of pictures in units of 0..255; of those in [0, 1], 1 / std is about 4


class Normalisation(nn.Module):
    """``(x - mean) / std`` per channel, after the noise, so that the certificate covers it."""

    def __init__(self, mean: Channels, std: Channels, *, channels: int, device: str) -> None:
        """``mean`` and ``std`` of pixels in [0, 1], one for each channel or one for all.

        None is 0 and 1.

        Raises:
            ConfigError: Their number is wrong, or they are not finite, or above 1.
        """
        super().__init__()
        for name, values in (("mean", mean or (0.0,)), ("std", std or (1.0,))):
            text = ",".join(f"{value:g}" for value in values)
            if len(values) not in (1, channels):
                raise ConfigError(f"{name}: {channels} values, or one for all channels; got {text}")
            if not np.isfinite(values).all() or (name == "std" and min(values) <= 0):
                raise ConfigError(f"{name}: must be finite, and std positive, got {text}")
            if max(values) > 1:
                inverse = name == "std" and max(values) < SMALLEST
                said = "1 / std" if inverse else "in units of 0..255; pixels are in [0, 1]"
                meant = ",".join(f"{1 / v if inverse else v / 255:.4g}" for v in values)
                raise ConfigError(f"{name}: {text} is {said}: give {meant}")
            tensor = torch.tensor(values, dtype=torch.float32, device=device)
            self.register_buffer(name, tensor.expand(channels).clone()[None, :, None, None])

    def forward(self, x: Tensor) -> Tensor:
        """Normalised pixels, float32 [B, C, H, W]."""
        return (x - self.get_buffer("mean")) / self.get_buffer("std")

    def __str__(self) -> str:
        """Mean and std as text, which identifies the function."""
        mean, std = (t.flatten().tolist() for t in self.buffers())
        return f"mean {','.join(f'{m:.6g}' for m in mean)}, std {','.join(f'{s:.6g}' for s in std)}"
