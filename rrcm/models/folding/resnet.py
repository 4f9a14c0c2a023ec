"""ResNets for inference: BatchNorm and input scaling folded into convolutions, in float64.

In evaluation mode BatchNorm is a linear map of each channel, and becomes part of the convolution
before it; division by the channels' standard deviation becomes part of the first one. Subtraction
of their mean does not: it happens before zero padding. Exact algebra, up to rounding.
"""

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from rrcm.models.trained.base.classifier import Classifier, Unconditional


@torch.no_grad()
def fold(network: Classifier) -> Unconditional:
    """The inference form of ``network``: equal up to rounding, and in float64 until it is cast."""
    return Unconditional(Trunk(network)).eval().requires_grad_(False)


class Trunk(nn.Module):
    """Noisy pixels [B, C, H, W] -> scores [B, K]."""

    mean: Tensor

    def __init__(self, network: Classifier) -> None:
        super().__init__()
        encoder: Any = copy.deepcopy(network.encoder).double().eval()
        self.register_buffer("mean", encoder.mean)
        self.stem = fuse_conv_bn_eval(encoder.conv1, encoder.bn1)
        self.stem.weight /= encoder.std
        self.maxpool = encoder.maxpool
        self.blocks = nn.Sequential(*(Block(b) for stage in encoder.stages for b in stage))
        self.head = copy.deepcopy(network.head).double()

    def forward(self, x: Tensor) -> Tensor:
        """Scores [B, K], computed in the precision that this module was cast to."""
        x = F.relu(self.stem(x.to(self.mean.dtype) - self.mean))
        return self.head(self.blocks(self.maxpool(x)).mean(dim=(2, 3)))


class Block(nn.Module):
    """A residual block: 2 or 3 convolutions beside a shortcut."""

    def __init__(self, block: Any) -> None:
        super().__init__()
        pairs = [(block.conv1, block.bn1), (block.conv2, block.bn2)]
        if hasattr(block, "conv3"):
            pairs.append((block.conv3, block.bn3))
        self.convolutions = nn.ModuleList(fuse_conv_bn_eval(*pair) for pair in pairs)
        shortcut = block.downsample
        self.shortcut = nn.Identity() if shortcut is None else fuse_conv_bn_eval(*shortcut)

    def forward(self, x: Tensor) -> Tensor:
        """Output of the block, [B, C, H, W]."""
        *before, last = self.convolutions
        h = x
        for convolution in before:
            h = F.relu(convolution(h))
        return F.relu(last(h) + self.shortcut(x))
