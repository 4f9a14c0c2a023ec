"""What pre-training contrasts in, instead of the representation itself; shared by all networks."""

from typing import Protocol

from torch import nn


class Shape(Protocol):
    """What a network's ``Config`` says of its projector."""

    projector_width: int
    projector_dim: int

    @property
    def width(self) -> int:
        """Dimension D of the representation."""


class Projector(nn.Sequential):
    """Representation to the space of the contrastive loss: 3 linear layers, BatchNorm, no bias."""

    def __init__(self, cfg: Shape) -> None:
        """Widths D -> projector_width -> projector_width -> projector_dim."""
        hidden = cfg.projector_width
        super().__init__(
            *(nn.Linear(cfg.width, hidden, bias=False), nn.BatchNorm1d(hidden), nn.ReLU()),
            *(nn.Linear(hidden, hidden, bias=False), nn.BatchNorm1d(hidden), nn.ReLU()),
            nn.Linear(hidden, cfg.projector_dim, bias=False),
        )
