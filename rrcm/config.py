"""``params.yaml`` as frozen dataclasses: complete, typed, nothing optional and nothing ignored.

One dataclass per section, with the section's names. Parts that belong to a component (a network's
shape, a method's constants, augmentations) stay mappings here and are parsed by the component.
"""

import dataclasses
import math
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from rrcm.errors import ConfigError
from rrcm.registry import suggest

PARAMS = Path("params.yaml")
T = typing.TypeVar("T")


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ConfigError(message)


@dataclass(frozen=True, kw_only=True, slots=True)
class Data:
    """Which dataset, and how it is split; ``test`` and ``validation`` count images."""

    name: str
    seed: int
    test: int
    validation: int
    shard_size: int

    def __post_init__(self) -> None:
        """Counts are positive."""
        for key in ("test", "validation", "shard_size"):
            _require(getattr(self, key) > 0, f"{key}: must be positive, got {getattr(self, key)}")


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
        """Rates are positive; ``warmup`` is a share of training."""
        _require(self.lr > 0, f"lr: must be positive, got {self.lr}")
        _require(self.weight_decay >= 0, f"weight_decay: must be >= 0, got {self.weight_decay}")
        _require(self.clip > 0, f"clip: must be positive, got {self.clip}")
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
        """Levels are ordered and there are at least two."""
        _require(
            0 < self.t_min < self.t_max,
            f"t_min, t_max: need 0 < t_min < t_max, got {self.t_min} and {self.t_max}",
        )
        _require(self.rho > 0, f"rho: must be positive, got {self.rho}")
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
        """Momenta are ordered within [0, 1]."""
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
        """There is something to do, and a contrast needs two images."""
        _require(self.steps > 0, f"steps: must be positive, got {self.steps}")
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
        """Counts are positive; ``layer_decay`` is in (0, 1]."""
        for key in ("epochs", "batch_size", "validation_draws"):
            _require(getattr(self, key) > 0, f"{key}: must be positive, got {getattr(self, key)}")
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
        """Sigma is a positive number."""
        check_sigma(self.sigma)


