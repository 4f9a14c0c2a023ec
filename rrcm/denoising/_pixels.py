"""What the objectives of denoised smoothing share: pixels with the noise of one sigma."""

from dataclasses import dataclass

from torch import Tensor, nn

from rrcm.config import positive
from rrcm.diffusion import Schedule
from rrcm.draws import Draws


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """``sigma`` of the noise, in pixel units."""

    sigma: float

    def __post_init__(self) -> None:
        """There is noise to remove."""
        positive(self, "sigma")


def schedule(cfg: Config) -> Schedule | None:
    """None: the network predicts the clean image itself, and is told nothing (zeros)."""
    return None


def denoised(network: nn.Module, x: Tensor, *, draw: Draws, cfg: Config) -> Tensor:
    """D(x + sigma z): what ``network`` makes of pixels ``x`` [B, C, H, W] with noise."""
    return network(x + cfg.sigma * draw.normal(x), x.new_zeros(len(x)))
