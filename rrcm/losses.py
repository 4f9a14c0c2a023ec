"""Losses that methods and objectives are built from.

B = batch, D = features, K = classes, m = noisy copies per image. Losses are per example, [B]; the
trainer averages. Equation numbers are those of docs/theory.md.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rrcm import distributed
from rrcm.draws import Draws
from rrcm.limits import COPIES, not_negative, positive, require


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


def contrast(z: Tensor, z_pos: Tensor, *, tau: float) -> Tensor:
    """`info_nce` of this process's rows against the rows of all, which get no gradient, [b]."""
    first = distributed.rank() * len(z)
    return info_nce(z, distributed.gather(z_pos), tau=tau, first=first)


def copies(x: Tensor, m: int, *, sigma: Tensor, draw: Draws) -> Tensor:
    """``m`` noisy copies of each image, [m, B, C, H, W]."""
    return torch.stack([x + sigma * draw.normal(x) for _ in range(m)])


def log_probabilities(model: nn.Module, noisy: Tensor, sigma: Tensor) -> Tensor:
    """log p of ``noisy`` [m, B, C, H, W] by one call of ``model``, float32 at least, [m, B, K]."""
    logits = _wide(model(noisy.flatten(0, 1), sigma))  # [m B, K]
    return F.log_softmax(logits, dim=1).unflatten(0, noisy.shape[:2])


def wrong(log_p: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy of ``log_p`` [..., B, K] to classes [B] or probabilities [B, K], [..., B]."""
    if y.ndim == 2:
        return -(y * log_p).sum(dim=-1)
    return -log_p.gather(-1, y.expand(log_p.shape[:-1])[..., None])[..., 0]


def log_mean(log_p: Tensor) -> Tensor:
    """The logarithm of the mean of m predictions, of ``log_p`` [m, B, K], [B, K].

    Of logarithms, so that it stays finite, and keeps a gradient, where all of them are 0 in float.
    """
    return torch.logsumexp(log_p, dim=0) - math.log(len(log_p))


def classes(y: Tensor) -> Tensor:
    """Classes [B] of labels that are classes or probabilities [B, K], whose largest it is."""
    return y.argmax(dim=1) if y.ndim == 2 else y


def clamped_log(p: Tensor) -> Tensor:
    """log p of probabilities that are an average, and may be 0: at least that of 1e-20."""
    return p.clamp_min(1e-20).log()


@dataclass(frozen=True, kw_only=True, slots=True)
class Consistency:
    """Constants of `consistency`: ``lbd`` weighs agreement, ``eta`` entropy; ``m`` noisy copies.

    ``measure`` is how far a prediction is from the mean: ``kl``, or ``mse``, the squared distance.
    With ``eta = lbd`` the former is the cross-entropy between them (``xent`` of the authors' code),
    with ``eta = 0`` the divergence alone.
    """

    lbd: float
    eta: float
    m: int
    measure: Literal["kl", "mse"]

    def __post_init__(self) -> None:
        """Agreement needs two copies."""
        not_negative(self, "lbd", "eta")
        require(self.m > 1, f"m: must be at least 2, got {self.m}")
        positive(self, "m", most=COPIES)


def consistency(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    sigma: Tensor,
    draw: Draws,
    done: float,
    cfg: Consistency,
) -> Tensor:
    """Be right on ``m`` noisy copies of each image, and predict the same on all (eq. 8), [B].

    Labels ``y`` are classes [B], or probabilities [B, K]; ``done`` changes nothing.
    Source: Jeong & Shin (2020), arXiv:2006.04062.
    """
    log_p = log_probabilities(model, copies(x, cfg.m, sigma=sigma, draw=draw), sigma)  # [m, B, K]
    return wrong(log_p, y).mean(dim=0) + agreement(
        log_p, lbd=cfg.lbd, eta=cfg.eta, measure=cfg.measure
    )


def agreement(log_p: Tensor, *, lbd: float, eta: float, measure: str) -> Tensor:
    r"""What consistency adds to being right on noisy copies, of ``log_p`` [m, B, K], [B] (eq. 8).

    .. math:: \frac{\lambda}{m} \sum_i D(\bar p, p_i) + \eta\, H(\bar p), \qquad
              \bar p = \frac1m \sum_i p_i

    D is KL(p̄ ‖ p_i), or the squared distance with ``measure`` mse. The gradient flows through the
    mean prediction too. Logarithms of the mean clamp it at 1e-20, as the authors' code does.
    """
    p = log_p.exp()
    mean = p.mean(dim=0)  # [B, K]
    log_p_bar = clamped_log(mean)
    apart = (p - mean).square() if measure == "mse" else mean * (log_p_bar - log_p)  # [m, B, K]
    return lbd * apart.sum(dim=2).mean(dim=0) - eta * (mean * log_p_bar).sum(dim=1)


def _wide(x: Tensor) -> Tensor:
    """``x`` in float32 at least."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
