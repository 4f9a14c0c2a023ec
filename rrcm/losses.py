"""Losses that methods and objectives are built from.

B = batch, D = features, K = classes, m = noisy copies per image. Losses are per example, [B]; the
trainer averages. Equation numbers are those of docs/theory.md.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rrcm.draws import Draws
from rrcm.errors import ConfigError


def info_nce(z: Tensor, z_pos: Tensor, *, tau: float, first: int = 0) -> Tensor:
    r"""Contrast each row of ``z`` with its own row of ``z_pos``, against all others (eq. 6), [b].

    .. math:: \ell_i = -\log \frac{\exp(\langle z_i, z^+_i \rangle / \tau)}
                                  {\sum_j \exp(\langle z_i, z^+_j \rangle / \tau)}

    Rows are first scaled to unit length. No factor of 2 tau, as in rRCM. Computed in float32 at
    least, under autocast too: bfloat16 would round the logits to hundredths.

    Args:
        z: Rows of this process, [b, D].
        z_pos: Rows of the whole batch, [B, D].
        tau: Temperature.
        first: Where the row of ``z_pos`` that belongs to ``z[0]`` is; the others follow it.
    """
    with torch.autocast(z.device.type, enabled=False):
        z = F.normalize(_wide(z), dim=1)
        z_pos = F.normalize(_wide(z_pos), dim=1)
        logits = z @ z_pos.T / tau  # [b, B]
    own = logits.diagonal(offset=first)[: len(z)]
    return torch.logsumexp(logits, dim=1) - own  # [b]


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
    model: nn.Module, x: Tensor, y: Tensor, *, sigma: Tensor, draw: Draws, cfg: Consistency
) -> Tensor:
    r"""Be right on ``m`` noisy copies of each image, and predict the same on all (eq. 8), [B].

    .. math:: \frac1m \sum_i \Big( -\log p_i(y) + \lambda\, \mathrm{KL}(\bar p \,\|\, p_i) \Big)
              + \eta\, H(\bar p), \qquad \bar p = \frac1m \sum_i p_i

    The gradient flows through the mean prediction too. Labels ``y`` are classes [B], or
    probabilities [B, K], and then the cross-entropy to them takes the place of -log p_i(y).
    Source: Jeong & Shin (2020), arXiv:2006.04062; logarithms of the mean clamp it at 1e-20, as
    theirs do.
    """
    copies = torch.cat([x + sigma * draw.normal(x) for _ in range(cfg.m)])  # [m B, C, H, W]
    logits = _wide(model(copies, sigma))  # [m B, K]
    log_p = F.log_softmax(logits, dim=1).view(cfg.m, len(x), -1)  # [m, B, K]
    mean = log_p.exp().mean(dim=0)  # [B, K]
    log_mean = mean.clamp_min(1e-20).log()  # [B, K]
    wrong = F.cross_entropy(logits, torch.cat([y] * cfg.m), reduction="none")  # [m B]
    divergence = (mean * (log_mean - log_p)).sum(dim=2).mean(dim=0)  # [B]
    entropy = -(mean * log_mean).sum(dim=1)  # [B]
    return wrong.view(cfg.m, -1).mean(dim=0) + cfg.lbd * divergence + cfg.eta * entropy


def _wide(x: Tensor) -> Tensor:
    """``x`` in float32 at least."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
