"""What a conditional diffusion model is told of a picture: its representation by an encoder.

Li et al. (2024), arXiv:2312.03701, as Lei et al. (2025) do it: while it is trained the model is
told the representation of the clean image, when it makes pictures that of pure noise, by an encoder
to which both ends of a diffusion trajectory are alike. Either is normalised with the mean and
standard deviation of representations of clean training images, kept with the encoder in one file.
"""

import dataclasses
import json
from pathlib import Path

import torch
from torch import Tensor, nn

from rrcm import checkpoints, noise, registry
from rrcm.config import Model
from rrcm.errors import CheckpointError, ConfigError
from rrcm.parsing import parse


def encoder(model: Model) -> nn.Module:
    """An untrained encoder of ``model``."""
    module = registry.load("models", model.architecture)
    return module.Encoder(parse(model.shape, module.Config, where="models: shape"))


class Condition(nn.Module):
    """What a conditional diffusion model is told of a picture: its normalised representation."""

    def __init__(
        self, encoder: nn.Module, mean: Tensor, std: Tensor, *, t_min: float, t_max: float
    ) -> None:
        """``mean`` and ``std`` [D] are those that `represent.scale` finds."""
        super().__init__()
        self.encoder, self.t_min, self.t_max = encoder, t_min, t_max
        self.register_buffer("mean", mean.float().clone())
        self.register_buffer("std", std.float().clone())

    def forward(self, x: Tensor) -> Tensor:
        """Of clean pixels [B, C, H, W], as in training: [B, D]."""
        return self._of(x, self.t_min)

    def of_noise(self, z: Tensor) -> Tensor:
        """Of noise t_max ``z`` [B, C, H, W] in model space alone, as in sampling: [B, D]."""
        return self._of(noise.to_pixels(self.t_max * z), self.t_max)

    def of_noisy(self, x: Tensor, z: Tensor, *, t: float) -> Tensor:
        """Of clean pixels ``x`` with noise t ``z`` in model space, both [B, C, H, W]: [B, D].

        From `forward`, at t_min but for the noise, towards `of_noise` as t rises to t_max.
        """
        return self._of(x + noise.to_sigma(t) * z, t)

    def _of(self, x: Tensor, t: float) -> Tensor:
        sigma = noise.to_sigma(torch.tensor(t, dtype=x.dtype, device=x.device))
        return (self.encoder(x, sigma) - self.mean) / self.std


def save(folder: Path, condition: Condition, model: Model) -> None:
    """Write ``condition.safetensors``: encoder, statistics and how to build it, all in one."""
    about = {"model": dataclasses.asdict(model), "dimensions": len(condition.mean)}
    about |= {"t_min": condition.t_min, "t_max": condition.t_max}
    metadata = {"condition": json.dumps(about)}
    checkpoints.save(folder / "condition.safetensors", condition.state_dict(), metadata)


def load(folder: Path, *, device: str = "cpu") -> Condition:
    """What `save` wrote, in evaluation mode, frozen.

    Raises:
        CheckpointError: It is missing or damaged.
    """
    path = folder / "condition.safetensors"
    tensors, metadata = checkpoints.load(path)
    try:
        about = json.loads(metadata["condition"])
        model = parse(about["model"], Model, where="model")
        empty = torch.zeros(about["dimensions"])
        limits = {"t_min": about["t_min"], "t_max": about["t_max"]}
        found = Condition(encoder(model), empty, empty, **limits)
    except (ValueError, KeyError, TypeError, ConfigError) as error:
        raise CheckpointError(f"{path}: damaged ({error!r})") from None
    checkpoints.restore(found, tensors, source=str(path))
    return found.to(device).eval().requires_grad_(False)
