"""SmoothMix, Jeong et al. (2021), arXiv:2111.09277: less certain, the nearer an adversary is.

An image and an adversary of it that no ball holds are mixed, and what is asked of the mixture is a
mixture too, of the mean prediction at the image and of knowing nothing.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rrcm import attacks
from rrcm.draws import Draws
from rrcm.limits import COPIES, not_negative, positive, require, share
from rrcm.losses import clamped_log, classes, copies, log_probabilities, wrong
from rrcm.parsing import Unbounded
from rrcm.schedules import ramp

PRETRAINED = False  # starts from any weights


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """Constants of the method.

    The adversary is ``steps`` steps of length ``alpha`` away, at most ``max_norm`` (L2, in pixel
    units; ``.inf`` is no bound, as published), with ``m`` noisy copies. ``eta`` weighs mixtures,
    all of it after a share ``warmup`` of the training. With ``one_step`` the adversary after one
    step, at most ``alpha`` times the same share away, takes the place of the image.
    """

    m: int
    steps: int
    alpha: float
    eta: float
    warmup: float
    one_step: bool
    max_norm: Unbounded

    def __post_init__(self) -> None:
        """Lengths are positive, and shares are shares."""
        positive(self, "m", "steps", most=COPIES)
        positive(self, "alpha")
        require(self.max_norm > 0, f"max_norm: must be positive, got {self.max_norm}")
        not_negative(self, "eta")
        share(self, "warmup")


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
    r"""Cross-entropy on noisy copies, and mixtures towards an adversary (eq. 43), [B].

    .. math:: \frac1m \sum_i \Big( -\log p_i(y) + \eta\, w\, 1[\hat c = y]\,
              \mathrm{KL}(t \,\|\, p^{\mathrm{mix}}_i) \Big), \qquad
              x^{\mathrm{mix}} = (1 - u) x + u \tilde x, \quad
              t = (1 - u) \bar p + u / K, \quad u \sim U[0, 1/2]

    with the class ĉ of the mean p̄ of the p_i, and the same noise everywhere. The gradient flows
    through t too, as in the authors' code. ``y`` are classes [B], or probabilities [B, K], and then
    ĉ has to be the largest.
    """
    weight = ramp(done, warmup=cfg.warmup)
    noise = copies(torch.zeros_like(x), cfg.m, sigma=sigma, draw=draw)  # [m, B, C, H, W]
    points = attacks.pgd(
        *(model, x, y, noise),
        sigma=sigma,
        steps=cfg.steps,
        step=cfg.alpha,
        radius=cfg.max_norm,
        draw=draw,
    )
    if cfg.one_step:
        x = attacks.project(points[0], x, radius=weight * cfg.alpha)
    u = draw.uniform(x, 1, 1, 1) / 2  # [B, 1, 1, 1]
    mixed = (1 - u) * x + u * points[-1]
    log_p = log_probabilities(model, x + noise, sigma)  # [m, B, K]
    log_mixed = log_probabilities(model, mixed + noise, sigma)
    mean, u = log_p.exp().mean(dim=0), u.flatten(1)  # [B, K], [B, 1]
    target = (1 - u) * mean + u / mean.shape[1]
    apart = (target * (clamped_log(target) - log_mixed)).sum(dim=2).mean(dim=0)  # [B]
    right = mean.argmax(dim=1) == classes(y)
    return wrong(log_p, y).mean(dim=0) + cfg.eta * weight * right * apart
