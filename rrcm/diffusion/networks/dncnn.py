"""DnCNN, Zhang et al. (2017), arXiv:1608.03981: plain convolutions that predict the noise.

The denoiser of Denoised smoothing, Salman et al. (2020), arXiv:2003.01908, initialised as theirs:
orthogonal matrices, and a last layer of zeros, so that before training it returns its input. Its
input is pixels in [0, 1]; it does not depend on the noise level.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from rrcm.core.ranges import LAYERS, SIDE, WIDTH, positive, require
from rrcm.models.trained.base.network import require_size

EPS = 1e-4  # of BatchNorm, the authors' value


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """Shape of the network: ``depth`` convolutions of 3 x 3, of ``width`` channels (17 and 64).

    ``momentum`` is the weight of the newest batch in the running statistics of BatchNorm. The
    authors' code passes 0.95 for it, which in other frameworks is the weight of the older batches;
    the statistics are then almost those of the last batch alone. 0.05 averages over twenty or so.
    """

    image_size: int
    channels: int
    depth: int
    width: int
    momentum: float

    def __post_init__(self) -> None:
        positive(self, "image_size", most=SIDE)
        positive(self, "channels", "width", most=WIDTH)
        require(self.depth > 2, f"depth: must be above 2, got {self.depth}")
        positive(self, "depth", most=LAYERS)
        require(0 < self.momentum <= 1, f"momentum: must be in (0, 1], got {self.momentum}")


class Network(nn.Module):
    """Maps noisy pixels to clean ones: predicts the noise and subtracts it."""

    supports_recompute: ClassVar[bool] = False  # BatchNorm would count each batch twice

    def __init__(self, cfg: Config) -> None:
        super().__init__()
        self.size = (cfg.channels, cfg.image_size, cfg.image_size)
        self.first = nn.Conv2d(cfg.channels, cfg.width, 3, padding=1)
        self.convolutions = nn.ModuleList(
            nn.Conv2d(cfg.width, cfg.width, 3, padding=1, bias=False) for _ in range(cfg.depth - 2)
        )
        self.norms = nn.ModuleList(
            nn.BatchNorm2d(cfg.width, eps=EPS, momentum=cfg.momentum) for _ in range(cfg.depth - 2)
        )
        self.last = nn.Conv2d(cfg.width, cfg.channels, 3, padding=1, bias=False)
        for convolution in (self.first, *self.convolutions):
            nn.init.orthogonal_(convolution.weight)
        assert self.first.bias is not None
        nn.init.zeros_(self.first.bias)
        nn.init.zeros_(self.last.weight)

    def forward(self, x: Tensor, told: Tensor) -> Tensor:
        """Clean pixels [B, C, H, W] of ``x``, not clipped; ``told`` is not used.

        Raises:
            ConfigError: The images are not of the declared size.
        """
        require_size(x, self.size)
        residual = F.relu(self.first(x))
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            residual = F.relu(norm(convolution(residual)))
        return x - self.last(residual)
