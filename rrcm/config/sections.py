"""Sections of ``params.yaml`` up to a trained classifier, as frozen dataclasses.

One dataclass per section, with the same names; no key is optional, and unknown keys are refused.
Parts that belong to a component (a network's shape, a method's constants, augmentations) are
mappings here, and parsed by the component. Sections of denoisers and of later stages have files of
their own, where a change does not invalidate trained networks.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from rrcm.core.ranges import (
    BATCH,
    COPIES,
    COUNT,
    LAYERS,
    SEEDS,
    SIDE,
    not_negative,
    positive,
    require,
    share,
)
from rrcm.core.registry import Of
from rrcm.core.schema import T, Unbounded, cast, find, finite, read_yaml, reading, shown

PARAMS = Path("params.yaml")
# A start or guide that is none. dvc.yaml makes each of these values a dependency, which has to
# exist: it is the file of this name.
NONE = "none"


@dataclass(frozen=True, kw_only=True, slots=True)
class Data:
    """The dataset, its splits, and the size of its images.

    Held out of training are ``validation`` images (to select an epoch), ``choice`` images (to
    compare recipes, or 0) and ``test`` images (0 if the dataset has a test split of its own).
    Evaluation scales a picture to cover ``size / crop`` pixels per side and crops the central
    ``size``. ``channels`` is 1 (grey) or 3 (RGB). Datasets of arrays must already have this size
    and these channels.
    """

    name: Annotated[str, Of("datasets")]
    seed: int
    test: int
    validation: int
    choice: int
    shard_size: int
    size: int
    channels: int
    crop: float

    def __post_init__(self) -> None:
        not_negative(self, "seed", most=SEEDS)
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
    """A network, one entry of ``models``: a file of rrcm/models/networks/ and its constants."""

    architecture: str
    shape: dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Compute:
    """How training is computed: devices, precision and memory, which change results by rounding.

    ``devices`` processes share each batch, one GPU each; 0 uses every GPU of the machine. A batch
    is computed in ``accumulate`` parts, one after the other; BatchNorm statistics and negatives are
    then those of a part. ``recompute`` trades stored activations for a second forward pass. Each
    device has ``workers`` processes that decode pictures.
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

    def shares(self, batch_size: int) -> None:
        """Refuse a batch that cannot be computed in equal parts; those of 0 devices are unknown."""
        devices = max(self.devices, 1)
        require(
            batch_size % (devices * self.accumulate) == 0,
            f"batch_size: {batch_size} cannot be shared evenly by compute.devices: {devices}, "
            f"each in compute.accumulate: {self.accumulate} equal parts",
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Optimizer:
    """AdamW or SGD; ``momentum`` is that of SGD and beta_1 of AdamW.

    The learning rate rises linearly to ``lr`` over a share ``warmup`` of the steps. Then it falls
    by half a cosine that would reach zero after ``horizon`` times the steps, or, if there are
    ``milestones``, is multiplied by ``gamma`` after each of these shares of the steps.

    ``warmup_by`` selects whether the rate rises every step or every epoch (from 0, so that the
    first epoch trains nothing, as in the reference implementation). Gradients are clipped to the
    norm ``clip`` (``.inf`` does not clip), during warm-up only if ``clip_warmup``.
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
        require(0 <= self.warmup < 1, f"warmup: a share of the steps in [0, 1), got {self.warmup}")
        require(self.horizon >= 1, f"horizon: must be at least 1, got {self.horizon}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Grid:
    """The grid of noise levels t in pre-training, in model space (pixels in [-1, 1]).

    ``rho`` spaces the levels between ``t_min`` and ``t_max`` (Karras et al., 2022); their number
    grows from ``first`` to ``last`` intervals by ``rule``. A pair of neighbours is drawn uniformly,
    or with ``sampling: lognormal`` such that ln t is normal with ``mean`` and ``std``
    (docs/theory.md, eq. 38), which favours levels used in certification.
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
        require(abs(self.mean) <= COUNT, f"mean: a logarithm of noise, got {self.mean}")
        require(1 <= self.first <= self.last, f"first: from 1 to {self.last}, got {self.first}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Momentum:
    """Momentum of the EMA target over training: a sigmoid from ``start`` to ``end``.

    These are of a run of so many ``steps``, 0: of this one; `ema_momentum` has those of others.
    """

    start: float
    end: float
    steepness: float
    steps: int = 0

    def __post_init__(self) -> None:
        positive(self, "steepness")
        not_negative(self, "steps", most=COUNT)
        require(
            0 <= self.start < self.end <= 1,
            f"start, end: need 0 <= start < end <= 1, got {self.start} and {self.end}",
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Pretrain:
    """One pre-training; ``loss`` holds the objective's own constants.

    ``batch_size`` counts the images on all devices together. ``freeze_patches`` keeps the first
    layer at its random initialisation, as in MoCo-v3. ``augment`` has a list of augmentations for
    each view of the objective (its ``VIEWS``).
    """

    architecture: Annotated[str, Of("networks")]
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
        not_negative(self, "seed", most=SEEDS)
        positive(self, "steps")
        require(self.batch_size > 1, f"batch_size: must be above 1, got {self.batch_size}")
        positive(self, "batch_size", most=BATCH)
        self.compute.shares(self.batch_size)


@dataclass(frozen=True, kw_only=True, slots=True)
class Mix:
    """Mixup and CutMix (parameters of their Beta distributions; 0 is off), and label smoothing.

    A batch is mixed with probability ``prob``; if both are on, CutMix is chosen with probability
    ``switch``. ``smoothing`` is the share of a label that is spread evenly over all classes.
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
    """How a classifier is trained.

    ``labels`` is the share of each class's training images whose labels are used; the run's seed
    chooses them. An epoch is these images once. With 0 ``epochs`` the weights keep their initial
    values. ``layer_decay`` multiplies the learning
    rate of each earlier layer. ``final_norm`` is whether the head reads the encoder's output after
    its last LayerNorm. ``condition`` is the noise level that the encoder gets: the ``exact`` one or
    the ``nearest`` on the paper's grid. ``selection`` keeps the weights of the ``last`` epoch or of
    the best on the validation split, measured with ``validation_draws`` noisy copies of each image.
    """

    labels: float
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
        self.compute.shares(self.batch_size)
        positive(self, "validation_draws", most=COPIES)
        not_negative(self, "epochs")
        require(0 < self.labels <= 1, f"labels: a share in (0, 1], got {self.labels}")
        require(
            0 < self.layer_decay <= 1, f"layer_decay: must be in (0, 1], got {self.layer_decay}"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """A named smoothed classifier: model x method x training sigma (x seed).

    ``architecture`` names a file of rrcm/models/networks/, ``model`` its shape in ``models``.
    ``start`` is the artifact with its initial weights, ``pretrained/<name>`` or
    ``imported/<name>`` or ``models/<run>``, or `NONE` to train from scratch. Where the method has a
    table, it is its teacher instead. ``loss`` holds the method's own constants. ``noise`` has
    the standard deviation ``sigma``.
    """

    architecture: Annotated[str, Of("networks")]
    model: str
    method: Annotated[str, Of("methods")]
    sigma: float
    seed: int
    start: str
    recipe: str
    loss: dict[str, Any]
    noise: Literal["gaussian", "uniform"] = "gaussian"

    def __post_init__(self) -> None:
        not_negative(self, "seed", most=SEEDS)
        positive(self, "sigma")


def read_model(entry: Pretrain | Run) -> Model:
    """The declared network of a pre-training or a run."""
    shape = read(f"models.{entry.model}", dict[str, Any])
    return Model(architecture=entry.architecture, shape=shape)


def read(section: str, into: type[T], path: Path = PARAMS) -> T:
    """Read and check one dotted section, e.g. ``read("runs.tiny-rrcm-s025", Run)``."""
    with reading(path):
        return cast(find(read_yaml(path), section), into, where=section)


def as_written(*sections: str, path: Path = PARAMS) -> dict[str, Any]:
    """Sections by dotted name, as JSON values that an artifact can record."""
    whole = read_yaml(path)
    with reading(path):
        return {section: finite(find(whole, section)) for section in sections}
