"""Gaussian augmentation, Cohen et al. (2019), arXiv:1902.02918: be right on x + sigma z."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

PRETRAINED = False  # starts from any weights


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """No constants."""


def loss(model: nn.Module, x: Tensor, y: Tensor, *, sigma: Tensor, cfg: Config) -> Tensor:
    """Cross-entropy on one noisy copy of each image, [B]."""
    logits = model(x + sigma * torch.randn_like(x), sigma)  # [B, K]
    return F.cross_entropy(logits, y, reduction="none")
