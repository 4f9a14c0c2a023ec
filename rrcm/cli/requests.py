"""Turns the options of a command into a request; imports nothing heavy."""

import dataclasses
import math
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

from rrcm.cli.classifiers import ClassifierSource, FromElsewhere, class_names
from rrcm.cli.options import Options
from rrcm.config import defaults
from rrcm.config.certification import Report, Sampling, noise_level
from rrcm.config.foreign import KINDS, Foreign
from rrcm.core import formats, registry
from rrcm.core.errors import ConfigError, DataError
from rrcm.core.ranges import require
from rrcm.core.schema import cast

SECONDS = {"s": 1, "m": 60, "h": 3600}
AUTO = "auto"  # --precision: the fastest of those that are allowed
Precision = Literal["fp32", "fp16", "int8", "bf16", "auto"]
PRECISIONS = tuple(name for name in get_args(Precision) if name != AUTO)
# Options that are settings of `Sampling`, with the types of their values.
TYPES = get_type_hints(Sampling, include_extras=True) | {"precision": Precision}
del TYPES["stopping"]
# Options for --model only.
OURS = {"method", "eval_sigma", "split", "precision", "allow", "backend"}
THEIRS = {"images", "labels", "classes", "size", "resize", "as_stored"}
THEIRS |= {"mean", "std", "strict", "count_nan"}
ONLY = {"model": OURS} | {kind: THEIRS | own - {"batch"} for kind, own in KINDS.items()}


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """What options leave open; ``stopping`` are the constants that rules have here, by name.

    The first of ``certificates`` is reported. Without a ``report``, nobody has named radii.
    """

    sample: Sampling = defaults.DRAWS
    stopping: dict[str, dict[str, Any]] = field(default_factory=dict)
    certificates: list[str] = field(default_factory=lambda: [defaults.DRAWS.certificate])
    report: Report | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """A classifier, and how to draw its votes, certify and report them.

    ``shard`` is i/k; ``budget`` is in seconds from ``budget_start``, 0 for none. ``seeded`` is
    whether the user chose the seed of the noise. For the rest see `Settings`.
    """

    source: ClassifierSource
    sample: Sampling
    certificates: list[str]
    report: Report | None
    shard: str = "1/1"
    budget: float = 0.0
    seeded: bool = False
    budget_start: float = field(default_factory=time.monotonic, compare=False)

    def answering(self) -> "Request":
        """Return the request for single answers: draws serve the certificate that is reported."""
        sample = dataclasses.replace(self.sample, certificate=self.certificates[0])
        return dataclasses.replace(self, sample=sample)


def resolve(options: Options, source: ClassifierSource, settings: Settings) -> Request:
    """Return what ``options`` ask of a classifier, by ``settings`` where they leave it open.

    Raises:
        ConfigError: A value is unknown or out of range, or options contradict each other.
    """
    report = settings.report
    if options.radii is not None:
        confidence = report.confidence if report else defaults.CONFIDENCE
        report = Report(radii=parse_radii(options.radii), confidence=confidence)
    return Request(
        source=source,
        sample=_sampling(options, settings, report),
        certificates=[options.certificate] if options.certificate else settings.certificates,
        report=report,
        shard=options.shard,
        budget=0.0 if options.budget is None else seconds(options.budget),
        seeded=options.seed is not None,
    )


def _sampling(options: Options, settings: Settings, report: Report | None) -> Sampling:
    """Return how votes are drawn; radii that are named are those that the rule decides."""
    values = {
        name: cast(value, kind, where=f"--{name.replace('_', '-')}")
        for name, kind in TYPES.items()
        if (value := getattr(options, name)) is not None
    }
    if values.get("precision") == AUTO:
        del values["precision"]
    try:
        sample, tolerance = dataclasses.replace(settings.sample, **values), options.tolerance
    except ConfigError as error:
        key, _, text = str(error).partition(": ")
        told = f"--{key.replace('_', '-')}: {text}" if key in values else error
        raise ConfigError(told) from None
    rule = registry.load("stopping", sample.stop)
    if options.stop is None and tolerance is not None:
        sample = dataclasses.replace(sample, stop="anytime")
    elif options.stop is None and options.radii is not None:
        if not (rule.Rule.fixed or "radii" in rule.DEFAULTS):
            sample = dataclasses.replace(sample, stop=defaults.DRAWS.stop)
    stopping = settings.stopping.get(sample.stop, {})
    if report and "radii" in registry.load("stopping", sample.stop).DEFAULTS:
        if options.radii is not None or stopping.get("radii") is None:
            stopping = stopping | {"radii": report.radii}
    if tolerance is not None:
        asked = f"--tolerance: is of the rule anytime, and was given --stop {sample.stop}"
        require(sample.stop == "anytime", asked)
        finite = 0 < tolerance < math.inf
        require(finite, f"--tolerance: must be positive and finite, got {tolerance:g}")
        stopping = stopping | {"tolerance": tolerance}
    return dataclasses.replace(sample, stopping=stopping)


