"""LeNet, after LeCun et al. (1998), as in published tables of smoothed classifiers on MNIST.

Two convolutions of 5 x 5 with 20 and 50 channels, each followed by ReLU and max-pooling by 2, then
a layer of 500 units; 431,080 parameters with the head for ten classes at 28 x 28. Source: Jeong &
Shin (2020), arXiv:2006.04062, whose networks start as PyTorch initialises layers by default.
Inputs are pixels in [0, 1].

ReLU comes after the pooling here: it is monotone, so the maximum commutes with it, and so do the
gradients. Pixels are laid out with their channels last, in which processors convolve faster.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rrcm.core.ranges import require
from rrcm.models.trained.base.network import Shape, Unnormed, require_size

KERNEL, POOL, SMALLEST = 5, 2, 16
CHANNELS = (20, 50)


@dataclass(frozen=True, kw_only=True, slots=True)
class Config(Shape):
    """Shape of the input, of which two convolutions and poolings must leave something."""

    def __post_init__(self) -> None:
        Shape.__post_init__(self)
        require(
            self.image_size >= SMALLEST,
            f"image_size: LeNet takes {SMALLEST} pixels or more, got {self.image_size}",
        )

    @property
    def width(self) -> int:
        """Dimension D of the representation."""
        return 500


class Encoder(Unnormed):
    """Noisy pixels to a representation: the last hidden layer."""

    head_init: ClassVar[str] = "pytorch"  # as the published network
    # Patterns of parameter names, for layer decay.
    LAYERS: ClassVar[dict[str, str]] = {"stem": r"conv1\.", "blocks": r"(?:conv|linear)(\d)\."}

    def __init__(self, cfg: Config, *, final_norm: bool = False) -> None:
        """Initialise as PyTorch does by default."""
        super().__init__(cfg, final_norm=final_norm)
        first, second = CHANNELS
        side = cfg.image_size
        for _ in CHANNELS:
            side = (side - KERNEL + 1) // POOL
        self.conv1 = nn.Conv2d(cfg.channels, first, KERNEL)
        self.conv2 = nn.Conv2d(first, second, KERNEL)
        self.linear3 = nn.Linear(second * side**2, cfg.width)

    def forward(self, x: Tensor, sigma: Tensor) -> Tensor:
        """Representations [B, D] of ``x`` [B, C, H, W], noisy pixels.

        ``sigma`` is not used: the published networks are trained for one noise level, which is no
        input.

        Raises:
            ConfigError: The images are of another size.
        """
        require_size(x, self.size)
        x = x.to(memory_format=torch.channels_last)
        for convolution in (self.conv1, self.conv2):
            x = F.relu(F.max_pool2d(convolution(x), POOL))
        return F.relu(self.linear3(x.flatten(1)))
