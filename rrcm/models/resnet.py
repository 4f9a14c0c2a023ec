"""ResNets, He et al. (2016), arXiv:1512.03385: what noise-trained baselines were published with.

ResNet-110 for small images and ResNet-50 for ImageNet are those of Cohen et al. (2019),
arXiv:1902.02918. Names and shapes of parameters are torchvision's. Normalisation of the colours
lives in here, after the noise, so that everything outside speaks of pixels in [0, 1].
"""

import re
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import rrcm.models._torchvision  # noqa: F401 (timm imports torchvision)
from rrcm.errors import ConfigError
from rrcm.limits import SIDE, WIDTH, positive, require
from rrcm.models._projector import Projector as Projector
from rrcm.parsing import shown

from timm.models.resnet import BasicBlock, Bottleneck, make_blocks  # isort: skip

IMAGENET = "50"  # layers of the network for large images; all others are for small ones
STAGES = ("layer1", "layer2", "layer3", "layer4")


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """Shape of the network: its depth, its input, and the projector used in pre-training.

    ``size`` is the number of layers: 6 n + 2 for small images (3 stages of n blocks of 16, 32 and
    64 channels: ``20``, ``56``, ``110``), and ``50`` for ImageNet. ``mean`` and ``std`` of each
    channel, in pixels of [0, 1], are subtracted from and divided by.
    """

    size: str
    image_size: int
    channels: int
    mean: list[float]
    std: list[float]
    projector_width: int
    projector_dim: int

    def __post_init__(self) -> None:
        """Refuse a depth that no ResNet has, and colours that are not those of the images."""
        small = re.fullmatch(r"[1-9][0-9]{0,3}", self.size) and int(self.size) % 6 == 2
        require(
            self.size == IMAGENET or bool(small and int(self.size) > 2),
            f"size: no {shown(self.size)}, only {IMAGENET!r}, or 6 n + 2 such as '20', '56', '110'",
        )
        positive(self, "image_size", most=SIDE)
        positive(self, "channels", "projector_width", "projector_dim", most=WIDTH)
        for key in ("mean", "std"):
            found = len(getattr(self, key))
            require(found == self.channels, f"{key}: {found} numbers for {self.channels} channels")
        require(min(self.std) > 0, f"std: must be positive, got {shown(self.std)}")

    @property
    def width(self) -> int:
        """Dimension D of the representation."""
        return 2048 if self.size == IMAGENET else 64


class Encoder(nn.Module):
    """Noisy pixels to a representation, the mean over the picture of the last stage."""

    LAYERS: ClassVar[
        dict[str, str]
    ] = {  # by the names of their parameters; what matches neither is the last layer
        "stem": r"(?:conv1|bn1)\.",
        "blocks": r"layer(\d+)\.(\d+)",
    }

    def __init__(self, cfg: Config, *, final_norm: bool = False) -> None:
        """Initialise as He et al. (2015), arXiv:1502.01852, by the channels of the output.

        Raises:
            ConfigError: ``final_norm``; a ResNet has none.
        """
        super().__init__()
        require(not final_norm, "final_norm: a ResNet has no LayerNorm at its end; set it to false")
        large, self.image_size = cfg.size == IMAGENET, cfg.image_size
        stem = 64 if large else 16
        self.register_buffer("mean", _channels(cfg.mean), persistent=False)  # in params.yaml
        self.register_buffer("std", _channels(cfg.std), persistent=False)
        if large:
            self.conv1 = nn.Conv2d(cfg.channels, stem, 7, stride=2, padding=3, bias=False)
            self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
            block, layers, channels = Bottleneck, (3, 4, 6, 3), (64, 128, 256, 512)
        else:
            self.conv1 = nn.Conv2d(cfg.channels, stem, 3, padding=1, bias=False)
            self.maxpool = nn.Identity()
            block, layers, channels = BasicBlock, ((int(cfg.size) - 2) // 6,) * 3, (16, 32, 64)
        self.bn1 = nn.BatchNorm2d(stem)
        stages, _ = make_blocks((block,) * len(layers), channels, layers, stem)
        for name, stage in stages:
            self.add_module(name, stage)
        self.norm = nn.Identity()  # where a ViT has its last LayerNorm
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    @property
    def stages(self) -> list[nn.Sequential]:
        """The residual blocks, in order."""
        return [getattr(self, name) for name in STAGES if hasattr(self, name)]

    @property
    def patch_embed(self) -> nn.Module:
        """The first layer, by the name that pre-training freezes it by."""
        return self.conv1

    @property
    def recompute(self) -> bool:
        """Whether activations are computed twice to save memory: never."""
        return False

    @recompute.setter
    def recompute(self, wanted: bool) -> None:
        if wanted:
            raise ConfigError(
                "compute.recompute: BatchNorm would count each batch of a ResNet twice; set it to "
                "false, and save memory by devices or batch_size"
            )

    def forward(self, x: Tensor, sigma: Tensor) -> Tensor:
        """Representations [B, D] of ``x`` [B, C, H, W], noisy pixels.

        ``sigma`` is not looked at: these networks are published for one noise level, and are not
        told which.

        Raises:
            ConfigError: The images are not of ``image_size``.
        """
        if x.shape[-2:] != (self.image_size, self.image_size):
            raise ConfigError(
                f"models: image_size is {self.image_size}, and images have "
                f"{x.shape[-2]} x {x.shape[-1]} pixels"
            )
        x = F.relu(self.bn1(self.conv1((x - self.mean) / self.std)))
        x = self.maxpool(x)
        for stage in self.stages:
            x = stage(x)
        return x.mean(dim=(2, 3))


def _channels(numbers: list[float]) -> Tensor:
    return torch.tensor(numbers)[:, None, None]
