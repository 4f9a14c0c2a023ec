"""Augmentations, declared as a list in ``params.yaml`` and applied to whole batches of pixels.

An entry is a name with its constants, e.g. ``- affine: {rotate: 15, ...}``; the name is a class of
this file in lower case. Each image of a batch gets a draw of its own from torch's generator.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from rrcm.errors import ConfigError
from rrcm.parsing import parse
from rrcm.registry import suggest


@dataclass(frozen=True, kw_only=True, slots=True)
class Affine:
    """Rotate, shift, scale and shear, each uniformly up to plus or minus its amount.

    ``rotate`` is in degrees, ``translate`` a share of the image, ``scale`` and ``shear`` are added
    to 1 and 0. Outside is black.
    """

    rotate: float
    translate: float
    scale: float
    shear: float

    def __call__(self, x: Tensor) -> Tensor:
        """Transform ``x`` [B, C, H, W]; shape and range are kept."""
        angle = _uniform(x, math.radians(self.rotate))
        scale, shear = 1 + _uniform(x, self.scale), _uniform(x, self.shear)
        right, down = _uniform(x, 2 * self.translate), _uniform(x, 2 * self.translate)
        cos, sin = scale * angle.cos(), scale * angle.sin()
        matrix = torch.stack(
            [torch.stack([cos, shear - sin, right], 1), torch.stack([sin, cos, down], 1)], 1
        )  # [B, 2, 3]
        grid = F.affine_grid(matrix, list(x.shape), align_corners=False)
        return F.grid_sample(x, grid, align_corners=False).clamp(0, 1)  # rounding


@dataclass(frozen=True, kw_only=True, slots=True)
class Gain:
    """Multiply brightness by 1 plus or minus ``amount``; stays in [0, 1]."""

    amount: float

    def __call__(self, x: Tensor) -> Tensor:
        """Transform ``x`` [B, C, H, W]; shape and range are kept."""
        return (x * (1 + _uniform(x, self.amount)).view(-1, 1, 1, 1)).clamp(0, 1)


KINDS = {kind.__name__.lower(): kind for kind in (Affine, Gain)}


def build(declared: list[Any], *, where: str) -> Callable[[Tensor], Tensor]:
    """The declared augmentations in order, as one function of a batch; ``[]`` is the identity."""
    transforms = []
    for i, entry in enumerate(declared):
        if not (isinstance(entry, dict) and len(entry) == 1):
            raise ConfigError(f"{where}[{i}]: expected one name with its constants, got {entry!r}")
        (name, constants), *_ = entry.items()
        if name not in KINDS:
            raise ConfigError(
                f"{where}[{i}]: no augmentation {name!r}, only {', '.join(KINDS)}."
                f"{suggest(str(name), [*KINDS])}"
            )
        transforms.append(parse(constants, KINDS[name], where=f"{where}[{i}].{name}"))

    def apply(x: Tensor) -> Tensor:
        for transform in transforms:
            x = transform(x)
        return x

    return apply


def _uniform(x: Tensor, amount: float) -> Tensor:
    return (2 * torch.rand(len(x), device=x.device) - 1) * amount
