"""``params.yaml`` as frozen dataclasses: complete, typed, nothing optional and nothing ignored.

One dataclass per section, with the section's names. Parts that belong to a component (a network's
shape, a method's constants, augmentations) stay mappings here and are parsed by the component.
"""

import math
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rrcm.errors import ConfigError
from rrcm.parsing import T, cast, parse, read_yaml
from rrcm.registry import suggest

PARAMS = Path("params.yaml")


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ConfigError(message)


def _positive(**values: float) -> None:
    for key, value in values.items():
        _require(math.isfinite(value) and value > 0, f"{key}: must be positive, got {value}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Data:
    """Which dataset, and how it is split; ``test`` and ``validation`` count images."""

    name: str
    seed: int
    test: int
    validation: int
    shard_size: int

    def __post_init__(self) -> None:
        _positive(test=self.test, validation=self.validation, shard_size=self.shard_size)


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
        _positive(lr=self.lr, clip=self.clip)
        _require(self.weight_decay >= 0, f"weight_decay: must be >= 0, got {self.weight_decay}")
        _require(0 <= self.warmup < 1, f"warmup: a share of the steps in [0, 1), {self.warmup}")


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
        _require(
            0 < self.t_min < self.t_max,
            f"t_min, t_max: need 0 < t_min < t_max, got {self.t_min} and {self.t_max}",
        )
        _positive(rho=self.rho)
        _require(
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
        _require(
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
        _positive(steps=self.steps)
        _require(self.batch_size > 1, f"batch_size: must be above 1, got {self.batch_size}")


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
        _positive(epochs=self.epochs, validation_draws=self.validation_draws)
        _positive(batch_size=self.batch_size)
        _require(0 < self.layer_decay <= 1, f"layer_decay: must be in (0, 1], {self.layer_decay}")


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
        _positive(sigma=self.sigma)


@dataclass(frozen=True, kw_only=True, slots=True)
class Eval:
    """A run, smoothed at a sigma: one row of the report."""

    run: str
    sigma: float

    def __post_init__(self) -> None:
        _positive(sigma=self.sigma)


@dataclass(frozen=True, kw_only=True, slots=True)
class Export:
    """ONNX export; parity is checked on ``parity_images`` noisy images to ``tolerance``."""

    opset: int
    parity_images: int
    tolerance: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """Noisy votes: ``n0`` draws choose the class, ``n`` further ones bound its probability."""

    backend: str
    precision: Literal["fp32", "bf16"]
    batch_size: int
    n0: int
    n: int
    seed: int
    subset: str

    def __post_init__(self) -> None:
        _positive(batch_size=self.batch_size, n0=self.n0, n=self.n)
        _require(0 <= self.seed < 2**64, f"seed: must be in [0, 2^64), got {self.seed}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Certify:
    """Which certificate, at which failure probability per image."""

    certificate: str
    alpha: float

    def __post_init__(self) -> None:
        _require(0 < self.alpha < 1, f"alpha: must be in (0, 1), got {self.alpha}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """Radii of the tables, and the confidence of their intervals."""

    radii: list[float]
    confidence: float

    def __post_init__(self) -> None:
        _require(
            self.radii == sorted({r for r in self.radii if 0 <= r < math.inf}) != [],
            f"radii: must be distinct, ascending and not negative, got {self.radii}",
        )
        _require(0 < self.confidence < 1, f"confidence: must be in (0, 1), got {self.confidence}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Params:
    """The whole file."""

    data: Data
    models: dict[str, dict[str, Any]]
    pretrain: dict[str, Pretrain]
    recipes: dict[str, Recipe]
    runs: dict[str, Run]
    evals: dict[str, Eval]
    export: Export
    sample: Sample
    certify: Certify
    report: Report

    def __post_init__(self) -> None:
        n, alpha = self.sample.n, self.certify.alpha
        _require(
            alpha ** (1 / n) > 0.5,
            f"sample.n: {n} draws can never certify at certify.alpha = {alpha:g}; at least "
            f"{math.floor(math.log(alpha) / math.log(0.5)) + 1} can",
        )


def load(path: Path = PARAMS) -> Params:
    """Read the whole file: every key known, present, typed, and every name referring to another."""
    params = parse(read_yaml(path), Params, where=str(path))
    for name, pretrain in params.pretrain.items():
        _refer(pretrain.model, params.models, f"{path}: pretrain.{name}.model", "models")
    for name, run in params.runs.items():
        _refer(run.model, params.models, f"{path}: runs.{name}.model", "models")
        _refer(run.recipe, params.recipes, f"{path}: runs.{name}.recipe", "recipes")
        starts = ["shards", *(f"pretrained/{p}" for p in params.pretrain)]
        _refer(run.start, starts, f"{path}: runs.{name}.start", "the starting points")
    for name, evaluation in params.evals.items():
        _refer(evaluation.run, params.runs, f"{path}: evals.{name}.run", "runs")
    return params


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


def _refer(name: str, known: typing.Iterable[str], where: str, section: str) -> None:
    known = list(known)
    if name not in known:
        raise ConfigError(
            f"{where}: {name!r} is not in {section} ({', '.join(known)}).{suggest(name, known)}"
        )
