"""rRCM with I-JEPA's prediction in place of contrast, Lei et al. (2025), arXiv:2501.13094, app. A.

An encoder sees some patches of an image at the clean end, and predicts how its EMA represents
others, hidden from it, having seen all (I-JEPA, Assran et al., 2023, arXiv:2301.08243).
Neighbouring points of one diffusion trajectory agree with each other, as in rRCM, here by their
squared distance. The paper describes this in a paragraph and has no code; what is ours:

- Fine-tuning reads the cls token, which I-JEPA's encoders do not have and its loss says nothing of.
  Left to the squared distance alone, it could be the same for all images. So it has to tell, at the
  clean end and by a linear map, the mean representation of the whole image (``summary``), and the
  squared distance takes it in, beside the mean of the patches. Cls and time tokens are never
  hidden; the predictor gets patches only.
- I-JEPA trims the visible patches of a batch to the smallest number found in it, which would
  depend on how a batch is shared by devices. Ours is the number that block sizes guarantee.
"""

from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rrcm.draws import Draws
from rrcm.errors import ConfigError
from rrcm.limits import LAYERS, WIDTH, not_negative, positive, require
from rrcm.parsing import shown

VIEWS = ("view", "plain")  # what `augment` declares: one to predict in, a trajectory
STEPS = 64  # values that a range of sizes is drawn from, so that all can be checked beforehand


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """Weights, the predictor's shape, and masks; areas are shares of the grid of patches.

    ``targets`` blocks of an area and an aspect (height by width) within ranges are predicted, from
    a square of ``context_area`` without them, of which at least ``min_keep`` patches stay visible.
    ``summary`` weighs what is asked of the cls token.
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
        """Refuse shapes that do not exist."""
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
    """What is trained beside the encoder: the predictor, and what reads the cls token.

    Raises:
        ConfigError: The network ``models`` has no patches to hide, or too few of them.
    """
    if not hasattr(models, "Predictor"):
        raise ConfigError(
            f"pretrain: objective: jepa hides patches, and {models.__name__.rpartition('.')[2]} "
            "has none; take architecture vit"
        )
    predictor = models.Predictor(shape, width=cfg.width, depth=cfg.depth, heads=cfg.heads)
    _require_room(predictor.side, cfg)
    return {"predictor": predictor, "summary": nn.Linear(shape.width, shape.width)}


def targets(cfg: Config) -> dict[str, tuple[str, float | None]]:
    """Networks that follow online ones: which, and by which momentum; None is the schedule's."""
    return {"encoder": ("encoder", None)}


def noted(levels: Tensor, weights: Tensor | None, draw: Draws, cfg: Config) -> dict[str, float]:
    """What the log says of a step: the noisier level ``t`` of its pair, and the grid's ``points``.

    ``levels`` [N] are in model space; ``draw`` is what `loss` of that step drew from.
    """
    return {"t": levels[draw.pair(len(levels), weights)].item(), "points": len(levels)}


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
    r"""The three terms of the loss for the images of this process, [b] each; their sum is the loss.

    .. math::
        \frac{1}{TP} \sum_{k,j} s\big(q(u, j), N e_j\big)
        + \alpha\, s\big(A u_{\mathrm{cls}}, N \bar e\big)
        + w\, \big\| N r(y_{\sigma_n}) - \mathrm{sg}\, N r(y_{\sigma_{n+1}}) \big\|^2 / 2D

    (docs/theory.md, eq. 25) with u the tokens of what is visible of v + εz, e those that the EMA
    has of all of it, q the predictor, N a LayerNorm without weights, s the smooth L1 distance, a
    mean over D, and r the cls token and the mean of the patches, of D each.

    Args:
        online: ``encoder`` (pixels, sigma, hidden) -> tokens, ``predictor`` and ``summary``.
        target: ``encoder``, an EMA of the online one; it gets no gradient.
        views: Pixels in [0, 1], [b, C, H, W] for each of `VIEWS`: v and y.
        sigmas: Noise levels in pixel units, descending, [N]; the last one is ε, the clean end.
        weights: How often each n is drawn, [N - 1], in proportion; None is uniform.
        draw: The randomness of the step.
        cfg: Constants.
    """
    view, plain = views["view"], views["plain"]
    n = draw.pair(len(sigmas), weights)  # the first thing that is drawn, as `noted` does
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
    told = online["summary"](seen[:, 0])  # [b, D]
    rows = torch.arange(len(view), device=view.device).view(-1, 1, 1)
    return {
        "prediction": _distance(predicted, _normed(whole)[rows, asked]),
        "summary": cfg.summary * _distance(told, _normed(whole.mean(dim=1))),
        "consistency": cfg.consistency * (noisier - cleaner).square().mean(dim=(1, 2)),
    }


