"""CAT-RS, Jeong et al. (2023), arXiv:2212.09000: hard images learn from few copies, easy from all.

Where these are all, the worst adversarial copy is drawn to the prediction of a teacher, in the
paper a Gaussian classifier of sigma = 0.25. The teacher is the run's ``start``.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from rrcm.core.ranges import COPIES, not_negative, positive
from rrcm.training.engine.draws import Draws
from rrcm.training.shared import attacks
from rrcm.training.shared.losses import classes, cross_entropy, log_probabilities, noisy_copies

PRETRAINED = False  # weights start from scratch


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """Constants of the method.

    ``lbd`` weighs the adversarial copies. The attack moves the noise of each of ``m`` copies in
    ``steps`` steps, within ``epsilon`` (L2, in pixel units) before its mean and its scale are
    restored. The teacher sees ``draws`` noisy copies of each training image.
    """

    lbd: float
    m: int
    steps: int
    epsilon: float
    draws: int

    def __post_init__(self) -> None:
        positive(self, "m", "steps", "draws", most=COPIES)
        not_negative(self, "lbd", "epsilon")


def table(frequencies: Callable[[int], Tensor], cfg: Config) -> Tensor:
    """The teacher's class frequencies at each training image, [N, K]."""
    return frequencies(cfg.draws)


def loss(
    model: nn.Module, x: Tensor, y: Tensor, *, table: Tensor, sigma: Tensor, draw: Draws,
    done: float, cfg: Config,
) -> Tensor:  # fmt: skip
    r"""Cross-entropy on the easier copies, and the worst adversarial copy if these are all, [B].

    .. math:: \frac1m \sum_{i \le n} \ell_{(i)} + \lambda\, 1[n = m]
              \max_i \mathrm{KL}(q \,\|\, p(\cdot \mid x + \varepsilon'_i)), \qquad
              n = \max(1, \mathrm{Bin}(m, \hat p))

    (eq. 67), with q in ``table`` [B, K]. ``y`` are classes [B] or probabilities [B, K]; copies of
    the most likely class then count as correct.
    """
    noise = noisy_copies(torch.zeros_like(x), cfg.m, sigma=sigma, draw=draw)  # [m, B, C, H, W]
    log_p = log_probabilities(model, x + noise, sigma)  # [m, B, K]
    correct = (log_p.argmax(dim=2) == classes(y)).to(x.dtype).mean(dim=0)  # [B]
    count = (draw.uniform(x, cfg.m) < correct[:, None]).sum(dim=1).clamp_min(1)  # [B]
    place = torch.arange(cfg.m, device=x.device)[:, None]
    easier = (cross_entropy(log_p, y).sort(dim=0).values * (place < count)).sum(dim=0) / cfg.m
    onto = partial(_onto, radius=cfg.epsilon)
    moved = attacks.noise_ascent(
        *(model, x, table, noise), sigma=sigma, steps=cfg.steps, step=2 * cfg.epsilon / cfg.steps,
        onto=onto, until_wrong=False, draw=draw,
    )  # fmt: skip
    log_moved = log_probabilities(model, x + moved, sigma)
    divergence = (torch.xlogy(table, table) - table * log_moved).sum(dim=2).amax(dim=0)  # [B]
    return easier + cfg.lbd * (count == cfg.m) * divergence


def _onto(noise: Tensor, start: Tensor, *, radius: float) -> Tensor:
    """Noise in the ball around its ``start``, then with its mean and root mean square (eq. 67)."""
    noise, pixels = attacks.project(noise, start, radius=radius), (1, 2, 3)
    to, own = (v.square().mean(dim=pixels, keepdim=True).sqrt() for v in (start, noise))
    centred = noise - noise.mean(dim=pixels, keepdim=True)
    return start.mean(dim=pixels, keepdim=True) + to * centred / own.clamp_min(attacks.TINY)
