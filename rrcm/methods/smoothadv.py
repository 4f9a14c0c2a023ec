"""SmoothAdv, Salman et al. (2019), arXiv:1906.04584: be right on noisy adversarial images.

The adversary moves the image against the mean prediction over m noisy copies; the copies that are
trained on have the same noise. With ``lbd`` and ``eta`` the copies must agree too: Consistency with
SmoothAdv, Jeong & Shin (2020), arXiv:2006.04062.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from rrcm import attacks
from rrcm.draws import Draws
from rrcm.limits import COPIES, not_negative, positive, require, share
from rrcm.losses import agreement, copies, log_probabilities, wrong
from rrcm.schedules import ramp

PRETRAINED = False  # starts from any weights


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """Constants of the method.

    ``attack`` looks for an image that is misclassified within ``epsilon`` (an L2 distance in pixel
    units, reached after a share ``warmup`` of the training) in ``steps`` steps, with ``m`` noisy
    copies. The copies that have to be right are all of them with ``multi_noise``, else the first.
    ``lbd`` and ``eta`` weigh agreement and entropy of all copies, as those of `losses.Consistency`.
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
        """Agreement needs two copies; DDN judges the image itself first."""
        positive(self, "m", "steps", most=COPIES)
        share(self, "warmup")
        not_negative(self, "epsilon", "lbd", "eta")
        require(self.m > 1 or self.lbd == 0, f"m: agreement needs at least 2, got {self.m}")
        require(
            self.steps > 1 or self.attack != "ddn",
            f"steps: ddn needs at least 2, got {self.steps}; its first point is the image itself",
        )


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
    r"""Cross-entropy on noisy copies of the attacked image (eq. 41), [B].

    .. math:: \frac1M \sum_{i \le M} -\log p_i(y) + \frac{\lambda}{m} \sum_{i \le m}
              \mathrm{KL}(\bar p \,\|\, p_i) + \eta\, H(\bar p), \qquad
              p_i = p(\cdot \mid \tilde x + \varepsilon_i)

    M is m or 1. ``y`` are classes [B] or probabilities [B, K].
    """
    noise = copies(torch.zeros_like(x), cfg.m, sigma=sigma, draw=draw)  # [m, B, C, H, W]
    radius = cfg.epsilon * ramp(done, warmup=cfg.warmup)
    moved = _attacked(model, x, y, noise, sigma=sigma, radius=radius, draw=draw, cfg=cfg)
    together = cfg.lbd > 0 or cfg.eta > 0
    first = cfg.m if cfg.multi_noise else 1
    shown = noise if together else noise[:first]
    log_p = log_probabilities(model, moved + shown, sigma)  # [m or M, B, K]
    loss = wrong(log_p[:first], y).mean(dim=0)
    return loss + agreement(log_p, lbd=cfg.lbd, eta=cfg.eta, measure="kl") if together else loss


def _attacked(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    noise: Tensor,
    *,
    sigma: Tensor,
    radius: float,
    draw: Draws,
    cfg: Config,
) -> Tensor:
    if radius == 0:
        return x
    shared = {"sigma": sigma, "steps": cfg.steps, "radius": radius, "draw": draw}
    if cfg.attack == "ddn":
        return attacks.ddn(model, x, y, noise, **shared)
    return attacks.pgd(model, x, y, noise, step=2 * radius / cfg.steps, **shared)[-1]