def foreign(options: Options) -> FromElsewhere | None:
    """Return the classifier that options name; None where --model names one of a project.

    Raises:
        ConfigError: None or several of these were given, or an option does not go with it.
        DataError: There is no such folder of images, or file of classes.
        BackendError: --timm names a file.
    """
    given = options.given()
    kinds = [kind for kind in ONLY if kind in given]
    if len(kinds) != 1:
        got = " and ".join(f"--{kind}" for kind in kinds) or "none"
        raise ConfigError(
            f"give one of --model, --onnx, --timm, --checkpoint and --module; got {got}"
        )
    (kind,) = kinds
    if odd := sorted(given & set().union(*ONLY.values()) - ONLY[kind]):
        raise ConfigError(f"--{odd[0].replace('_', '-')} does not go with --{kind}")
    if kind == "model":
        return None
    noise_level(options.sigma, name="--sigma")
    channels = options.channels
    require(channels in (None, 1, 3), f"--channels: 1 (grey) or 3 (RGB), got {channels}")
    if options.images is not None:
        _require_folder(options.images)
    same = {*Foreign.__slots__} & {*Options.__slots__}
    parsers: dict[str, Callable[[Any], Any]] = {"classes": class_names, "size": _size}
    parsers |= {name: partial(_numbers, name) for name in ("mean", "std")}
    values = {name: getattr(options, name) for name in same}
    values |= {name: parse(values[name]) for name, parse in parsers.items() if name in given}
    values["upright"] = not options.as_stored
    values |= {"batch": options.batch_size} if "batch" in KINDS[kind] else {}
    foreign = Foreign(kind=kind, source=getattr(options, kind), **values)
    return FromElsewhere(foreign=foreign, options=options)


def _require_folder(images: Path) -> None:
    if images.is_file():
        what = formats.told(images, "a file, not a folder")
        taken = f"; `rrcm predict --image {images}` takes it"
        raise DataError(f"--images {images}: {what}{taken * (what == formats.WORDS['picture'])}")
    if not images.is_dir():
        raise DataError(f"--images {formats.missing(images, 'no such folder')}")


def parse_radii(text: str) -> list[float]:
    """Parse ``0,0.25,0.5``.

    Raises:
        ConfigError: It is no list of finite numbers that are at least 0.
    """
    try:
        radii = sorted({float(part) for part in text.split(",")})
    except ValueError:
        radii = [-1.0]
    if not all(0 <= radius < math.inf for radius in radii):
        raise ConfigError(f"--radii: expected radii such as 0,0.25,0.5, got {text!r}")
    return radii


def _size(text: str) -> tuple[int, int]:
    """Parse ``224``, or height x width as ``224x160``."""
    match = re.fullmatch(r"([1-9]\d{0,4})(?:x([1-9]\d{0,4}))?", text)
    if not match:
        raise ConfigError(f"--size: expected pixels, such as 224 or 224x160, got {text!r}")
    return int(match[1]), int(match[2] or match[1])


def _numbers(name: str, text: str) -> tuple[float, ...]:
    """Parse ``0.485,0.456,0.406``."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(
            f"--{name}: expected a number for each channel, such as 0.485,0.456,0.406, got {text!r}"
        ) from None


def seconds(text: str) -> float:
    """Parse ``90s``, ``10m`` or ``1.5h``.

    Raises:
        ConfigError: It is no such time, or 0.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text)
    if not match or not float(match[1]):
        raise ConfigError(f"--budget: expected a time such as 90s, 10m or 1.5h, got {text!r}")
    return float(match[1]) * SECONDS[match[2]]
