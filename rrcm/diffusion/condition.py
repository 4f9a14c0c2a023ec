r"""What a conditional diffusion model is told: the representation of an image, standardised.

Li et al. (2024), arXiv:2312.03701, as in the appendix of Lei et al. (2025): in training the
condition is of the clean image; in generation it is that of pure noise, which the encoder maps to
similar representations. Equation numbers are those of docs/theory.md.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rrcm.core import registry
from rrcm.core.errors import CheckpointError, ConfigError
from rrcm.core.schema import parse
from rrcm.data.splits.shards import Split
from rrcm.models.trained.base import checkpoint
from rrcm.noise import units

ROWS = 512  # images that are encoded at a time


class Condition(nn.Module):
    """An encoder, and the mean and standard deviation of its output over clean images."""

    mean: Tensor  # [D]
    std: Tensor

    def __init__(self, encoder: nn.Module, *, t_min: float, t_max: float) -> None:
        """``t_min`` and ``t_max`` are the ends of the encoder's trajectories, in model space."""
        super().__init__()
        self.encoder, self.t_min, self.t_max = encoder, t_min, t_max
        self.register_buffer("mean", torch.zeros(()))
        self.register_buffer("std", torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        """Conditions [B, D] of clean pixels [B, C, H, W] in [0, 1] (eq. 57a)."""
        return self._at(x, self.t_min)

    @torch.no_grad()
    def of_pictures(self, images: Any, *, max_value: int) -> Iterator[np.ndarray]:
        """Conditions [n, D] of uint8 pictures [N, C, H, W], in batches."""
        for first in range(0, len(images), ROWS):
            pixels = images[first : first + ROWS].astype(np.float32) / np.float32(max_value)
            yield self(torch.from_numpy(pixels).to(self.mean.device)).cpu().numpy()

    def of_noise(self, z: Tensor) -> Tensor:
        """Conditions [B, D] of pure noise, ``t_max`` times ``z`` [B, C, H, W] in model space."""
        return self._at(units.to_pixels(self.t_max * z), self.t_max)

    def _at(self, x: Tensor, t: float) -> Tensor:
        sigma = units.to_sigma(torch.tensor(t, dtype=x.dtype, device=x.device))
        return (self.encoder(x, sigma) - self.mean) / self.std


class Told(nn.Module):
    """A conditional ``network`` that was told ``condition`` [B, D]: (x, time input) -> x."""

    def __init__(self, network: nn.Module, condition: Tensor) -> None:
        super().__init__()
        self.network, self.condition = network, condition

    def forward(self, x: Tensor, told: Tensor) -> Tensor:
        """Output of the network for ``x`` [B, C, H, W] and time input ``told`` [B]."""
        return self.network(x, told, self.condition)


def load(folder: Path, split: Split, *, device: str = "cpu") -> Condition:
    """The encoder in ``folder``, ``pretrained/<name>``, standardised over all images of ``split``.

    In evaluation mode and frozen. A dimension that is constant over the images keeps its unit.

    Raises:
        CheckpointError: The encoder is missing or damaged, or does not say what network it is of.
    """
    path = folder / "encoder.safetensors"
    tensors, about = checkpoint.load(path)
    try:
        made = json.loads(about["params"])
        pretrain = made[f"pretrain.{folder.name}"]
        module = registry.load("networks", pretrain["architecture"])
        shape = parse(made[f"models.{pretrain['model']}"], module.Config, where="its model")
        ends = {end: float(pretrain["grid"][end]) for end in ("t_min", "t_max")}
    except (KeyError, TypeError, ValueError, ConfigError) as error:
        why = f"its metadata do not say of what network it is ({error!r})"
        raise CheckpointError(f"{path}: {why}; `rrcm repro pretrain@{folder.name}`") from None
    encoder = module.Encoder(shape)
    checkpoint.restore(encoder, tensors, source=str(path))
    told = Condition(encoder, **ends).to(device).eval().requires_grad_(False)
    return standardise(told, split)


def standardise(told: Condition, split: Split) -> Condition:
    """Set the mean and standard deviation of ``told`` to those over all images of ``split``."""
    device, batches = told.mean.device, told.of_pictures(split.images, max_value=split.max_value)
    features = torch.from_numpy(np.concatenate([*batches])).double()
    std, mean = torch.std_mean(features, dim=0, correction=0)
    told.mean = mean.float().to(device)
    told.std = torch.where(std > 0, std, 1.0).float().to(device)
    return told
