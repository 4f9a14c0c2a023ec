"""ResNet-9 for inference: each BatchNorm is part of the convolution before it, in float64.

In evaluation mode BatchNorm is a linear map of each channel; the scale of the representation is
part of the head. Exact algebra, up to rounding.
"""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from rrcm.models.networks.resnet9 import Convolution
from rrcm.models.trained.base.classifier import Classifier, Unconditional


@torch.no_grad()
def fold(network: Classifier) -> Unconditional:
    """The inference form of ``network``: equal up to rounding, and in float64 until it is cast."""
    return Unconditional(Trunk(network)).eval().requires_grad_(False)


class Trunk(nn.Module):
    """Noisy pixels [B, C, H, W] -> scores [B, K]."""

    def __init__(self, network: Classifier) -> None:
        super().__init__()
        encoder: Any = copy.deepcopy(network.encoder).double().eval()
        for module in encoder.modules():
            if isinstance(module, Convolution):
                assert isinstance(module.norm, nn.BatchNorm2d)
                module.conv = fuse_conv_bn_eval(module.conv, module.norm)
                module.norm = nn.Identity()
        self.head = copy.deepcopy(network.head).double()
        self.head.weight *= encoder.scale
        encoder.scale = 1.0
        self.encoder = encoder

    def forward(self, x: Tensor) -> Tensor:
        """Scores [B, K], computed in the precision that this module was cast to."""
        weight = self.head.weight
        return self.head(self.encoder(x.to(weight.dtype), weight))  # it does not use sigma
