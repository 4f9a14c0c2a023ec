"""Denoised smoothing, Salman et al. (2020), arXiv:2003.01908: a classifier must see what it saw.

A classifier, which stays as it is, should say of the denoised image what it says of the image. It
needs no labels, and reads pixels in [0, 1].
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rrcm.config import positive
from rrcm.diffusion import Schedule, Times
from rrcm.draws import Draws

GUIDE = "models"  # a classifier


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
    r"""Cross-entropy of the guide behind the denoiser, of pixels ``x`` [B, C, H, W], [B].

    .. math:: L_\mathrm{stab} = -\log p_C\big(\hat c \mid D(x + \sigma z)\big),
        \qquad \hat c = \arg\max_c C(x)_c

    (eq. 54) with C the ``guide``, pixels to scores [B, K], through which the gradient flows to D.
    ``y`` and ``times`` are of no use here.
    """
    with torch.no_grad():
        seen = guide(x).argmax(dim=1)
    scores = guide(network(x + cfg.sigma * draw.normal(x), x.new_zeros(len(x))))
    return F.cross_entropy(scores.to(x.dtype), seen, reduction="none")
