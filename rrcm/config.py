"""``params.yaml`` up to a trained model, as frozen dataclasses: typed, nothing optional or ignored.

One dataclass per section, with the section's names. Parts that belong to a component (a network's
shape, a method's constants, augmentations) stay mappings here and are parsed by the component.
What comes after training is in settings.py, so that a change there trains nothing again.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from rrcm.limits import (
    BATCH,
    COPIES,
    LAYERS,
    MOST,
    SIDE,
    not_negative,
    positive,
    require,
    seeded,
    share,
)
from rrcm.parsing import T, Unbounded, cast, find, finite, read_yaml, reading, shown
from rrcm.registry import Of

PARAMS = Path("params.yaml")
NOTHING = "shards/train"  # the artifact that stands for no start, guide or condition: the data


@dataclass(frozen=True, kw_only=True, slots=True)
class Data:
    """Which dataset, how it is split, and how large its images are.

    Held out of training are ``validation`` images, to select an epoch, ``choice`` images, or 0, to
    compare recipes on, and ``test`` images: 0 where the dataset has a test split. Evaluation scales
    a picture until it just covers ``size / crop`` pixels a side and cuts out the central ``size``,
    and everything sees it with ``channels``, 1 (grey) or 3 (RGB); images that are arrays have both
    already.
    """

    name: Annotated[str, Of("data")]
    seed: int
    test: int
    validation: int
    choice: int
    shard_size: int
    size: int
    channels: int
    crop: float

    def __post_init__(self) -> None:
        seeded(self)
        positive(self, "validation", "shard_size")
        positive(self, "size", most=SIDE)
        not_negative(self, "test", "choice")
        require(self.channels in (1, 3), f"channels: 1 (grey) or 3 (RGB), got {self.channels}")
        require(0 < self.crop <= 1, f"crop: a share in (0, 1], got {self.crop}")
        require(
            self.size / self.crop <= SIDE,
            f"crop: pictures are scaled to size / crop pixels, at most {SIDE}, got {self.crop}",
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Model:
    """A network: a file of rrcm/models/, and the constants it asks for (``models.<name>``)."""

    architecture: str
    shape: dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Compute:
    """How a training is computed. What it computes is the same, but for rounding, and but for
    parts of a batch where rows depend on each other: in a BatchNorm, and as negatives.

    ``devices`` processes share each batch, one GPU each; 0 is every GPU of the machine. A batch is
    computed in ``accumulate`` parts one after the other. ``recompute`` trades activations kept in
    memory for a second forward pass. ``workers`` processes for each device decode pictures.
    """

    devices: int
    precision: Literal["fp32", "bf16"]
    accumulate: int
    compile: bool
    recompute: bool
    workers: int

    def __post_init__(self) -> None:
        positive(self, "accumulate", most=BATCH)
        not_negative(self, "devices", "workers", most=LAYERS)


@dataclass(frozen=True, kw_only=True, slots=True)
class Optimizer:
    """AdamW or SGD; ``momentum`` is that of SGD and beta_1 of AdamW.

    The rate rises linearly to ``lr`` in a share ``warmup`` of the steps. Then it falls by half a
    cosine, which takes ``horizon`` times the steps to reach zero, or, where there are
    ``milestones``, to ``gamma`` of itself after each of these shares of the steps.

    ``warmup_by`` says whether the rate rises with every step or every epoch (from 0, so that the
    first epoch is lost, as in the reference implementation). Gradients are clipped to the norm
    ``clip`` (``.inf`` does not clip), and in the warm-up only if ``clip_warmup``.
    """

    algorithm: Literal["adamw", "sgd"]
    lr: float
    momentum: float
    weight_decay: float
    warmup: float
    warmup_by: Literal["step", "epoch"]
    horizon: float
    milestones: list[float]
    gamma: float
    clip: Unbounded
    clip_warmup: bool

    def __post_init__(self) -> None:
        positive(self, "lr", "horizon")
        require(0 <= self.momentum < 1, f"momentum: must be in [0, 1), got {self.momentum}")
        require(0 < self.gamma <= 1, f"gamma: must be in (0, 1], got {self.gamma}")
        require(
            self.milestones == sorted(self.milestones)
            and all(0 < part < 1 for part in self.milestones),
            f"milestones: shares of the steps in (0, 1), ascending, got {shown(self.milestones)}",
        )
        not_negative(self, "weight_decay")
        require(self.clip > 0, f"clip: must be positive, got {self.clip}")
        require(0 <= self.warmup < 1, f"warmup: a share of the steps in [0, 1), {self.warmup}")
        require(self.horizon >= 1, f"horizon: must be at least 1, got {self.horizon}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Grid:
    """Noise levels of pre-training, in model space (pixels in [-1, 1]), and their number.

    A pair of neighbours is drawn uniformly, or with ``sampling: lognormal`` where ln t is normal
    with ``mean`` and ``std`` (docs/theory.md, eq. 38): more often where certification lives.
    """

    t_min: float
    t_max: float
    rho: float
    first: int
    last: int
    rule: Literal["ict", "reference"]
    sampling: Literal["uniform", "lognormal"]
    mean: float
    std: float

    def __post_init__(self) -> None:
        require(
            0 < self.t_min < self.t_max,
            f"t_min, t_max: need 0 < t_min < t_max, got {self.t_min} and {self.t_max}",
        )
        positive(self, "t_max", "rho", "std")
        positive(self, "last", most=BATCH)
        require(abs(self.mean) <= MOST, f"mean: a logarithm of noise, got {self.mean}")
        require(1 <= self.first <= self.last, f"first: from 1 to {self.last}, got {self.first}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Momentum:
    """Momentum of the EMA target: a sigmoid from ``start`` to ``end``."""

    start: float
    end: float
    steepness: float

    def __post_init__(self) -> None:
        positive(self, "steepness")
        require(
            0 <= self.start < self.end <= 1,
            f"start, end: need 0 <= start < end <= 1, got {self.start} and {self.end}",
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Pretrain:
    """One pre-training; ``loss`` holds the objective's own constants.

    ``batch_size`` counts images of all devices. ``freeze_patches`` leaves the patch embedding at
    its random start, as MoCo-v3 does. ``augment`` has a list for each view that the objective asks
    for (its ``VIEWS``).
    """

    architecture: Annotated[str, Of("models")]
    model: str
    objective: Annotated[str, Of("objectives")]
    seed: int
    steps: int
    batch_size: int
    freeze_patches: bool
    optimizer: Optimizer
    grid: Grid
    target: Momentum
    loss: dict[str, Any]
    augment: dict[str, list[Any]]
    compute: Compute

    def __post_init__(self) -> None:
        seeded(self)
        positive(self, "steps")
        require(self.batch_size > 1, f"batch_size: must be above 1, got {self.batch_size}")
        positive(self, "batch_size", most=BATCH)


@dataclass(frozen=True, kw_only=True, slots=True)
class Mix:
    """Mixup and CutMix of images and labels (their Beta constants; 0 is neither), and smoothing.

    A batch is mixed with probability ``prob``, and cut with probability ``switch`` where both are
    asked for. ``smoothing`` is the share of a label that goes to all classes alike.
    """

    mixup: float
    cutmix: float
    prob: float
    switch: float
    smoothing: float

    def __post_init__(self) -> None:
        not_negative(self, "mixup", "cutmix")
        share(self, "prob", "switch")
        require(0 <= self.smoothing < 1, f"smoothing: must be in [0, 1), got {self.smoothing}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """How a classifier is trained; ``layer_decay`` scales the rate of each earlier layer.

    No epochs leave the weights as they start. ``final_norm`` says whether the head reads the
    encoder's output behind its last LayerNorm. ``selection`` keeps the weights of the epoch that is
    best on the validation split, or of the last one.
    """

    epochs: int
    batch_size: int
    optimizer: Optimizer
    layer_decay: float
    head: Literal["trainable", "frozen"]
    final_norm: bool
    condition: Literal["exact", "nearest"]
    selection: Literal["validation", "last"]
    validation_draws: int
    augment: list[Any]
    mix: Mix
    compute: Compute

    def __post_init__(self) -> None:
        positive(self, "batch_size", most=BATCH)
        positive(self, "validation_draws", most=COPIES)
        not_negative(self, "epochs")
        require(0 < self.layer_decay <= 1, f"layer_decay: must be in (0, 1], {self.layer_decay}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """A named smoothed classifier: model x method x training sigma (x seed).

    ``architecture`` names a file of rrcm/models/, ``model`` its shape in ``models``. ``start`` is
    the artifact that it starts from: ``pretrained/<name>``, ``imported/<name>``, or `NOTHING`,
    from scratch. ``loss`` holds the method's own constants.
    """

    architecture: Annotated[str, Of("models")]
    model: str
    method: Annotated[str, Of("methods")]
    sigma: float
    seed: int
    start: str
    recipe: str
    loss: dict[str, Any]

    def __post_init__(self) -> None:
        seeded(self)
        positive(self, "sigma")


def read_model(entry: Pretrain | Run) -> Model:
    """The network of a pre-training or a run."""
    shape = read(f"models.{entry.model}", dict[str, Any])
    return Model(architecture=entry.architecture, shape=shape)


def read(section: str, into: type[T], path: Path = PARAMS) -> T:
    """Read one dotted section, e.g. ``read("runs.tiny-rrcm-s025", Run)``."""
    with reading(path):
        return cast(find(read_yaml(path), section), into, where=section)


def as_written(*sections: str, path: Path = PARAMS) -> dict[str, Any]:
    """Sections by dotted name, for an artifact to keep: as in dvc.lock, in numbers of JSON."""
    whole = read_yaml(path)
    with reading(path):
        return {section: finite(find(whole, section)) for section in sections}
