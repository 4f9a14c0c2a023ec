"""``params.yaml`` up to a trained model, as frozen dataclasses: typed, nothing optional or ignored.

One dataclass per section, with the section's names. Parts that belong to a component (a network's
shape, a method's constants, augmentations) stay mappings here and are parsed by the component.
What comes after training is in settings.py, so that a change there trains nothing again.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rrcm.errors import ConfigError
from rrcm.parsing import T, cast, read_yaml
from rrcm.registry import suggest

PARAMS = Path("params.yaml")


def require(condition: bool, message: str) -> None:
    """Refuse a value."""
    if not condition:
        raise ConfigError(message)


def positive(section: object, *keys: str) -> None:
    """Refuse values that are not finite and positive."""
    for key in keys:
        value = getattr(section, key)
        require(math.isfinite(value) and value > 0, f"{key}: must be positive, got {value}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Data:
    """Which dataset, and how it is split; ``test`` and ``validation`` count images."""

    name: str
    seed: int
    test: int
    validation: int
    shard_size: int

    def __post_init__(self) -> None:
        positive(self, "test", "validation", "shard_size")


@dataclass(frozen=True, kw_only=True, slots=True)
class Model:
    """A network: a file of rrcm/models/, and the constants it asks for (``models.<name>``)."""

    architecture: str
    shape: dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Views:
    """Augmentations: of the contrasted ``views``, and of the ``plain`` image of a trajectory."""

    views: list[Any]
    plain: list[Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Optimizer:
    """AdamW, with linear warm-up to ``lr`` and half a cosine to zero; ``clip`` bounds the norm."""

    lr: float
    weight_decay: float
    warmup: float
    clip: float

    def __post_init__(self) -> None:
        positive(self, "lr", "clip")
        require(self.weight_decay >= 0, f"weight_decay: must be >= 0, got {self.weight_decay}")
        require(0 <= self.warmup < 1, f"warmup: a share of the steps in [0, 1), {self.warmup}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Grid:
    """Noise levels of pre-training, in model space (pixels in [-1, 1]), and their number."""

    t_min: float
    t_max: float
    rho: float
    first: int
    last: int
    rule: Literal["ict", "reference"]

    def __post_init__(self) -> None:
        require(
            0 < self.t_min < self.t_max,
            f"t_min, t_max: need 0 < t_min < t_max, got {self.t_min} and {self.t_max}",
        )
        positive(self, "rho")
        require(
            1 <= self.first <= self.last,
            f"first, last: need 1 <= first <= last, got {self.first} and {self.last}",
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Momentum:
    """Momentum of the EMA target: a sigmoid from ``start`` to ``end``."""

    start: float
    end: float
    steepness: float

    def __post_init__(self) -> None:
        require(
            0 <= self.start < self.end <= 1,
            f"start, end: need 0 <= start < end <= 1, got {self.start} and {self.end}",
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Pretrain:
    """One pre-training; ``loss`` holds the objective's own constants."""

    architecture: str
    model: str
    objective: str
    seed: int
    steps: int
    batch_size: int
    optimizer: Optimizer
    grid: Grid
    target: Momentum
    loss: dict[str, Any]
    augment: Views

    def __post_init__(self) -> None:
        positive(self, "steps")
        require(self.batch_size > 1, f"batch_size: must be above 1, got {self.batch_size}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """How a classifier is trained; ``layer_decay`` scales the rate of each earlier layer."""

    epochs: int
    batch_size: int
    optimizer: Optimizer
    layer_decay: float
    head: Literal["trainable", "frozen"]
    condition: Literal["exact", "nearest"]
    validation_draws: int
    augment: list[Any]

    def __post_init__(self) -> None:
        positive(self, "epochs", "batch_size", "validation_draws")
        require(0 < self.layer_decay <= 1, f"layer_decay: must be in (0, 1], {self.layer_decay}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """A named smoothed classifier: model x method x training sigma (x seed).

    ``architecture`` names a file of rrcm/models/, ``model`` its shape in ``models``. ``start`` is
    the artifact that training starts from: ``pretrained/<name>``, or ``shards`` for the data alone,
    that is, from scratch. ``loss`` holds the method's own constants.
    """

    architecture: str
    model: str
    method: str
    sigma: float
    seed: int
    start: str
    recipe: str
    loss: dict[str, Any]

    def __post_init__(self) -> None:
        positive(self, "sigma")


def read_model(entry: Pretrain | Run) -> Model:
    """The network of a pre-training or a run."""
    return Model(
        architecture=entry.architecture, shape=read(f"models.{entry.model}", dict[str, Any])
    )


def read(section: str, into: type[T], path: Path = PARAMS) -> T:
    """Read one dotted section, e.g. ``read("runs.tiny-rrcm-s025", Run)``."""
    node = read_yaml(path)
    for key in section.split("."):
        if not isinstance(node, dict) or key not in node:
            known = [str(k) for k in node] if isinstance(node, dict) else []
            raise ConfigError(f"{path}: {section}: no {key!r} here.{suggest(key, known)}")
        node = node[key]
    return cast(node, into, where=f"{path}: {section}")
