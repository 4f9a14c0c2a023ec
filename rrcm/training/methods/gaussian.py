"""Gaussian augmentation, Cohen et al. (2019), arXiv:1902.02918: cross-entropy on x + σz."""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from rrcm.training.engine.draws import Draws

PRETRAINED = False  # starts from any weights


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """No constants."""


def loss(
    model: nn.Module, x: Tensor, y: Tensor, *, sigma: Tensor, draw: Draws, done: float, cfg: Config
) -> Tensor:
    """Cross-entropy on one noisy copy of each image, [B]; ``y`` are classes or probabilities."""
    logits = model(x + sigma * draw.normal(x), sigma)  # [B, K]
    return F.cross_entropy(logits.to(x.dtype), y, reduction="none")
