"""ResNets for inference: the same function, without work whose result is known.

In evaluation, BatchNorm is a linear map of each channel, and so part of the convolution before it;
the division by the colours' standard deviation is part of the first one. Their mean is not: beyond
the edge a convolution sees zeros where the mean has been subtracted. Exact algebra, in float64.
"""

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from rrcm.classifier import Classifier


@torch.no_grad()
def fold(network: Classifier) -> "Folded":
    """The function of ``network`` up to rounding, for inference; in float64 until it is cast."""
    return Folded(network).eval().requires_grad_(False)


class Folded(nn.Module):
    """(noisy pixels [B, C, H, W], sigma []) -> scores [B, K], the same at any sigma."""

    def __init__(self, network: Classifier) -> None:
        """See `fold`."""
        super().__init__()
        self.fixed = Fixed(network)

    def forward(self, x: Tensor, sigma: Tensor) -> Tensor:
        """Scores [B, K]."""
        return self.fixed(x)

    def fix(self, sigma: float) -> "Fixed":
        """The function of pixels, which no ``sigma`` changes."""
        return self.fixed


class Fixed(nn.Module):
    """Noisy pixels [B, C, H, W] -> scores [B, K]."""

    def __init__(self, network: Classifier) -> None:
        """See `fold`."""
        super().__init__()
        encoder = network.encoder
        self.register_buffer("mean", encoder.mean.double())
        self.stem = _folded(encoder.conv1, encoder.bn1)
        self.stem.weight /= encoder.std.double()
        self.maxpool = encoder.maxpool
        self.blocks = nn.Sequential(*(Block(b) for stage in encoder.stages for b in stage))
        self.head = nn.Linear(*network.head.weight.T.shape, dtype=torch.float64)
        self.head.load_state_dict(network.head.state_dict())

    def forward(self, x: Tensor) -> Tensor:
        """Scores [B, K], computed in the precision that this module was cast to."""
        x = F.relu(self.stem(x.to(self.mean.dtype) - self.mean))
        return self.head(self.blocks(self.maxpool(x)).mean(dim=(2, 3)))


class Block(nn.Module):
    """A residual block: 2 or 3 convolutions beside a shortcut."""

    def __init__(self, block: nn.Module) -> None:
        """Fold timm's ``block``, a BasicBlock or a Bottleneck."""
        super().__init__()
        pairs = [(block.conv1, block.bn1), (block.conv2, block.bn2)]
        if hasattr(block, "conv3"):
            pairs.append((block.conv3, block.bn3))
        self.convolutions = nn.ModuleList(_folded(*pair) for pair in pairs)
        shortcut = block.downsample
        self.shortcut = nn.Identity() if shortcut is None else _folded(*shortcut)

    def forward(self, x: Tensor) -> Tensor:
        """What the next block reads, [B, C, H, W]."""
        *before, last = self.convolutions
        h = x
        for convolution in before:
            h = F.relu(convolution(h))
        return F.relu(last(h) + self.shortcut(x))


def _folded(convolution: nn.Conv2d, norm: nn.BatchNorm2d) -> nn.Conv2d:
    """``norm`` after ``convolution`` as one convolution, of float64; both are left alone."""
    return fuse_conv_bn_eval(
        *(copy.deepcopy(module).double().eval() for module in (convolution, norm))
    )
