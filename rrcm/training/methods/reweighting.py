"""Reweighting, Sun et al. (2024), arXiv:2410.06895: train on the images that add to the radius.

After a share of the training, images that the network does not classify well enough are left out
for good, the others are drawn in proportion to a quantile of their accuracy under noise, and the
noise of each copy is moved until the copy is misclassified.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from scipy.special import betaincinv, ndtri
from torch import Tensor, nn

from rrcm.core.ranges import COPIES, not_negative, positive, share
from rrcm.training.engine.draws import Draws
from rrcm.training.shared import attacks
from rrcm.training.shared.losses import cross_entropy, log_probabilities, noisy_copies

PRETRAINED = False  # starts from any weights
SCREENED = 100  # draws that decide whether an image is left out
DRAWS, LEAST, ALPHA = 16, 12, 0.1  # of a weight: draws, fewest that count, error of the bound


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """Constants of the method.

    After a share ``begin`` of the training, images with an accuracy below ``keep`` are left out;
    the weights of others are renewed then, and every ``every`` epochs. The attack takes at most
    ``steps`` steps of length ``step`` (L2, in pixel units) with the noise of each of ``m`` copies.
    """

    m: int
    steps: int
    step: float
    begin: float
    keep: float
    every: int

    def __post_init__(self) -> None:
        positive(self, "m", "steps", most=COPIES)
        positive(self, "every")
        not_negative(self, "step")
        share(self, "begin", "keep")


def weigh(
    weights: Tensor | None, correct: Callable[..., Tensor], *, epoch: int, epochs: int, cfg: Config
) -> Tensor | None:
    r"""Weights of the training images in ``epoch``, 0 for those left out (eq. 69), [N].

    .. math:: w = \Phi^{-1}(\underline p(\max(C, 12), 16, 0.1)), \qquad C \sim \mathrm{Bin}(16, p_c)
    """
    first = next(e for e in range(epochs + 1) if e / epochs >= cfg.begin)
    if epoch < first or (epoch - first) % cfg.every:
        return weights
    if weights is None:
        weights = (correct(SCREENED) >= cfg.keep * SCREENED).double()
    rows = weights.nonzero()[:, 0]
    k = correct(DRAWS, rows).clamp_min(LEAST).double().numpy()
    quantile = ndtri(betaincinv(k, DRAWS - k + 1, ALPHA))  # the bound is that of eq. 11
    return torch.zeros_like(weights).index_copy(0, rows, torch.from_numpy(quantile))


def loss(
    model: nn.Module, x: Tensor, y: Tensor, *, sigma: Tensor, draw: Draws, done: float, cfg: Config
) -> Tensor:
    r"""Cross-entropy on copies with Gaussian, and later with adversarial noise (eq. 68), [B].

    .. math:: -\frac1m \sum_i \log p(y \mid x + \varepsilon'_i)

    ``y`` are classes [B] or probabilities [B, K]; the search ends when the likeliest is missed.
    """
    noise = noisy_copies(torch.zeros_like(x), cfg.m, sigma=sigma, draw=draw)  # [m, B, C, H, W]
    if done >= cfg.begin:
        noise = attacks.noise_ascent(
            *(model, x, y, noise), sigma=sigma, steps=cfg.steps, step=cfg.step,
            onto=attacks.as_long, until_wrong=True, draw=draw,
        )  # fmt: skip
    return cross_entropy(log_probabilities(model, x + noise, sigma), y).mean(dim=0)
