"""The projector between representation and contrastive loss, shared by all networks."""

from typing import Protocol

from torch import nn


class Shape(Protocol):
    """The part of a network's ``Config`` that describes its projector."""

    projector_width: int
    projector_dim: int

    @property
    def width(self) -> int:
        """Dimension D of the representation."""


class Projector(nn.Sequential):
    """MLP from representation to contrastive space: 3 linear layers without bias, BatchNorm."""

    def __init__(self, cfg: Shape) -> None:
        """Widths D -> projector_width -> projector_width -> projector_dim."""
        hidden = cfg.projector_width
        super().__init__(
            *(nn.Linear(cfg.width, hidden, bias=False), nn.BatchNorm1d(hidden), nn.ReLU()),
            *(nn.Linear(hidden, hidden, bias=False), nn.BatchNorm1d(hidden), nn.ReLU()),
            nn.Linear(hidden, cfg.projector_dim, bias=False),
        )
