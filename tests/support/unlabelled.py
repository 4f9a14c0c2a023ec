"""Networks and views of a small pre-training, for tests of any objective, in float64."""

import copy
from types import ModuleType
from typing import Any

import torch
from helpers import constants, turned
from torch import Tensor, nn

from rrcm.models.networks import vit
from rrcm.training.engine.draws import Draws

B = 6
SHAPE = vit.Config(
    size="8x2x2",
    image_size=8,
    channels=1,
    patch_size=2,
    position_std=0.5,
    init="pytorch",
    projector_width=16,
    projector_dim=5,
)
SIGMAS = torch.tensor([8.0, 4.0, 2.0, 1.0, 0.5], dtype=torch.float64)
# What a knob must be, or be turned to, where not every number will do.
VALID = {
    "jepa": {
        "width": 8,
        "targets": 3,
        "target_area": [0.1, 0.3],
        "target_aspect": [0.5, 2.0],
        "context_area": [0.8, 1.0],
    }
}
TURNED = {
    "rrcm": {"ema": 0.0},
    "jepa": {
        "targets": 1,
        "min_keep": 8,
        "target_area": [0.06, 0.07],
        "target_aspect": [0.5, 0.5],
        "context_area": [0.5, 0.6],
    },
}


def name(objective: ModuleType) -> str:
    return objective.__name__.rpartition(".")[2]


def valid(objective: ModuleType) -> dict[str, Any]:
    """A valid value for each knob."""
    return constants(objective) | VALID.get(name(objective), {})


def another(objective: ModuleType, knob: str) -> Any:
    """Another valid value of a knob than that of `valid`."""
    mine = TURNED.get(name(objective), {})
    return mine[knob] if knob in mine else turned(objective, knob)


def networks(objective: ModuleType, cfg: Any, seed: int = 0) -> tuple[nn.ModuleDict, nn.ModuleDict]:
    """Online networks, and targets that have been elsewhere, without BatchNorm's projector."""
    torch.manual_seed(seed)
    online = nn.ModuleDict({"encoder": vit.Encoder(SHAPE), **objective.heads(vit, SHAPE, cfg)})
    target = nn.ModuleDict(
        {key: copy.deepcopy(online[source]) for key, (source, _) in objective.targets(cfg).items()}
    )
    with torch.no_grad():
        for parameter in target.parameters():
            parameter += 0.1 * torch.randn(parameter.shape)
    return online.double(), target.double().requires_grad_(False)


def views(objective: ModuleType) -> dict[str, Tensor]:
    """Views of images, each moved by noise of its own."""
    generator = torch.Generator().manual_seed(1)
    images = torch.rand(B, 1, 8, 8, generator=generator).double()
    return {
        key: images + 0.3 * torch.randn(images.shape, generator=generator).double()
        for key in objective.VIEWS
    }


def terms(
    objective: ModuleType,
    networks: tuple[nn.ModuleDict, nn.ModuleDict],
    cfg: Any,
    *,
    rows: slice = slice(0, B),
    step: int = 0,
    seen: dict[str, Tensor] | None = None,
) -> dict[str, Tensor]:
    """The terms of an objective's loss, of all images or of a part."""
    seen = views(objective) if seen is None else seen
    return objective.loss(
        *networks,
        {key: view[rows] for key, view in seen.items()},
        levels=2 * SIGMAS,
        weights=None,
        draw=Draws(0, step, first=rows.start),
        cfg=cfg,
    )[0]
