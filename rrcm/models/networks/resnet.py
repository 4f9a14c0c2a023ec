"""ResNets, He et al. (2016), arXiv:1512.03385: the architecture of published baselines.

ResNet-110 for small images and ResNet-50 for ImageNet are those of Cohen et al. (2019),
arXiv:1902.02918. Names and shapes of parameters are torchvision's. Inputs are noisy pixels in
[0, 1]; the network itself normalises channels.
"""

import re
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from timm.models.resnet import BasicBlock, Bottleneck, make_blocks
from torch import Tensor, nn

from rrcm.core.ranges import require
from rrcm.core.schema import shown
from rrcm.models.trained.base.network import Shape, Unnormed, require_size

IMAGENET = "50"  # number of layers of the ImageNet network; all others are for small images


@dataclass(frozen=True, kw_only=True, slots=True)
class Config(Shape):
    """Shape of the network: its depth, its input, and the projector used in pre-training.

    ``size`` is the number of layers: 6 n + 2 for small images (3 stages of n blocks with 16, 32 and
    64 channels: ``20``, ``56``, ``110``), or ``50`` for ImageNet. ``mean`` and ``std`` of each
    channel normalise the input, in units of pixels in [0, 1].
    """

    size: str
    mean: list[float]
    std: list[float]

    def __post_init__(self) -> None:
        small = re.fullmatch(r"[1-9][0-9]{0,3}", self.size) and int(self.size) % 6 == 2
        require(
            self.size == IMAGENET or bool(small and int(self.size) > 2),
            f"size: no {shown(self.size)}, only {IMAGENET!r}, or 6 n + 2 such as '20', '56', '110'",
        )
        Shape.__post_init__(self)
        for key in ("mean", "std"):
            count = len(getattr(self, key))
            require(count == self.channels, f"{key}: {count} numbers for {self.channels} channels")
        require(min(self.std) > 0, f"std: must be positive, got {shown(self.std)}")

    @property
    def width(self) -> int:
        """Dimension D of the representation."""
        return 2048 if self.size == IMAGENET else 64


class Encoder(Unnormed):
    """Maps noisy pixels to a representation: the last stage, averaged over the image."""

    # Patterns of parameter names, for layer decay; the others belong to the last layer.
    LAYERS: ClassVar[dict[str, str]] = {"stem": r"(?:conv1|bn1)\.", "blocks": r"layer(\d+)\.(\d+)"}

    def __init__(self, cfg: Config, *, final_norm: bool = False) -> None:
        """Initialise as He et al. (2015), arXiv:1502.01852, by fan-out."""
        super().__init__(cfg, final_norm=final_norm)
        large = cfg.size == IMAGENET
        stem, kernel = (64, 7) if large else (16, 3)
        self.mean: Tensor
        self.std: Tensor
        for name in ("mean", "std"):  # from params.yaml
            numbers = torch.tensor(getattr(cfg, name))[:, None, None]
            self.register_buffer(name, numbers, persistent=False)
        self.conv1 = nn.Conv2d(cfg.channels, stem, kernel, 1 + large, kernel // 2, bias=False)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1) if large else nn.Identity()
        self.bn1 = nn.BatchNorm2d(stem)
        if large:
            stages, _ = make_blocks((Bottleneck,) * 4, (64, 128, 256, 512), (3, 4, 6, 3), stem)
        else:
            layers = ((int(cfg.size) - 2) // 6,) * 3
            stages, _ = make_blocks((BasicBlock,) * 3, (16, 32, 64), layers, stem)
        for name, stage in stages:
            self.add_module(name, stage)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    @property
    def stages(self) -> list[nn.Sequential]:
        """The residual blocks, in order."""
        return [part for part in self.children() if isinstance(part, nn.Sequential)]

    def forward(self, x: Tensor, sigma: Tensor) -> Tensor:
        """Representations [B, D] of ``x`` [B, C, H, W], noisy pixels.

        ``sigma`` is not used: the published networks are trained for one noise level and do not
        take it as an input.

        Raises:
            ConfigError: The images are of another size.
        """
        require_size(x, self.size)
        x = F.relu(self.bn1(self.conv1((x - self.mean) / self.std)))
        x = self.maxpool(x)
        for stage in self.stages:
            x = stage(x)
        return x.mean(dim=(2, 3))
