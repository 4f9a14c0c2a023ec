"""SmoothAdv, Salman et al. (2019), arXiv:1906.04584: cross-entropy on noisy adversarial images.

The attack maximises the loss of the mean prediction over m noisy copies; training uses the same
noise. With ``lbd`` or ``eta`` above 0 the consistency regularizer is added: Consistency with
SmoothAdv, Jeong & Shin (2020), arXiv:2006.04062.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from rrcm.core.ranges import COPIES, not_negative, positive, require, share
from rrcm.training.engine.draws import Draws
from rrcm.training.engine.schedules import ramp
from rrcm.training.shared import attacks
from rrcm.training.shared.losses import (
    consistency_regularizer,
    cross_entropy,
    log_probabilities,
    noisy_copies,
)

PRETRAINED = False  # starts from any weights


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """Constants of the method.

    ``attack`` searches for a misclassified image within ``epsilon`` (an L2 distance in pixel units,
    reached after a share ``warmup`` of the training) in ``steps`` steps, with ``m`` noisy copies.
    Cross-entropy is taken on all copies with ``multi_noise``, else on the first. ``lbd`` and
    ``eta`` are the weights of the consistency regularizer (`losses.Consistency`).
    """

    attack: Literal["pgd", "ddn"]
    epsilon: float
    steps: int
    m: int
    multi_noise: bool
    warmup: float
    lbd: float
    eta: float

    def __post_init__(self) -> None:
        positive(self, "m", "steps", most=COPIES)
        share(self, "warmup")
        not_negative(self, "epsilon", "lbd", "eta")
        require(self.m > 1 or self.lbd == 0, f"m: lbd needs at least 2, got {self.m}")
        require(
            self.steps > 1 or self.attack != "ddn",
            f"steps: ddn needs at least 2, got {self.steps}; its first point is the image itself",
        )


def loss(
    model: nn.Module, x: Tensor, y: Tensor, *, sigma: Tensor, draw: Draws, done: float, cfg: Config
) -> Tensor:
    r"""Cross-entropy on noisy copies of the attacked image (eq. 41), [B].

    .. math:: \frac1M \sum_{i \le M} -\log p_i(y) + \frac{\lambda}{m} \sum_{i \le m}
              \mathrm{KL}(\bar p \,\|\, p_i) + \eta\, H(\bar p), \qquad
              p_i = p(\cdot \mid \tilde x + \varepsilon_i)

    M is m or 1. ``y`` are classes [B] or probabilities [B, K].
    """
    noise = noisy_copies(torch.zeros_like(x), cfg.m, sigma=sigma, draw=draw)  # [m, B, C, H, W]
    radius = cfg.epsilon * ramp(done, warmup=cfg.warmup)
    shared: dict[str, Any] = {"sigma": sigma, "steps": cfg.steps, "radius": radius, "draw": draw}
    if radius == 0:
        moved = x
    elif cfg.attack == "ddn":
        moved = attacks.ddn(model, x, y, noise, **shared)
    else:
        moved = attacks.pgd(model, x, y, noise, step=2 * radius / cfg.steps, **shared)[-1]
    regularized = cfg.lbd > 0 or cfg.eta > 0
    first = cfg.m if cfg.multi_noise else 1
    log_p = log_probabilities(model, moved + (noise if regularized else noise[:first]), sigma)
    loss = cross_entropy(log_p[:first], y).mean(dim=0)
    if regularized:
        loss = loss + consistency_regularizer(log_p, lbd=cfg.lbd, eta=cfg.eta, measure="kl")
    return loss
