"""Losses that methods and objectives are built from.

B = batch, D = features, K = classes, m = noisy copies per image. Losses are per example, [B]; the
trainer averages. Equation numbers are those of docs/theory.md.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rrcm.errors import ConfigError


def info_nce(z: Tensor, z_pos: Tensor, *, tau: float) -> Tensor:
    r"""Contrast each row of ``z`` with its own row of ``z_pos``, against all others (eq. 6).

    .. math:: \ell_i = -\log \frac{\exp(\langle z_i, z^+_i \rangle / \tau)}
                                  {\sum_j \exp(\langle z_i, z^+_j \rangle / \tau)}

    Rows are first scaled to unit length. No factor of 2 tau, as in rRCM.
    """
    z = F.normalize(z, dim=1)  # [B, D]
    z_pos = F.normalize(z_pos, dim=1)  # [B, D]
    logits = z @ z_pos.T / tau  # [B, B]
    return torch.logsumexp(logits, dim=1) - logits.diagonal()  # [B]


@dataclass(frozen=True, kw_only=True, slots=True)
class Consistency:
    """Constants of `consistency`: ``lbd`` weighs agreement, ``eta`` entropy; ``m`` noisy copies."""

    lbd: float
    eta: float
    m: int

    def __post_init__(self) -> None:
        """Agreement needs two copies."""
        if self.m < 2:
            raise ConfigError(f"m: must be at least 2, got {self.m}")


def consistency(
    model: nn.Module, x: Tensor, y: Tensor, *, sigma: Tensor, cfg: Consistency
) -> Tensor:
    r"""Be right on ``m`` noisy copies of each image, and predict the same on all (eq. 8), [B].

    .. math:: \frac1m \sum_i \Big( -\log p_i(y) + \lambda\, \mathrm{KL}(\bar p \,\|\, p_i) \Big)
              + \eta\, H(\bar p), \qquad \bar p = \frac1m \sum_i p_i

    The gradient flows through the mean prediction too. Source: Jeong & Shin (2020),
    arXiv:2006.04062; logarithms of the mean clamp it at 1e-20, as theirs do.
    """
    copies = x.repeat(cfg.m, 1, 1, 1)  # [m B, C, H, W]
    logits = model(copies + sigma * torch.randn_like(copies), sigma)  # [m B, K]
    log_p = F.log_softmax(logits, dim=1).view(cfg.m, len(x), -1)  # [m, B, K]
    mean = log_p.exp().mean(dim=0)  # [B, K]
    log_mean = mean.clamp_min(1e-20).log()  # [B, K]
    wrong = -log_p.mean(dim=0).gather(1, y[:, None])[:, 0]  # [B]
    divergence = (mean * (log_mean - log_p)).sum(dim=2).mean(dim=0)  # [B]
    entropy = -(mean * log_mean).sum(dim=1)  # [B]
    return wrong + cfg.lbd * divergence + cfg.eta * entropy
