"""Stability training with noise, Li et al. (2019), arXiv:1809.03113: noise must change nothing.

Be right on the image itself, and predict on a noisy copy what is predicted on the image. It is
Zheng et al.'s stability training (2016, arXiv:1604.04326) with the noise of the certificate.
"""

from dataclasses import dataclass

from torch import Tensor, nn

from rrcm.config import not_negative
from rrcm.draws import Draws
from rrcm.losses import copies, log_probabilities, wrong

PRETRAINED = False  # starts from any weights


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """``lbd`` weighs stability."""

    lbd: float

    def __post_init__(self) -> None:
        """It is no reward for instability."""
        not_negative(self, "lbd")


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
    r"""Cross-entropy on the image, and from its prediction to that of a noisy copy (eq. 44), [B].

    .. math:: -\log p(y \mid x) - \lambda \sum_c p(c \mid x) \log p(c \mid x + \sigma z)

    The gradient flows through both predictions; the model is told ``sigma`` for both. ``y`` are
    classes [B] or probabilities [B, K].
    """
    log_clean = log_probabilities(model, x[None], sigma)[0]  # [B, K]
    (log_noisy,) = log_probabilities(model, copies(x, 1, sigma=sigma, draw=draw), sigma)
    return wrong(log_clean, y) + cfg.lbd * wrong(log_noisy, log_clean.exp())
