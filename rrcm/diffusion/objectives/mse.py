"""Denoised smoothing, Salman et al. (2020), arXiv:2003.01908: mean squared error.

The network maps noisy pixels in [0, 1], at one sigma, to clean pixels.
"""

from torch import Tensor, nn

from rrcm.diffusion.objectives._pixels import Config, denoised
from rrcm.models.trained.denoiser import Times
from rrcm.training.engine.draws import Draws

GUIDED = False  # by a classifier


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
    r"""Mean squared error of denoised pixels, [B], for clean pixels ``x`` [B, C, H, W].

    .. math:: L_\mathrm{mse} = \frac1d \| D(x + \sigma z) - x \|^2

    (eq. 54). ``y``, ``guide`` and ``times`` are not used.
    """
    return (denoised(network, x, draw=draw, cfg=cfg) - x).square().flatten(1).mean(dim=1)
