"""Denoised smoothing, Salman et al. (2020), arXiv:2003.01908: pixels as they were before the noise.

The network sees pixels in [0, 1] with the noise of one sigma, and answers in pixels.
"""

from dataclasses import dataclass

from torch import Tensor, nn

from rrcm.config import positive
from rrcm.diffusion import Schedule, Times
from rrcm.draws import Draws

GUIDE = ""  # looks at the images alone


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


def loss(
    network: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    guide: nn.Module | None,
    times: Times | None,
    draw: Draws,
    cfg: Config,
) -> Tensor:
    r"""Mean squared error of the denoised pixels ``x`` [B, C, H, W], [B].

    .. math:: L_\mathrm{mse} = \frac1d \| D(x + \sigma z) - x \|^2

    (eq. 54). ``y``, ``guide`` and ``times`` are of no use here.
    """
    found = network(x + cfg.sigma * draw.normal(x), x.new_zeros(len(x)))
    return (found - x).square().flatten(1).mean(dim=1)
