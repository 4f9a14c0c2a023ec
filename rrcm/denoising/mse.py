"""Denoised smoothing, Salman et al. (2020), arXiv:2003.01908: pixels as they were before the noise.

The network sees pixels in [0, 1] with the noise of one sigma, and answers in pixels.
"""

from torch import Tensor, nn

from rrcm.denoising._pixels import Config as Config
from rrcm.denoising._pixels import denoised
from rrcm.denoising._pixels import schedule as schedule
from rrcm.diffusion import Times
from rrcm.draws import Draws

GUIDE = ""  # looks at the images alone


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
    found = denoised(network, x, draw=draw, cfg=cfg)
    return (found - x).square().flatten(1).mean(dim=1)