@dataclass(frozen=True, kw_only=True, slots=True)
class Eval:
    """A run, smoothed at a sigma: one row of the report."""

    run: str
    sigma: float

    def __post_init__(self) -> None:
        """Sigma is a positive number."""
        check_sigma(self.sigma)


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
        """Counts are positive."""
        for key in ("batch_size", "n0", "n"):
            _require(getattr(self, key) > 0, f"{key}: must be positive, got {getattr(self, key)}")
        _require(0 <= self.seed < 2**64, f"seed: must be in [0, 2^64), got {self.seed}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Certify:
    """Which certificate, at which failure probability per image."""

    certificate: str
    alpha: float

    def __post_init__(self) -> None:
        """Alpha is a probability."""
        _require(0 < self.alpha < 1, f"alpha: must be in (0, 1), got {self.alpha}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """Radii of the tables, and the confidence of their intervals."""

    radii: list[float]
    confidence: float

    def __post_init__(self) -> None:
        """Radii ascend from 0 or more; the confidence is a probability."""
        _require(
            bool(self.radii) and self.radii == sorted(set(self.radii)) and self.radii[0] >= 0,
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
        """Some outcome of the draws can certify: n that all agree bound p_A by alpha^(1/n)."""
        n, alpha = self.sample.n, self.certify.alpha
        _require(
            alpha ** (1 / n) > 0.5,
            f"sample.n: {n} draws can never certify at certify.alpha = {alpha:g}; at least "
            f"{math.floor(math.log(alpha) / math.log(0.5)) + 1} can",
        )


def check_sigma(sigma: float) -> None:
    """Refuse a sigma that is not a positive, finite number."""
    _require(math.isfinite(sigma) and sigma > 0, f"sigma: must be positive, got {sigma}")


def load(path: Path = PARAMS) -> Params:
    """Read the whole file: every key known, present, typed, and every name referring to another."""
    params = parse(_yaml(path), Params, where=str(path))
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


def find_run(params: Params, *, model: str, method: str, sigma: float) -> str:
    """The name of the run with these values; sigmas are compared as numbers, so 1 is 1.00.

    Raises:
        ConfigError: There is none; says what there is and how to get it.
    """
    check_sigma(sigma)
    for name, run in params.runs.items():
        if (run.model, run.method, run.sigma) == (model, method, sigma):
            return name
    have = {(run.model, run.method, run.sigma) for run in params.runs.values()}
    listed = ", ".join(f"{m} {k} σ = {s:g}" for m, k, s in sorted(have))
    name = f"{model}-{method}-s{round(100 * sigma):03d}"
    raise ConfigError(
        f"params.yaml has no {model} {method} σ = {sigma:g}, only {listed}."
        f"{suggest(model, sorted({m for m, _, _ in have}))} Add {name} under runs, then make it "
        f"with `dvc repro export@{name}` or fetch it with `dvc pull onnx/{name}.onnx`"
    )


def read_model(entry: Pretrain | Run) -> Model:
    """The network of a pre-training or a run."""
    return Model(
        architecture=entry.architecture, shape=read(f"models.{entry.model}", dict[str, Any])
    )


def read(section: str, into: type[T], path: Path = PARAMS) -> T:
    """Read one dotted section, e.g. ``read("runs.tiny-rrcm-s025", Run)``."""
    node = _yaml(path)
    for key in section.split("."):
        if not isinstance(node, dict) or key not in node:
            known = [str(k) for k in node] if isinstance(node, dict) else []
            raise ConfigError(f"{path}: {section}: no {key!r} here.{suggest(key, known)}")
        node = node[key]
    return _cast(node, into, where=f"{path}: {section}")


def parse(node: dict[str, Any], into: type[T], *, where: str) -> T:
    """Build a dataclass from a mapping; unknown, missing or mistyped keys are errors."""
    if not isinstance(node, dict):
        raise ConfigError(f"{where}: expected a mapping, got {node!r}")
    types_ = typing.get_type_hints(into)
    if unknown := sorted(str(key) for key in node.keys() - types_.keys()):
        raise ConfigError(f"{where}: unknown key {unknown[0]!r}.{suggest(unknown[0], [*types_])}")
    if missing := [key for key in types_ if key not in node]:
        raise ConfigError(f"{where}: missing {', '.join(missing)}")
    values = {key: _cast(node[key], type_, where=f"{where}.{key}") for key, type_ in types_.items()}
    try:
        return into(**values)
    except ConfigError as error:  # a class checks its own values, and cannot know where they stand
        joint = ": " if into is Params else "."
        raise ConfigError(f"{where}{joint}{error}") from None


def _cast(value: Any, to: Any, *, where: str) -> Any:
    origin, arguments = typing.get_origin(to) or to, typing.get_args(to)
    if to is Any:
        return value
    if dataclasses.is_dataclass(to):
        return parse(value, to, where=where)
    if origin is Literal:
        if value not in arguments:
            hint = suggest(str(value), [str(a) for a in arguments])
            raise ConfigError(f"{where}: must be {' or '.join(arguments)}, got {value!r}.{hint}")
        return value
    if to is float and type(value) is int:
        return float(value)
    if type(value) is not origin:
        raise ConfigError(f"{where}: expected {origin.__name__}, got {value!r}")
    if origin is list:
        return [_cast(v, arguments[0], where=f"{where}[{i}]") for i, v in enumerate(value)]
    if origin is dict:
        return {k: _cast(v, arguments[1], where=f"{where}.{k}") for k, v in value.items()}
    return value


def _yaml(path: Path) -> Any:
    try:
        return YAML(typ="safe", pure=True).load(path)  # YAML 1.2, as DVC: 1e-4 is a float
    except FileNotFoundError:
        raise ConfigError(
            f"{path}: not found; run this in a checkout, or `rrcm preset digits`"
        ) from None
    except YAMLError as error:
        raise ConfigError(f"{path}: {' '.join(str(error).split())}") from None


def _refer(name: str, known: typing.Iterable[str], where: str, section: str) -> None:
    known = list(known)
    if name not in known:
        raise ConfigError(
            f"{where}: {name!r} is not in {section} ({', '.join(known)}).{suggest(name, known)}"
        )
