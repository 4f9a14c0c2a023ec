"""Conditioning of a diffusion model on the representation of an image by a pre-trained encoder.

Li et al. (2024), arXiv:2312.03701, as in Lei et al. (2025): the condition is the representation of
the clean image in training, and that of pure noise in generation, which the rRCM encoder maps to
similar representations. Both are standardised with the mean and standard deviation over clean
training images, which are kept in one file with the encoder.
"""

import dataclasses
import json
from pathlib import Path

import torch
from torch import Tensor, nn

from rrcm.config.sections import Model
from rrcm.core import registry
from rrcm.core.errors import CheckpointError, ConfigError
from rrcm.core.schema import parse
from rrcm.models.trained.base import checkpoint
from rrcm.noise import units


def encoder(model: Model) -> nn.Module:
    """An untrained encoder of ``model``."""
    module = registry.load("networks", model.architecture)
    return module.Encoder(parse(model.shape, module.Config, where="models: shape"))


class Condition(nn.Module):
    """Condition of a diffusion model: an encoder and the standardisation of its output."""

    mean: Tensor  # [D]
    std: Tensor

    def __init__(
        self, encoder: nn.Module, mean: Tensor, std: Tensor, *, t_min: float, t_max: float
    ) -> None:
        """``mean`` and ``std`` [D] come from `probe.scale`."""
        super().__init__()
        self.encoder, self.t_min, self.t_max = encoder, t_min, t_max
        self.register_buffer("mean", mean.float().clone())
        self.register_buffer("std", std.float().clone())

    def forward(self, x: Tensor) -> Tensor:
        """Conditions [B, D] of clean pixels [B, C, H, W], as in training."""
        return self._represent(x, self.t_min)

    def of_noise(self, z: Tensor) -> Tensor:
        """Conditions [B, D] of pure noise, t_max times ``z`` [B, C, H, W] in model space."""
        return self._represent(units.to_pixels(self.t_max * z), self.t_max)

    def of_noisy(self, x: Tensor, z: Tensor, *, t: float) -> Tensor:
        """Conditions [B, D] of noisy images: pixels ``x`` plus t times ``z`` in model space.

        Both are [B, C, H, W]. As t rises from t_min to t_max, this goes from `forward` (except for
        the noise) towards `of_noise`.
        """
        return self._represent(x + units.to_sigma(t) * z, t)

    def _represent(self, x: Tensor, t: float) -> Tensor:
        sigma = units.to_sigma(torch.tensor(t, dtype=x.dtype, device=x.device))
        return (self.encoder(x, sigma) - self.mean) / self.std


def save(folder: Path, condition: Condition, model: Model) -> None:
    """Write ``condition.safetensors``: the encoder, its shape, and the statistics."""
    about = {"model": dataclasses.asdict(model), "dimensions": len(condition.mean)}
    about |= {"t_min": condition.t_min, "t_max": condition.t_max}
    metadata = {"condition": json.dumps(about)}
    checkpoint.save(folder / "condition.safetensors", condition.state_dict(), metadata)


def load(folder: Path, *, device: str = "cpu") -> Condition:
    """Read the condition that `save` wrote, in evaluation mode and frozen.

    Raises:
        CheckpointError: It is missing or damaged.
    """
    path = folder / "condition.safetensors"
    tensors, metadata = checkpoint.load(path)
    try:
        about = json.loads(metadata["condition"])
        model = parse(about["model"], Model, where="model")
        empty = torch.zeros(about["dimensions"])
        limits = {"t_min": about["t_min"], "t_max": about["t_max"]}
        condition = Condition(encoder(model), empty, empty, **limits)
    except (ValueError, KeyError, TypeError, ConfigError) as error:
        raise CheckpointError(f"{path}: damaged ({error!r})") from None
    checkpoint.restore(condition, tensors, source=str(path))
    return condition.to(device).eval().requires_grad_(False)
