"""rRCM with I-JEPA's prediction in place of contrast, Lei et al. (2025), arXiv:2501.13094, app. A.

From the visible patches of an image at the clean end, a predictor estimates the representations of
hidden patches by an EMA encoder that sees all patches (I-JEPA, Assran et al., 2023,
arXiv:2301.08243). The consistency term is the squared distance between neighbouring points of one
diffusion trajectory. The paper describes this objective in a paragraph and has no code for it.
Additions of ours:

- Fine-tuning reads the cls token, which I-JEPA's encoders and loss do not have. Trained by the
  squared distance alone, it could become the same for all images. So a linear map of it, at the
  clean end, predicts the mean representation of the whole image (``summary``), and the squared
  distance covers it beside the mean of the patches. The cls and time tokens are never hidden; the
  predictor gets patches only.
- I-JEPA trims the visible patches of a batch to the smallest number among its images, which would
  depend on how devices share a batch. Here the number is the one that the block sizes guarantee.
"""

from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rrcm.core.errors import ConfigError
from rrcm.core.ranges import LAYERS, WIDTH, not_negative, positive, require
from rrcm.core.schema import shown
from rrcm.noise import units
from rrcm.training.engine.draws import Draws

VIEWS = ("view", "plain")  # keys of `augment`: one view to predict in, one trajectory
STEPS = 64  # values in each range of sizes; finitely many, so that all are checked beforehand


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """Weights, the predictor's shape, and masks; areas are shares of the grid of patches.

    ``targets`` blocks, with area and aspect (height by width) from the given ranges, are predicted
    from a square of ``context_area`` without them, of which at least ``min_keep`` patches stay
    visible. ``consistency`` and ``summary`` weigh their terms; ``width``, ``depth`` and ``heads``
    are those of the predictor.
    """

    consistency: float
    summary: float
    width: int
    depth: int
    heads: int
    targets: int
    target_area: list[float]
    target_aspect: list[float]
    context_area: list[float]
    min_keep: int

    def __post_init__(self) -> None:
        not_negative(self, "consistency", "summary")
        positive(self, "width", "heads", "targets", "min_keep", most=WIDTH)
        positive(self, "depth", most=LAYERS)
        require(
            self.width % 4 == 0 and self.width % self.heads == 0,
            f"width: {self.width} must be a multiple of 4 and of {self.heads} heads",
        )
        for key, most in (("target_area", 1.0), ("target_aspect", 1e3), ("context_area", 1.0)):
            ends = getattr(self, key)
            require(
                len(ends) == 2 and 0 < ends[0] <= ends[1] <= most,
                f"{key}: two numbers, ascending, in (0, {most:g}], got {shown(ends)}",
            )


def heads(models: ModuleType, shape: Any, cfg: Config) -> dict[str, nn.Module]:
    """Modules trained beside the encoder: the predictor, and the linear map of the cls token.

    Raises:
        ConfigError: The network ``models`` has no patches to hide, or too few of them.
    """
    if not hasattr(models, "Predictor"):
        raise ConfigError(
            f"pretrain: objective: jepa hides patches, and {models.__name__.rpartition('.')[2]} "
            "has none; take architecture vit"
        )
    predictor = models.Predictor(shape, width=cfg.width, depth=cfg.depth, heads=cfg.heads)
    side, last = predictor.side, STEPS - 1
    require(side > 1, "pretrain: objective: jepa hides patches, and the image is a single one")
    _, _, context = _sizes(side, cfg, [0, 0, 0])
    # A single target block must leave enough visible patches.
    target = max(h * w for h, w, _ in (_sizes(side, cfg, [last, k, 0]) for k in range(STEPS)))
    require(
        context**2 - target >= cfg.min_keep,
        f"pretrain: loss.min_keep: {cfg.min_keep} patches cannot stay visible: of a context of "
        f"{context} x {context} patches a target may take {target}; lower min_keep or target_area, "
        "or raise context_area",
    )
    return {"predictor": predictor, "summary": nn.Linear(shape.width, shape.width)}


