"""rRCM pre-training, Lei et al. (2025), arXiv:2501.13094: the loss of the paper.

Two views of an image agree at the clean end of a diffusion trajectory (contrast, through the
projector, against an EMA target), and neighbouring points of one trajectory agree with each other
(consistency, on the representation itself, against the online network without gradient).
"""

from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from rrcm import losses, noise
from rrcm.draws import Draws
from rrcm.limits import MOST, not_negative, positive, require
from rrcm.parsing import shown

VIEWS = ("first", "second", "plain")  # what `augment` declares: two to contrast, a trajectory


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """Temperatures of both terms, the weight of consistency, and both directions of contrast.

    ``align`` are noise levels t that agree with the clean end directly, each as often as the
    others. Without any, neighbours of the grid agree, as in the paper. ``ema`` is the momentum of
    the network that the cleaner point is seen by; 0 is the online network itself.
    """

    tau_contrast: float
    tau_consistency: float
    consistency: float
    symmetric: bool
    align: list[float]
    ema: float

    def __post_init__(self) -> None:
        """Refuse temperatures and levels that are not positive."""
        positive(self, "tau_contrast", "tau_consistency")
        not_negative(self, "consistency")
        require(0 <= self.ema < 1, f"ema: a momentum in [0, 1), got {self.ema}")
        require(
            all(0 < t <= MOST for t in self.align),
            f"align: noise levels must be positive, got {shown(self.align)}",
        )


def heads(models: ModuleType, shape: Any, cfg: Config) -> dict[str, nn.Module]:
    """What is trained beside the encoder: the projector of ``models``, a file of rrcm/models/."""
    return {"projector": models.Projector(shape)}


def targets(cfg: Config) -> dict[str, tuple[str, float | None]]:
    """Networks that follow online ones: which, and by which momentum; None is the schedule's."""
    found = {"encoder": ("encoder", None), "projector": ("projector", None)}
    return found | ({"cleaner": ("encoder", cfg.ema)} if cfg.ema else {})


def noted(levels: Tensor, weights: Tensor | None, draw: Draws, cfg: Config) -> dict[str, float]:
    """What the log says of a step: the noisier level ``t`` of its pair, and the grid's ``points``.

    ``levels`` [N] are in model space; ``draw`` is what `loss` of that step drew from.
    """
    return {"t": pair(levels, weights, draw, cfg)[0].item(), "points": len(levels)}


def loss(
    online: nn.ModuleDict,
    target: nn.ModuleDict,
    views: dict[str, Tensor],
    *,
    sigmas: Tensor,
    weights: Tensor | None,
    draw: Draws,
    cfg: Config,
) -> dict[str, Tensor]:
    r"""The two terms of the loss for the images of this process, [b] each; their sum is the loss.

    .. math::
        \ell\big(h(v_\epsilon), h^-(v'_\epsilon)\big)
        + w\, \ell\big(f(y_{\sigma_n}), \mathrm{sg}\, f(y_{\sigma_{n+1}})\big),
        \qquad x_\sigma = x + \sigma z

    (docs/theory.md, eq. 7) with f the encoder, h the projector after it, h⁻ their EMA, sg the stop
    of the gradient, one n for the whole batch, and one z for every point of an image. With
    ``symmetric`` the contrast is the mean of both directions; with ``align`` a level of it takes
    the place of σ_n, and ε that of σ_{n+1}. Negatives are those of all processes.

    Args:
        online: ``encoder`` (pixels, sigma) -> [b, D] and ``projector`` [b, D] -> [b, P].
        target: What `targets` says, EMAs of ``online``; they get no gradient.
        views: Pixels in [0, 1], [b, C, H, W] for each of `VIEWS`: v, v' and y.
        sigmas: Noise levels in pixel units, descending, [N]; the last one is ε, the clean end.
        weights: How often each n is drawn, [N - 1], in proportion; None is uniform.
        draw: The randomness of the step.
        cfg: Constants.
    """
    two, plain = [views["first"], views["second"]], views["plain"]
    times = pair(noise.to_time(sigmas), weights, draw, cfg)
    noisier, cleaner = (noise.to_sigma(t) for t in times)
    z = draw.normal(plain)

    # One pass per network: the points that share weights and mode share a batch.
    contrasted = two if cfg.symmetric else two[:1]
    *anchors, f_n = _encode(
        online["encoder"],
        [(view, sigmas[-1]) for view in contrasted] + [(plain, noisier)],
        z,
    )
    with torch.no_grad():
        (f_next,) = _encode(
            target["cleaner"] if cfg.ema else online["encoder"], [(plain, cleaner)], z
        )
        others = _encode(
            target["encoder"], [(view, sigmas[-1]) for view in two[::-1][: len(contrasted)]], z
        )
        positives = [target["projector"](other) for other in others]

    contrast = torch.stack(
        [
            losses.contrast(online["projector"](anchor), positive, tau=cfg.tau_contrast)
            for anchor, positive in zip(anchors, positives, strict=True)
        ]
    ).mean(dim=0)
    consistency = losses.contrast(f_n, f_next, tau=cfg.tau_consistency)
    return {"contrast": contrast, "consistency": cfg.consistency * consistency}


def pair(levels: Tensor, weights: Tensor | None, draw: Draws, cfg: Config) -> tuple[Tensor, Tensor]:
    """The noisier and the cleaner level, of ``levels`` [N], that a step compares.

    Units are those of ``cfg.align``, t. It is the first thing that `loss` draws.
    """
    if cfg.align:
        return levels.new_tensor(cfg.align)[draw.integer(len(cfg.align))], levels[-1]
    n = draw.pair(len(levels), weights)
    return levels[n], levels[n + 1]


def _encode(encoder: nn.Module, points: list[tuple[Tensor, Tensor]], z: Tensor) -> list[Tensor]:
    """Representations of ``x + sigma z`` for each (x, sigma), computed as one batch."""
    noisy = torch.cat([x + sigma * z for x, sigma in points])
    levels = torch.cat([sigma.expand(len(x)) for x, sigma in points])
    return list(encoder(noisy, levels).chunk(len(points)))
