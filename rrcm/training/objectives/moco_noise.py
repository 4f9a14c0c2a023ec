"""MoCo-v3 with Gaussian noise as augmentation, the baseline of Lei et al. (2025), arXiv:2501.13094.

InfoNCE between two noisy views of an image; the network's noise level input is that of clean
images. MoCo-v3 is Chen et al. (2021), arXiv:2104.02057. As in rRCM, which this is compared with,
there is no predictor and no factor of 2 tau, and the projector is the same.
"""

from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from rrcm.core.ranges import COUNT, positive, require
from rrcm.core.schema import shown
from rrcm.models.trained.base.network import Projector
from rrcm.noise import units
from rrcm.training.engine.draws import Draws
from rrcm.training.shared import losses

VIEWS = ("first", "second")  # keys of `augment`


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """Temperature, and noise levels t, which are equally likely."""

    tau: float
    levels: list[float]

    def __post_init__(self) -> None:
        positive(self, "tau")
        require(
            len(self.levels) > 0 and all(0 <= t <= COUNT for t in self.levels),
            f"levels: at least one noise level t >= 0, got {shown(self.levels)}",
        )


def heads(models: ModuleType, shape: Any, cfg: Config) -> dict[str, nn.Module]:
    """The projector, which is trained beside the encoder."""
    return {"projector": Projector(shape)}


def targets(cfg: Config) -> dict[str, tuple[str, float | None]]:
    """The encoder and the projector."""
    return {"encoder": ("encoder", None), "projector": ("projector", None)}


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
    r"""The loss, [b], as a term ``contrast``, and empty diagnostics.

    .. math::
        \tfrac12 \, \ell\big(h(v + \sigma' z), h^-(v' + \sigma' z)\big)
        + \tfrac12 \, \ell\big(h(v' + \sigma' z), h^-(v + \sigma' z)\big)

    (docs/theory.md, eq. 24) with h the projector after the encoder, h⁻ its EMA, and for each image
    one z and one σ' = t / 2 with t from ``cfg.levels``. The noise level input of both networks is
    ε, whatever σ' is. Negatives come from all processes. The views are v and v'; of ``levels`` only
    the last is used.
    """
    first, second = views["first"], views["second"]
    times = first.new_tensor(cfg.levels)  # [levels]
    place = (draw.uniform(first) * len(times)).long().clamp(max=len(times) - 1)  # [b]
    shift = units.to_sigma(times[place]).view(-1, 1, 1, 1) * draw.normal(first)
    noisy = torch.cat([first + shift, second + shift])
    end = units.to_sigma(levels[-1]).to(first).expand(len(noisy))

    anchors = online["encoder"](noisy, end).chunk(2)
    with torch.no_grad():
        positives = [target["projector"](h) for h in target["encoder"](noisy, end).chunk(2)]
    both = [
        losses.info_nce(online["projector"](anchor), positive, tau=cfg.tau)
        for anchor, positive in zip(anchors, positives[::-1], strict=True)
    ]
    return {"contrast": torch.stack(both).mean(dim=0)}, {}
