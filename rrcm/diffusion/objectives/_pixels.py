"""Shared parts of denoised smoothing's objectives: denoising of pixels at one sigma."""

from dataclasses import dataclass

from torch import Tensor, nn

from rrcm.core.ranges import positive
from rrcm.training.engine.draws import Draws


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """``sigma`` is the noise level, in pixel units."""

    schedule = None  # the network predicts the clean image, and its time input is zero
    sigma: float

    def __post_init__(self) -> None:
        positive(self, "sigma")


def denoised(network: nn.Module, x: Tensor, *, draw: Draws, cfg: Config) -> Tensor:
    """Denoised pixels D(x + sigma z), [B, C, H, W]."""
    return network(x + cfg.sigma * draw.normal(x), x.new_zeros(len(x)))
