"""ResNet-9: a shallow wide residual network for small pictures, fast to train on any processor.

Eight convolutions of 3 x 3 and a linear head, after Page (2018), "How to train your ResNet", whose
networks of this shape reach 94 % of CIFAR-10 in minutes. With the width w: a stem of w channels, a
stage of 2 w, one of 4 w and one of 8 w; each stage halves the sides of the image, and the first and
the last have a residual block. Every convolution is followed by BatchNorm and ReLU. The maximum
over the last pixels, times SCALE, is the representation. Inputs are noisy pixels in [0, 1].

ReLU comes after the pooling here: it is monotone, so the maximum commutes with it, and so do the
gradients. Pixels are laid out with their channels last, in which processors convolve faster.
"""

import itertools
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rrcm.core.ranges import WIDTH, positive, require
from rrcm.models.trained.base.network import Shape, Unnormed, require_size
from rrcm.noise import units

SCALE = 0.125  # of the representation, as published: without it the first scores are too large
STAGES = 3
SMALLEST = 2**STAGES  # pixels per side


@dataclass(frozen=True, kw_only=True, slots=True)
class Config(Shape):
    """Shape of the network: channels of its stem, its input, and the projector of pre-training."""

    stem: int

    def __post_init__(self) -> None:
        Shape.__post_init__(self)
        positive(self, "stem", most=WIDTH // SMALLEST)
        require(
            self.image_size >= SMALLEST,
            f"image_size: ResNet-9 takes {SMALLEST} pixels or more, got {self.image_size}",
        )

    @property
    def width(self) -> int:
        """Dimension D of the representation."""
        return 8 * self.stem


class Convolution(nn.Module):
    """Convolution of 3 x 3, BatchNorm and ReLU; with ``pool``, the maximum of 2 x 2 pixels."""

    def __init__(self, channels: int, out: int, *, pool: bool) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, out, 3, padding=1, bias=False)
        self.norm: nn.Module = nn.BatchNorm2d(out)
        self.pool = pool

    def forward(self, x: Tensor) -> Tensor:
        """Features [B, out, H, W], or [B, out, H // 2, W // 2]."""
        x = self.norm(self.conv(x))
        return F.relu(F.max_pool2d(x, 2) if self.pool else x)


class Stage(nn.Module):
    """A convolution that halves the sides; with ``residual``, a block of two more beside it."""

    def __init__(self, channels: int, out: int, *, residual: bool) -> None:
        super().__init__()
        self.down = Convolution(channels, out, pool=True)
        self.block = nn.Sequential(
            *(Convolution(out, out, pool=False) for _ in range(2 if residual else 0))
        )

    def forward(self, x: Tensor) -> Tensor:
        """Features [B, out, H // 2, W // 2]."""
        x = self.down(x)
        return x + self.block(x) if len(self.block) else x


class Encoder(Unnormed):
    """Maps noisy pixels to a representation: the maximum of each channel of the last stage."""

    # Patterns of parameter names, for layer decay; the others belong to the last layer.
    LAYERS: ClassVar[dict[str, str]] = {"stem": r"stem\.", "blocks": r"stages\.(\d+)\."}

    def __init__(self, cfg: Config, *, final_norm: bool = False) -> None:
        """Initialise as He et al. (2015), arXiv:1502.01852, by fan-out."""
        super().__init__(cfg, final_norm=final_norm)
        self.scale = SCALE
        widths = [cfg.stem * 2**i for i in range(STAGES + 1)]
        self.stem = Convolution(cfg.channels, widths[0], pool=False)
        self.stages = nn.ModuleList(
            Stage(before, after, residual=i != 1)
            for i, (before, after) in enumerate(itertools.pairwise(widths))
        )
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor, sigma: Tensor) -> Tensor:
        """Representations [B, D] of ``x`` [B, C, H, W], noisy pixels.

        ``sigma`` is not used: the network sees how noisy a picture is.

        Raises:
            ConfigError: The images are of another size.
        """
        require_size(x, self.size)
        x = self.stem(units.to_model_space(x).contiguous(memory_format=torch.channels_last))
        for stage in self.stages:
            x = stage(x)
        return self.scale * x.amax(dim=(2, 3))
