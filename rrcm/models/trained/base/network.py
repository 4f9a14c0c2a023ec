"""What networks share: the description of their input, its check, and the projector."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from rrcm.core.errors import ConfigError
from rrcm.core.ranges import SIDE, WIDTH, positive, require


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape(ABC):
    """The input of a network, and the projector used in pre-training."""

    image_size: int
    channels: int
    projector_width: int
    projector_dim: int

    def __post_init__(self) -> None:
        positive(self, "image_size", most=SIDE)
        positive(self, "channels", "projector_width", "projector_dim", most=WIDTH)

    @property
    @abstractmethod
    def width(self) -> int:
        """Dimension D of the representation."""


class Unnormed(nn.Module):
    """An encoder without a LayerNorm at its end, trained for one noise level at a time."""

    supports_recompute: ClassVar[bool] = False  # BatchNorm would count each batch twice
    head_init: ClassVar[str] = "uniform"

    def __init__(self, cfg: Shape, *, final_norm: bool) -> None:
        """Refuse ``final_norm`` by a ConfigError."""
        super().__init__()
        name = type(self).__module__.rpartition(".")[2]
        require(not final_norm, f"final_norm: {name} has no LayerNorm at its end; set it to false")
        self.size = (cfg.channels, cfg.image_size, cfg.image_size)


def require_size(x: Tensor, size: tuple[int, int, int]) -> None:
    """Refuse images [B, C, H, W] that are not of ``size`` [C, H, W].

    Raises:
        ConfigError: They are not.
    """
    if x.shape[1:] != size:
        raise ConfigError(
            f"models: the network is for images of {size}, channels x height x width, and gets "
            f"{(*x.shape[1:],)}; set channels and image_size"
        )


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
