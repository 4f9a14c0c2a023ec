"""MACER, Zhai et al. (2020): cross-entropy plus a hinge on the soft certified radius.

arXiv:2001.02378. The radius certified by hard votes is not differentiable in the weights; the one
certified by averaged softmax outputs is. No adversarial attack is needed.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rrcm.core.ranges import COPIES, not_negative, positive, share
from rrcm.training.engine.draws import Draws
from rrcm.training.shared.losses import (
    classes,
    cross_entropy,
    log_mean,
    log_probabilities,
    noisy_copies,
)

PRETRAINED = False  # starts from any weights
LEAST = 1e-20  # clamp of probabilities; its quantile, -9.26, is beyond any margin worth training


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """Constants of the method.

    ``lbd`` weighs the hinge, which sets in after a share ``defer`` of the training. ``gamma`` is
    the margin between the two largest quantiles, in units of sigma, above which the hinge is 0.
    ``beta`` is the inverse temperature of the softmax, ``m`` the number of noisy copies.
    """

    lbd: float
    gamma: float
    beta: float
    m: int
    defer: float

    def __post_init__(self) -> None:
        positive(self, "gamma", "beta")
        positive(self, "m", most=COPIES)
        not_negative(self, "lbd")
        share(self, "defer")


def loss(
    model: nn.Module, x: Tensor, y: Tensor, *, sigma: Tensor, draw: Draws, done: float, cfg: Config
) -> Tensor:
    r"""Cross-entropy of the mean prediction, and a hinge on the soft radius (eq. 42), [B].

    .. math:: -\log \frac1m \sum_i p_i(y) + \lambda \frac{\sigma}{2}\, 1[\hat c = y]
              \max \left( 0, \gamma - \Phi^{-1}(\hat q_1) + \Phi^{-1}(\hat q_2) \right), \qquad
              \hat q = \frac1m \sum_i \mathrm{softmax}(\beta f_i)

    q̂₁ ≥ q̂₂ are the two largest probabilities of q̂, and ĉ is the class of q̂₁. Finite for all
    logits: see `_margin`. ``y`` are classes [B] or probabilities [B, K]; the hinge then
    applies where ĉ is the most likely class.
    """
    noisy = noisy_copies(x, cfg.m, sigma=sigma, draw=draw)
    log_p = log_probabilities(model, noisy, sigma)  # [m, B, K]
    q = F.log_softmax(cfg.beta * log_p, dim=2).exp().mean(dim=0)  # [B, K]
    margin, predicted = _margin(q)
    hinge = (cfg.gamma - margin).clamp_min(0)
    weight = cfg.lbd * (done >= cfg.defer) * sigma / 2
    return cross_entropy(log_mean(log_p), y) + weight * (predicted == classes(y)) * hinge


def _margin(q: Tensor) -> tuple[Tensor, Tensor]:
    r"""Φ⁻¹(q̂₁) - Φ⁻¹(q̂₂) of probabilities ``q`` [B, K], and the class of q̂₁, both [B].

    Φ⁻¹(q̂₁) is computed as -Φ⁻¹ of the sum of all other classes, which keeps its digits where q̂₁ is
    near 1. Probabilities are clamped to 1e-20, below which they have no gradient: the margin is at
    most 18.5, also with a single class.
    """
    predicted = q.argmax(dim=1)
    others = q.scatter(1, predicted[:, None], 0.0)
    second = others.max(dim=1).values
    quantile = torch.special.ndtri(torch.stack([others.sum(dim=1), second]).clamp_min(LEAST))
    return -quantile[0] - quantile[1], predicted