def targets(cfg: Config) -> dict[str, tuple[str, float | None]]:
    """The encoder."""
    return {"encoder": ("encoder", None)}


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
        \frac{1}{TP} \sum_{k,j} s\big(q(u, j), N e_j\big)
        + \alpha\, s\big(A u_{\mathrm{cls}}, N \bar e\big)
        + w\, \big\| N r(y_{\sigma_n}) - \mathrm{sg}\, N r(y_{\sigma_{n+1}}) \big\|^2 / 2D

    (docs/theory.md, eq. 25) with u the online tokens of the visible patches of v + εz, e the EMA
    network's tokens of all its patches, q the predictor, A a linear map, N a LayerNorm without
    weights, s the mean smooth L1 distance over D, and r the cls token and the mean of the patches,
    [2, D]. The encoder maps (pixels, sigma, hidden) to tokens; the views are v and y.

    Returns:
        The terms ``prediction``, ``summary`` and ``consistency``; the noisier level ``t`` of the
        pair, and the number of ``points`` of the grid.
    """
    view, plain = views["view"], views["plain"]
    n = draw.pair(len(levels), weights)
    sigmas = units.to_sigma(levels).to(plain)
    z = draw.normal(plain)
    nothing = torch.empty(len(view), 0, dtype=torch.int64, device=view.device)

    def tokens(network: nn.ModuleDict, x: Tensor, sigma: Tensor, hidden: Tensor) -> Tensor:
        return network["encoder"](x + sigma * z, sigma.expand(len(x)), hidden)

    with torch.no_grad():
        whole = tokens(target, view, sigmas[-1], nothing)[:, 2:]  # [b, L, D]
        cleaner = _representation(tokens(online, plain, sigmas[n + 1], nothing))
    visible, hidden, asked = masks(view, round(whole.shape[1] ** 0.5), draw, cfg)
    seen = tokens(online, view, sigmas[-1], hidden)  # [b, 2 + K, D]
    noisier = _representation(tokens(online, plain, sigmas[n], nothing))

    predicted = online["predictor"](seen[:, 2:], visible, asked)  # [b, T, P, D]
    summary = online["summary"](seen[:, 0])  # [b, D]
    rows = torch.arange(len(view), device=view.device).view(-1, 1, 1)
    terms = {
        "prediction": _distance(predicted, _normed(whole)[rows, asked]),
        "summary": cfg.summary * _distance(summary, _normed(whole.mean(dim=1))),
        "consistency": cfg.consistency * (noisier - cleaner).square().mean(dim=(1, 2)),
    }
    return terms, {"t": levels[n].item(), "points": len(levels)}


def masks(x: Tensor, side: int, draw: Draws, cfg: Config) -> tuple[Tensor, Tensor, Tensor]:
    """Places of visible, hidden and target patches of ``x`` [b, ...], on a grid of ``side``².

    Blocks have one size for the whole batch, and a place for each image. A target block that would
    leave too few visible patches is moved onto the image's first one. A row depends on the draw and
    its place in the batch only, and the counts K and P on the draw only.

    Returns:
        Places, ascending: [b, K] visible and [b, L - K] hidden ones, and those of the targets,
        [b, targets, P], which are all hidden. K = max(min_keep, context - targets P).
    """
    height, width, across = _sizes(side, cfg, [draw.integer(STEPS) for _ in range(3)])
    asked, context = height * width, across**2
    keep = max(cfg.min_keep, context - cfg.targets * asked)
    corner = draw.uniform(x, cfg.targets + 1, 2)
    blocks = _block(corner[:, 1:], side, height, width)  # [b, targets, L]
    free = _block(corner[:, 0], side, across, across)  # [b, L]; in the context, not a target
    chosen = []
    for block in blocks.unbind(dim=1):
        crowded = (free & ~block).sum(dim=1, keepdim=True) < keep  # never for the first
        chosen.append(torch.where(crowded, blocks[:, 0], block))
        free = free & ~chosen[-1]
    shuffled = torch.where(free, draw.uniform(x, side**2), 2.0)  # free patches come first
    order = shuffled.argsort(dim=1, stable=True)
    marks = torch.stack(chosen, dim=1).to(torch.uint8)
    return (
        order[:, :keep].sort(dim=1).values,
        order[:, keep:].sort(dim=1).values,
        marks.argsort(dim=2, descending=True, stable=True)[..., :asked],
    )


def _sizes(side: int, cfg: Config, steps: list[int]) -> tuple[int, int, int]:
    """Height and width of target blocks and side of the context, at ``steps`` of their ranges."""
    area, aspect, context = (
        low + (high - low) * step / (STEPS - 1)
        for (low, high), step in zip(
            (cfg.target_area, cfg.target_aspect, cfg.context_area), steps, strict=True
        )
    )
    height, width = (round(side * (area * a) ** 0.5) for a in (aspect, 1 / aspect))
    across = round(side * context**0.5)
    return *(min(max(length, 1), side - 1) for length in (height, width)), max(across, 1)


def _block(corner: Tensor, side: int, height: int, width: int) -> Tensor:
    """Whether each patch lies in a block, [..., L]; its ``corner`` [..., 2] is in [0, 1)."""
    spare = torch.tensor([side - height, side - width], device=corner.device)
    top, left = (corner * (spare + 1)).long().minimum(spare).unbind(dim=-1)
    place = torch.arange(side, device=corner.device)
    rows = (place >= top[..., None]) & (place < top[..., None] + height)  # [..., side]
    columns = (place >= left[..., None]) & (place < left[..., None] + width)
    return (rows[..., :, None] & columns[..., None, :]).flatten(-2)


def _representation(tokens: Tensor) -> Tensor:
    """The cls token and the mean of the patches of ``tokens`` [b, 2 + L, D], normed, [b, 2, D]."""
    return _normed(torch.stack([tokens[:, 0], tokens[:, 2:].mean(dim=1)], dim=1))


def _normed(x: Tensor) -> Tensor:
    """LayerNorm of the last dimension, without weights."""
    return F.layer_norm(x, x.shape[-1:])


def _distance(predicted: Tensor, wanted: Tensor) -> Tensor:
    """Mean smooth L1 distance of each row, [b]."""
    return F.smooth_l1_loss(predicted, wanted, reduction="none").flatten(1).mean(dim=1)
