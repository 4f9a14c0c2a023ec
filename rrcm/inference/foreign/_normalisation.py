"""Normalises noisy pixels by a network's mean and standard deviation."""

import copy

import numpy as np
import torch
from torch import Tensor

from rrcm.core.errors import ConfigError


class Normalisation:
    """``(x - mean) / std`` per channel, after the noise, so that the certificate covers it."""

    def __init__(
        self, mean: tuple[float, ...], std: tuple[float, ...], *, channels: int, device: str
    ) -> None:
        """``mean`` and ``std`` of pixels in [0, 1], one for each channel or one for all.

        Raises:
            ConfigError: Their number is wrong, or they are not finite, or in units of 0..255.
        """
        for name, values in (("mean", mean), ("std", std)):
            text = ",".join(f"{value:g}" for value in values)
            if len(values) not in (1, channels):
                raise ConfigError(f"{name}: {channels} values for {channels} channels, got {text}")
            if not np.isfinite(values).all() or (name == "std" and min(values) <= 0):
                raise ConfigError(f"{name}: must be finite, and std positive, got {text}")
            if max(values) > 1:
                scaled = ",".join(f"{value / 255:.4g}" for value in values)
                raise ConfigError(
                    f"{name}: {text} is in units of 0..255; pixels are in [0, 1]: give {scaled}"
                )
        self.mean, self.std = (
            torch.tensor(values, dtype=torch.float32, device=device)
            .broadcast_to(channels)
            .reshape(1, channels, 1, 1)
            for values in (mean, std)
        )

    def on(self, device: str) -> "Normalisation":
        """The same on another device."""
        moved = copy.copy(self)
        moved.mean, moved.std = self.mean.to(device), self.std.to(device)
        return moved

    def __call__(self, x: Tensor) -> Tensor:
        """Normalised pixels, float32 [B, C, H, W]."""
        return (x - self.mean) / self.std

    def __str__(self) -> str:
        """Mean and std as text, which identifies the function."""
        mean, std = (t.flatten().tolist() for t in (self.mean, self.std))
        return f"mean {','.join(f'{m:.6g}' for m in mean)}, std {','.join(f'{s:.6g}' for s in std)}"
