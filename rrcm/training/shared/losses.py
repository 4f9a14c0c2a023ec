"""Losses shared by training methods and pre-training objectives.

B = batch, D = features, K = classes, m = noisy copies per image. Losses are per example, [B]; the
trainer averages. Equation numbers are those of docs/theory.md.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rrcm.core.ranges import COPIES, not_negative, positive, require
from rrcm.training.engine import distributed
from rrcm.training.engine.draws import Draws


def info_nce(z: Tensor, z_pos: Tensor, *, tau: float) -> Tensor:
    r"""InfoNCE: cross-entropy of a row's own positive against those of all processes (eq. 6), [b].

    .. math:: \ell_i = -\log \frac{\exp(\langle z_i, z^+_i \rangle / \tau)}
                                  {\sum_j \exp(\langle z_i, z^+_j \rangle / \tau)}

    Rows are first scaled to unit length. There is no factor of 2 tau, as in rRCM. Computed in
    float32 at least, under autocast too: bfloat16 would round the logits to hundredths.

    Args:
        z: Anchors, the rows of this process, [b, D].
        z_pos: Their positives, [b, D]. Where several processes share a batch, the sum is over the
            positives of all, and no gradient flows through them.
        tau: Temperature.
    """
    first = distributed.rank() * len(z)  # the column of z[0]'s own positive
    z_pos = distributed.gather(z_pos)  # [B, D]
    with torch.autocast(z.device.type, enabled=False):
        z = F.normalize(_at_least_float32(z), dim=1)
        z_pos = F.normalize(_at_least_float32(z_pos), dim=1)
        logits = z @ z_pos.T / tau  # [b, B]
    own = logits.diagonal(offset=first)[: len(z)]
    return torch.logsumexp(logits, dim=1) - own  # [b]


def noisy_copies(x: Tensor, m: int, *, sigma: Tensor, draw: Draws) -> Tensor:
    """``m`` noisy copies of each image of ``x`` [B, C, H, W], [m, B, C, H, W]."""
    return torch.stack([x + sigma * draw.normal(x) for _ in range(m)])


def log_probabilities(model: nn.Module, noisy: Tensor, sigma: Tensor) -> Tensor:
    """Log-probabilities [m, B, K] of ``noisy`` [m, B, C, H, W], in float32 at least.

    ``model`` is called once, on all copies together.
    """
    logits = _at_least_float32(model(noisy.flatten(0, 1), sigma))  # [m B, K]
    return F.log_softmax(logits, dim=1).unflatten(0, noisy.shape[:2])


def cross_entropy(log_p: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy [..., B] of ``log_p`` [..., B, K] and labels ``y``.

    Labels are classes [B] or probabilities [B, K].
    """
    if y.ndim == 2:
        return -(y * log_p).sum(dim=-1)
    return -log_p.gather(-1, y.expand(log_p.shape[:-1])[..., None])[..., 0]


def log_mean(log_p: Tensor) -> Tensor:
    """Logarithm [B, K] of the mean of m predictions with log-probabilities ``log_p`` [m, B, K].

    Computed from logarithms: it stays finite, and keeps a gradient, where all probabilities
    underflow to 0.
    """
    return torch.logsumexp(log_p, dim=0) - math.log(len(log_p))


def classes(y: Tensor) -> Tensor:
    """Classes [B] of labels ``y``: classes [B], or probabilities [B, K] (the most likely class)."""
    return y.argmax(dim=1) if y.ndim == 2 else y


def clamped_log(p: Tensor) -> Tensor:
    """Logarithm of ``p`` clamped to 1e-20, for averages of probabilities, which may be 0."""
    return p.clamp_min(1e-20).log()


@dataclass(frozen=True, kw_only=True, slots=True)
class Consistency:
    """Constants of `consistency`.

    ``m`` counts noisy copies. ``lbd`` weighs the distance of their predictions from the mean
    prediction, ``eta`` the entropy of that mean. The distance (``measure``) is ``kl``, the
    divergence from the mean, or ``mse``, the squared distance. KL with ``eta = lbd`` is the
    cross-entropy to the mean (``xent`` of the authors' code).
    """

    lbd: float
    eta: float
    m: int
    measure: Literal["kl", "mse"]

    def __post_init__(self) -> None:
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
    """Cross-entropy on ``m`` noisy copies of each image plus a consistency term (eq. 8), [B].

    Labels ``y`` are classes [B] or probabilities [B, K]; ``done`` is not used.
    Source: Jeong & Shin (2020), arXiv:2006.04062.
    """
    noisy = noisy_copies(x, cfg.m, sigma=sigma, draw=draw)
    log_p = log_probabilities(model, noisy, sigma)  # [m, B, K]
    # The order of these two is the order in which gradients add up, so it decides their rounding.
    loss = cross_entropy(log_p, y).mean(dim=0)
    return loss + consistency_regularizer(log_p, lbd=cfg.lbd, eta=cfg.eta, measure=cfg.measure)


def consistency_regularizer(log_p: Tensor, *, lbd: float, eta: float, measure: str) -> Tensor:
    r"""Distance of m predictions from their mean, plus the entropy of the mean, [B] (eq. 8).

    .. math:: \frac{\lambda}{m} \sum_i D(\bar p, p_i) + \eta\, H(\bar p), \qquad
              \bar p = \frac1m \sum_i p_i

    ``log_p`` [m, B, K] are log-probabilities of noisy copies. D is KL(p̄ ‖ p_i), or the squared
    distance with ``measure`` mse. The gradient flows through the mean prediction too. The mean is
    clamped to 1e-20 before the logarithm, as in the authors' code.
    """
    p = log_p.exp()
    mean = p.mean(dim=0)  # [B, K]
    log_mean_p = clamped_log(mean)
    distance = (p - mean).square() if measure == "mse" else mean * (log_mean_p - log_p)  # [m, B, K]
    return lbd * distance.sum(dim=2).mean(dim=0) - eta * (mean * log_mean_p).sum(dim=1)


def _at_least_float32(x: Tensor) -> Tensor:
    """``x`` in float32 at least."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
