"""rRCM pre-training, Lei et al. (2025), arXiv:2501.13094: the loss of the paper.

InfoNCE between two views of an image at the clean end of a diffusion trajectory (``contrast``:
after the projector, against an EMA target), plus InfoNCE between neighbouring points of one
trajectory (``consistency``: on the representation, against the online network without gradient).
"""

from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from rrcm.core.ranges import COUNT, not_negative, positive, require
from rrcm.core.schema import shown
from rrcm.models.trained.base.network import Projector
from rrcm.noise import units
from rrcm.training.engine.draws import Draws
from rrcm.training.shared import losses

VIEWS = ("first", "second", "plain")  # keys of `augment`: two views to contrast, one trajectory


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """Constants of the loss.

    ``consistency`` weighs the second term. With ``symmetric`` the contrast is the mean of both
    directions. ``align`` are noise levels t, equally likely, each paired with the clean end;
    without any, neighbours of the grid are paired, as in the paper. ``ema`` is the momentum of the
    network that encodes the cleaner point; 0 is the online network itself.
    """

    tau_contrast: float
    tau_consistency: float
    consistency: float
    symmetric: bool
    align: list[float]
    ema: float

    def __post_init__(self) -> None:
        positive(self, "tau_contrast", "tau_consistency")
        not_negative(self, "consistency")
        require(0 <= self.ema < 1, f"ema: a momentum in [0, 1), got {self.ema}")
        require(
            all(0 < t <= COUNT for t in self.align),
            f"align: noise levels must be positive, got {shown(self.align)}",
        )


def heads(models: ModuleType, shape: Any, cfg: Config) -> dict[str, nn.Module]:
    """The projector, which is trained beside the encoder."""
    return {"projector": Projector(shape)}


def targets(cfg: Config) -> dict[str, tuple[str, float | None]]:
    """The encoder and the projector; with ``ema``, an encoder of the cleaner point."""
    followers = {"encoder": ("encoder", None), "projector": ("projector", None)}
    return followers | ({"cleaner": ("encoder", cfg.ema)} if cfg.ema else {})


def loss(
    online: nn.ModuleDict,
    target: nn.ModuleDict,
    views: dict[str, Tensor],
    *,
    levels: Tensor,
    weights: Tensor | None,
    draw: Draws,
    cfg: Config,
) -> tuple[dict[str, Tensor], dict[str, float]]:
    r"""Terms of the loss, [b] each, whose sum is minimised, and diagnostics of the step.

    .. math::
        \ell\big(h(v_\epsilon), h^-(v'_\epsilon)\big)
        + w\, \ell\big(f(y_{\sigma_n}), \mathrm{sg}\, f(y_{\sigma_{n+1}})\big),
        \qquad x_\sigma = x + \sigma z

    (docs/theory.md, eq. 7) with f the encoder, h the projector after it, h⁻ their EMA, sg the
    stop-gradient, one n for the whole batch, and one z for all points of an image. With ``align``
    one of its levels replaces σ_n, and ε replaces σ_{n+1}. Negatives come from all processes. The
    views are v, v' and y.

    Returns:
        The terms ``contrast`` and ``consistency``; the pair's level ``t``, and N as ``points``.
    """
    two, plain = [views["first"], views["second"]], views["plain"]
    if cfg.align:
        times = levels.new_tensor(cfg.align)[draw.integer(len(cfg.align))], levels[-1]
    else:
        n = draw.pair(len(levels), weights)
        times = levels[n], levels[n + 1]
    noisier, cleaner, end = (units.to_sigma(t).to(plain) for t in (*times, levels[-1]))
    z = draw.normal(plain)

    # One pass per network: the points that share weights and mode share a batch.
    contrasted = two if cfg.symmetric else two[:1]
    points = [(view, end) for view in contrasted] + [(plain, noisier)]
    *anchors, f_n = _encode(online["encoder"], points, z)
    with torch.no_grad():
        (f_next,) = _encode(
            target["cleaner"] if cfg.ema else online["encoder"], [(plain, cleaner)], z
        )
        others = _encode(
            target["encoder"], [(view, end) for view in two[::-1][: len(contrasted)]], z
        )
        positives = [target["projector"](other) for other in others]

    contrast = torch.stack(
        [
            losses.info_nce(online["projector"](anchor), positive, tau=cfg.tau_contrast)
            for anchor, positive in zip(anchors, positives, strict=True)
        ]
    ).mean(dim=0)
    consistency = losses.info_nce(f_n, f_next, tau=cfg.tau_consistency)
    terms = {"contrast": contrast, "consistency": cfg.consistency * consistency}
    return terms, {"t": times[0].item(), "points": len(levels)}


def _encode(encoder: nn.Module, points: list[tuple[Tensor, Tensor]], z: Tensor) -> list[Tensor]:
    """Representations of ``x + sigma z`` for each (x, sigma), computed as one batch."""
    noisy = torch.cat([x + sigma * z for x, sigma in points])
    levels = torch.cat([sigma.expand(len(x)) for x, sigma in points])
    return list(encoder(noisy, levels).chunk(len(points)))
