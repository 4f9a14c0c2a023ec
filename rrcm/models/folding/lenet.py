"""LeNet for inference: its layers in order, at one noise level."""

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rrcm.models.networks.lenet import POOL
from rrcm.models.trained.base.classifier import Classifier, Unconditional


@torch.no_grad()
def fold(network: Classifier) -> Unconditional:
    """The function of ``network``, for inference; in float64 until it is cast."""
    return Unconditional(Trunk(network)).eval().requires_grad_(False)


class Trunk(nn.Module):
    """Noisy pixels [B, C, H, W] -> scores [B, K]."""

    def __init__(self, network: Classifier) -> None:
        super().__init__()
        encoder: Any = copy.deepcopy(network.encoder).double()
        self.convolutions = nn.ModuleList([encoder.conv1, encoder.conv2])
        self.linear = encoder.linear3
        self.head = copy.deepcopy(network.head).double()

    def forward(self, x: Tensor) -> Tensor:
        """Scores [B, K], computed in the precision that this module was cast to."""
        x = x.to(self.head.weight.dtype, memory_format=torch.channels_last)
        for convolution in self.convolutions:
            x = F.relu(F.max_pool2d(convolution(x), POOL))
        return self.head(F.relu(self.linear(x.flatten(1))))
