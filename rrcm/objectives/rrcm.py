"""rRCM pre-training, Lei et al. (2025), arXiv:2501.13094: the loss of the paper.

Two views of an image agree at the clean end of a diffusion trajectory (contrast, through the
projector, against an EMA target), and neighbouring points of one trajectory agree with each other
(consistency, on the representation itself, against the online network without gradient).
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rrcm import losses


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
    x: Tensor,
    *,
    view: Callable[[Tensor], Tensor],
    plain: Callable[[Tensor], Tensor],
    sigmas: Tensor,
    cfg: Config,
) -> dict[str, Tensor]:
    r"""The two terms of the loss for images ``x`` [B, C, H, W]; each [B], their sum is the loss.

    .. math::
        \ell\big(h(x^1_\epsilon), h^-(x^2_\epsilon)\big)
        + w\, \ell\big(f(x_{\sigma_n}), \mathrm{sg}\, f(x_{\sigma_{n+1}})\big),
        \qquad x_\sigma = x + \sigma z

    (docs/theory.md, eq. 7) with f the encoder, h the projector after it, h⁻ their EMA, sg the stop
    of the gradient, n uniform and one for the whole batch, and one z for every point. With
    ``symmetric`` the contrast is the mean of both directions.

    Args:
        online: ``encoder`` (pixels, sigma) -> [B, D] and ``projector`` [B, D] -> [B, P].
        target: The same, an EMA of ``online``; it gets no gradient.
        x: Pixels in [0, 1].
        view: Draws strongly augmented views, which are contrasted.
        plain: Draws the images of the trajectories.
        sigmas: Noise levels in pixel units, descending; the last one is ε, the clean end.
        cfg: Constants.
    """
    views, x = [view(x), view(x)], plain(x)
    n = int(torch.randint(len(sigmas) - 1, ()))
    z = torch.randn_like(x)

    # One pass per network: the points that share weights and mode share a batch.
    contrasted = views if cfg.symmetric else views[:1]
    *anchors, f_n = _encode(
        online["encoder"],
        [(view, sigmas[-1]) for view in contrasted] + [(x, sigmas[n])],
        z,
    )
    with torch.no_grad():
        (f_next,) = _encode(online["encoder"], [(x, sigmas[n + 1])], z)
        others = _encode(
            target["encoder"], [(view, sigmas[-1]) for view in views[::-1][: len(contrasted)]], z
        )
        positives = [target["projector"](other) for other in others]

    contrast = torch.stack(
        [
            losses.info_nce(online["projector"](anchor), positive, tau=cfg.tau_contrast)
            for anchor, positive in zip(anchors, positives, strict=True)
        ]
    ).mean(dim=0)
    consistency = losses.info_nce(f_n, f_next, tau=cfg.tau_consistency)
    return {"contrast": contrast, "consistency": cfg.consistency * consistency}


def _encode(encoder: nn.Module, points: list[tuple[Tensor, Tensor]], z: Tensor) -> list[Tensor]:
    """Representations of ``x + sigma z`` for each (x, sigma), computed as one batch."""
    noisy = torch.cat([x + sigma * z for x, sigma in points])
    levels = torch.cat([sigma.expand(len(x)) for x, sigma in points])
    return list(encoder(noisy, levels).chunk(len(points)))
