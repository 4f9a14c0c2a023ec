"""SmoothMix, Jeong et al. (2021), arXiv:2111.09277: mixup between images and smooth adversaries.

Each image is mixed with an unrestricted adversarial example of the smoothed classifier; the label
of the mixture is the mean prediction at the image, mixed with the uniform distribution.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rrcm.core.ranges import COPIES, not_negative, positive, require, share
from rrcm.core.schema import Unbounded
from rrcm.training.engine.draws import Draws
from rrcm.training.engine.schedules import ramp
from rrcm.training.shared import attacks
from rrcm.training.shared.losses import (
    clamped_log,
    classes,
    cross_entropy,
    log_probabilities,
    noisy_copies,
)

PRETRAINED = False  # starts from any weights


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """Constants of the method.

    The attack takes ``steps`` steps of length ``alpha`` and stays within ``max_norm`` (L2, in pixel
    units; ``.inf`` is no bound, as published), with ``m`` noisy copies. ``eta`` weighs the loss on
    mixtures, and rises to its full value over a share ``warmup`` of the training. With ``one_step``
    the image is replaced by the adversary after one step, at a distance that rises to ``alpha``
    over the same share.
    """

    m: int
    steps: int
    alpha: float
    eta: float
    warmup: float
    one_step: bool
    max_norm: Unbounded

    def __post_init__(self) -> None:
        positive(self, "m", "steps", most=COPIES)
        positive(self, "alpha")
        require(self.max_norm > 0, f"max_norm: must be positive, got {self.max_norm}")
        not_negative(self, "eta")
        share(self, "warmup")


def loss(
    model: nn.Module, x: Tensor, y: Tensor, *, sigma: Tensor, draw: Draws, done: float, cfg: Config
) -> Tensor:
    r"""Cross-entropy on noisy copies, and mixtures towards an adversary (eq. 43), [B].

    .. math:: \frac1m \sum_i \Big( -\log p_i(y) + \eta\, w\, 1[\hat c = y]\,
              \mathrm{KL}(t \,\|\, p^{\mathrm{mix}}_i) \Big), \qquad
              x^{\mathrm{mix}} = (1 - u) x + u \tilde x, \quad
              t = (1 - u) \bar p + u / K, \quad u \sim U[0, 1/2]

    p̄ is the mean of the p_i and ĉ its class; image and mixture have the same noise. The gradient
    flows through t too, as in the authors' code. ``y`` are classes [B] or probabilities [B, K]; the
    mixture term then applies where ĉ is the most likely class.
    """
    weight = ramp(done, warmup=cfg.warmup)
    noise = noisy_copies(torch.zeros_like(x), cfg.m, sigma=sigma, draw=draw)  # [m, B, C, H, W]
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
    divergence = (target * (clamped_log(target) - log_mixed)).sum(dim=2).mean(dim=0)  # [B]
    correct = mean.argmax(dim=1) == classes(y)
    return cross_entropy(log_p, y).mean(dim=0) + cfg.eta * weight * correct * divergence