def masks(x: Tensor, side: int, draw: Draws, cfg: Config) -> tuple[Tensor, Tensor, Tensor]:
    """Which patches of ``x`` [b, ...] are visible, hidden and asked for, on a grid of ``side``².

    Blocks have one size for the whole batch, and a place for each image. A target that would leave
    an image too few visible patches lies where its first target does. All numbers of a row depend
    on the draw and its place in the batch only, and the counts K and P on the draw only.

    Returns:
        Places of patches, ascending: [b, K] and [b, L - K], which make up all, and [b, targets, P],
        all of which are hidden. K = max(min_keep, context - targets P).
    """
    height, width, across = _sizes(side, cfg, [draw.integer(STEPS) for _ in range(3)])
    asked, context = height * width, across**2
    keep = max(cfg.min_keep, context - cfg.targets * asked)
    corner = draw.uniform(x, cfg.targets + 1, 2)
    blocks = _block(corner[:, 1:], side, height, width)  # [b, targets, L]
    free = _block(corner[:, 0], side, across, across)  # [b, L]; of the context, not a target
    chosen = []
    for block in blocks.unbind(dim=1):
        crowded = (free & ~block).sum(dim=1, keepdim=True) < keep  # never by the first one
        chosen.append(torch.where(crowded, blocks[:, 0], block))
        free = free & ~chosen[-1]
    shuffled = torch.where(free, draw.uniform(x, side**2), 2.0)  # what is free comes first
    order = shuffled.argsort(dim=1, stable=True)
    marks = torch.stack(chosen, dim=1).to(torch.uint8)
    return (
        order[:, :keep].sort(dim=1).values,
        order[:, keep:].sort(dim=1).values,
        marks.argsort(dim=2, descending=True, stable=True)[..., :asked],
    )


def _sizes(side: int, cfg: Config, steps: list[int]) -> tuple[int, int, int]:
    """Height and width of targets and side of the context, at ``steps`` of their ranges."""
    area, aspect, context = (
        low + (high - low) * step / (STEPS - 1)
        for (low, high), step in zip(
            (cfg.target_area, cfg.target_aspect, cfg.context_area), steps, strict=True
        )
    )
    height, width = (round(side * (area * a) ** 0.5) for a in (aspect, 1 / aspect))
    across = round(side * context**0.5)
    return *(min(max(length, 1), side - 1) for length in (height, width)), max(across, 1)


def _require_room(side: int, cfg: Config) -> None:
    """Refuse masks of which one target alone could leave too little to see."""
    require(side > 1, "pretrain: objective: jepa hides patches, and the image is a single one")
    last = STEPS - 1
    _, _, context = _sizes(side, cfg, [0, 0, 0])
    target = max(h * w for h, w, _ in (_sizes(side, cfg, [last, k, 0]) for k in range(STEPS)))
    require(
        context**2 - target >= cfg.min_keep,
        f"pretrain: loss.min_keep: {cfg.min_keep} patches cannot stay visible: of a context of "
        f"{context} x {context} patches a target may take {target}; lower min_keep or target_area, "
        "or raise context_area",
    )


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
