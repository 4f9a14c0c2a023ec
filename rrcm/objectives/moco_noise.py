"""MoCo-v3 with Gaussian noise as augmentation, the baseline of Lei et al. (2025), arXiv:2501.13094.

Two views of an image agree under noise that the network is not told of: it takes both for clean.
MoCo-v3 is Chen et al. (2021), arXiv:2104.02057; the projector, the temperature without its factor
2, and the absence of a predictor are those of rRCM, which this is compared with.
"""

from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from rrcm import losses, noise
from rrcm.draws import Draws
from rrcm.limits import MOST, positive, require
from rrcm.parsing import shown

VIEWS = ("first", "second")  # what `augment` declares


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """Temperature, and the noise levels t, each as likely as the others."""

    tau: float
    levels: list[float]

    def __post_init__(self) -> None:
        """Refuse a temperature that is not positive, and levels that are no noise levels."""
        positive(self, "tau")
        require(
            len(self.levels) > 0 and all(0 <= t <= MOST for t in self.levels),
            f"levels: at least one noise level t >= 0, got {shown(self.levels)}",
        )


def heads(models: ModuleType, shape: Any, cfg: Config) -> dict[str, nn.Module]:
    """What is trained beside the encoder: the projector of ``models``, a file of rrcm/models/."""
    return {"projector": models.Projector(shape)}


def targets(cfg: Config) -> dict[str, tuple[str, float | None]]:
    """Networks that follow online ones: which, and by which momentum; None is the schedule's."""
    return {"encoder": ("encoder", None), "projector": ("projector", None)}


def noted(levels: Tensor, weights: Tensor | None, draw: Draws, cfg: Config) -> dict[str, float]:
    """Nothing: each image of a step has a noise level of its own."""
    return {}


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
    r"""The loss of the images of this process, [b].

    .. math::
        \tfrac12 \, \ell\big(h(v + \sigma' z), h^-(v' + \sigma' z)\big)
        + \tfrac12 \, \ell\big(h(v' + \sigma' z), h^-(v + \sigma' z)\big)

    (docs/theory.md, eq. 24) with h the projector after the encoder, h⁻ its EMA, and for each image
    one z and one σ' = t / 2 with t from ``cfg.levels``. Both networks are told ε, whatever σ' is.
    Negatives are those of all processes.

    Args:
        online: ``encoder`` (pixels, sigma) -> [b, D] and ``projector`` [b, D] -> [b, P].
        target: The same, an EMA of ``online``; it gets no gradient.
        views: Pixels in [0, 1], [b, C, H, W] for each of `VIEWS`: v and v'.
        sigmas: Noise levels in pixel units, descending, [N]; the last one is ε, the clean end.
        weights: Of no use here.
        draw: The randomness of the step.
        cfg: Constants.
    """
    first, second = views["first"], views["second"]
    times = first.new_tensor(cfg.levels)  # [levels]
    place = (draw.uniform(first) * len(times)).long().clamp(max=len(times) - 1)  # [b]
    shift = noise.to_sigma(times[place]).view(-1, 1, 1, 1) * draw.normal(first)
    noisy = torch.cat([first + shift, second + shift])
    told = sigmas[-1].expand(len(noisy))

    anchors = online["encoder"](noisy, told).chunk(2)
    with torch.no_grad():
        positives = [target["projector"](h) for h in target["encoder"](noisy, told).chunk(2)]
    both = [
        losses.contrast(online["projector"](anchor), positive, tau=cfg.tau)
        for anchor, positive in zip(anchors, positives[::-1], strict=True)
    ]
    return {"contrast": torch.stack(both).mean(dim=0)}
