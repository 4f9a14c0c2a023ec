"""MACER, Zhai et al. (2020), arXiv:2001.02378: be right, and be it by a wide certified margin.

The radius that hard votes certify is not differentiable in the weights; the one that a softmax
certifies is. No attack is needed.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rrcm.draws import Draws
from rrcm.limits import COPIES, not_negative, positive, share
from rrcm.losses import classes, copies, log_mean, log_probabilities, wrong
from rrcm.schedules import ramp

PRETRAINED = False  # starts from any weights
LEAST = 1e-20  # a probability; its quantile, -9.26, is beyond any margin that is trained for


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """Constants of the method.

    ``lbd`` weighs the radius, from a share ``defer`` of the training on. ``gamma`` is the margin
    that is wide enough, in units of sigma, for both sides of the decision together. ``beta`` is the
    inverse temperature of the softmax whose radius it is, and ``m`` the number of noisy copies.
    """

    lbd: float
    gamma: float
    beta: float
    m: int
    defer: float

    def __post_init__(self) -> None:
        """Weights are not negative, and shares are shares."""
        positive(self, "gamma", "beta")
        positive(self, "m", most=COPIES)
        not_negative(self, "lbd")
        share(self, "defer")


def loss(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    sigma: Tensor,
    draw: Draws,
    done: float,
    cfg: Config,
) -> Tensor:
    r"""Cross-entropy of the mean prediction, and a hinge on the soft radius (eq. 42), [B].

    .. math:: -\log \frac1m \sum_i p_i(y) + \lambda \frac{\sigma}{2}\, 1[\hat c = y]
              \max \left( 0, \gamma - \Phi^{-1}(\hat q_1) + \Phi^{-1}(\hat q_2) \right), \qquad
              \hat q = \frac1m \sum_i \mathrm{softmax}(\beta f_i)

    with the two largest probabilities of q̂, the first of which is that of ĉ. Finite whatever the
    logits: see `_margin`. ``y`` are classes [B], or probabilities [B, K], and then ĉ has to be the
    largest.
    """
    log_p = log_probabilities(model, copies(x, cfg.m, sigma=sigma, draw=draw), sigma)  # [m, B, K]
    q = F.log_softmax(cfg.beta * log_p, dim=2).exp().mean(dim=0)  # [B, K]
    margin, guess = _margin(q)
    short = (cfg.gamma - margin).clamp_min(0)
    weight = cfg.lbd * ramp(done, defer=cfg.defer) * sigma / 2
    return wrong(log_mean(log_p), y) + weight * (guess == classes(y)) * short


def _margin(q: Tensor) -> tuple[Tensor, Tensor]:
    r"""Φ⁻¹(q̂₁) - Φ⁻¹(q̂₂) of probabilities ``q`` [B, K], and the class of q̂₁, both [B].

    Φ⁻¹(q̂₁) is computed as -Φ⁻¹ of what all other classes have together, which keeps its digits
    where q̂₁ is near 1. Probabilities below 1e-20 count as that, and have no gradient: the margin is
    at most 18.5, also of a single class.
    """
    guess = q.argmax(dim=1)
    others = q.scatter(1, guess[:, None], 0.0)
    second = others.max(dim=1).values
    quantile = torch.special.ndtri(torch.stack([others.sum(dim=1), second]).clamp_min(LEAST))
    return -quantile[0] - quantile[1], guess
