"""rRCM pre-training, Lei et al. (2025), arXiv:2501.13094: the loss of the paper.

Two views of an image agree at the clean end of a diffusion trajectory (contrast, through the
projector, against an EMA target), and neighbouring points of one trajectory agree with each other
(consistency, on the representation itself, against the online network without gradient).
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rrcm import distributed, losses
from rrcm.draws import Draws

VIEWS = ("first", "second", "plain")  # what `augment` declares: two to contrast, a trajectory


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """Temperatures of both terms, the weight of consistency, and both directions of contrast."""

    tau_contrast: float
    tau_consistency: float
    consistency: float
    symmetric: bool


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
    ``symmetric`` the contrast is the mean of both directions. Negatives are those of all processes.

    Args:
        online: ``encoder`` (pixels, sigma) -> [b, D] and ``projector`` [b, D] -> [b, P].
        target: The same, an EMA of ``online``; it gets no gradient.
        views: Pixels in [0, 1], [b, C, H, W] for each of `VIEWS`: v, v' and y.
        sigmas: Noise levels in pixel units, descending, [N]; the last one is ε, the clean end.
        weights: How often each n is drawn, [N - 1], in proportion; None is uniform.
        draw: The randomness of the step.
        cfg: Constants.
    """
    two, plain = [views["first"], views["second"]], views["plain"]
    n = pair(len(sigmas), weights, draw)
    z = draw.normal(plain)

    # One pass per network: the points that share weights and mode share a batch.
    contrasted = two if cfg.symmetric else two[:1]
    *anchors, f_n = _encode(
        online["encoder"],
        [(view, sigmas[-1]) for view in contrasted] + [(plain, sigmas[n])],
        z,
    )
    with torch.no_grad():
        (f_next,) = _encode(online["encoder"], [(plain, sigmas[n + 1])], z)
        others = _encode(
            target["encoder"], [(view, sigmas[-1]) for view in two[::-1][: len(contrasted)]], z
        )
        positives = [target["projector"](other) for other in others]

    contrast = torch.stack(
        [
            _contrast(online["projector"](anchor), positive, tau=cfg.tau_contrast)
            for anchor, positive in zip(anchors, positives, strict=True)
        ]
    ).mean(dim=0)
    consistency = _contrast(f_n, f_next, tau=cfg.tau_consistency)
    return {"contrast": contrast, "consistency": cfg.consistency * consistency}


def pair(points: int, weights: Tensor | None, draw: Draws) -> int:
    """Which neighbours a step compares, n and n + 1 of ``points``: the first thing `loss` draws."""
    return draw.integer(points - 1) if weights is None else draw.index(weights)


def _contrast(z: Tensor, z_pos: Tensor, *, tau: float) -> Tensor:
    """`losses.info_nce` of this process's rows against the rows of all, which get no gradient."""
    first = distributed.rank() * len(z)
    return losses.info_nce(z, distributed.gather(z_pos), tau=tau, first=first)


def _encode(encoder: nn.Module, points: list[tuple[Tensor, Tensor]], z: Tensor) -> list[Tensor]:
    """Representations of ``x + sigma z`` for each (x, sigma), computed as one batch."""
    noisy = torch.cat([x + sigma * z for x, sigma in points])
    levels = torch.cat([sigma.expand(len(x)) for x, sigma in points])
    return list(encoder(noisy, levels).chunk(len(points)))
