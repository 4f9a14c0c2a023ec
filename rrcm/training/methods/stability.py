"""Stability training with Gaussian noise, Li et al. (2019), arXiv:1809.03113.

Cross-entropy on the clean image, plus the cross-entropy between the predictions on the image and on
a noisy copy. This is Zheng et al.'s stability training (2016, arXiv:1604.04326) with the noise of
the certificate.
"""

from dataclasses import dataclass

from torch import Tensor, nn

from rrcm.core.ranges import not_negative
from rrcm.training.engine.draws import Draws
from rrcm.training.shared.losses import cross_entropy, log_probabilities, noisy_copies

PRETRAINED = False  # starts from any weights


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """``lbd`` weighs the stability term."""

    lbd: float

    def __post_init__(self) -> None:
        not_negative(self, "lbd")


def loss(
    model: nn.Module, x: Tensor, y: Tensor, *, sigma: Tensor, draw: Draws, done: float, cfg: Config
) -> Tensor:
    r"""Cross-entropy on the image, plus that between its prediction and a noisy copy's (eq. 44).

    .. math:: -\log p(y \mid x) - \lambda \sum_c p(c \mid x) \log p(c \mid x + \sigma z)

    One value per image, [B]. The gradient flows through both predictions; both calls of the
    model get ``sigma``. ``y`` are classes [B] or probabilities [B, K].
    """
    log_clean = log_probabilities(model, x[None], sigma)[0]  # [B, K]
    (log_noisy,) = log_probabilities(model, noisy_copies(x, 1, sigma=sigma, draw=draw), sigma)
    return cross_entropy(log_clean, y) + cfg.lbd * cross_entropy(log_noisy, log_clean.exp())
