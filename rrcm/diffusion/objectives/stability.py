"""Denoised smoothing, Salman et al. (2020), arXiv:2003.01908: stability loss.

Cross-entropy of a frozen classifier on the denoised image, with its own prediction on the clean
image as the label. Pixels are in [0, 1].
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rrcm.diffusion.objectives._pixels import Config, denoised
from rrcm.models.trained.denoiser import Times
from rrcm.training.engine.draws import Draws

GUIDED = True  # by a classifier


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
    r"""Cross-entropy of the guide on denoised images, [B], for clean pixels ``x`` [B, C, H, W].

    .. math:: L_\mathrm{stab} = -\log p_C\big(\hat c \mid D(x + \sigma z)\big),
        \qquad \hat c = \arg\max_c C(x)_c

    (eq. 54) with C the ``guide``, which maps pixels to scores [B, K]; the gradient flows through it
    to D. ``y`` and ``times`` are not used.
    """
    assert guide is not None  # see GUIDED
    with torch.no_grad():
        predicted = guide(x).argmax(dim=1)
    scores = guide(denoised(network, x, draw=draw, cfg=cfg))
    return F.cross_entropy(scores.to(x.dtype), predicted, reduction="none")
