"""Resolves the options of a command against params.yaml to a request; imports nothing heavy."""

import dataclasses
import math
import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rrcm.cli.checked import load
from rrcm.cli.options import Options
from rrcm.cli.runs import Trained, trained
from rrcm.config import defaults
from rrcm.config.certification import Certify, Report, Sample, noise_level
from rrcm.config.params import Params
from rrcm.config.sections import PARAMS
from rrcm.core import registry
from rrcm.core.errors import ConfigError, DataError
from rrcm.core.ranges import require
from rrcm.core.registry import suggest

SPLITS = ("test", "choice")  # splits that may be certified
SECONDS = {"s": 1, "m": 60, "h": 3600}
SAMPLE = (  # override keys of `sample`
    *("n", "n0", "split", "subset", "stop", "batch_size", "seed"),
    *("noise", "certificate", "precision", "backend"),
)
COMPONENTS = {"certificate": "certificates", "noise": "distributions", "backend": "backends"}
PRECISIONS = ("fp32", "fp16", "int8", "bf16")
AUTO = "auto"  # --precision: the fastest of those that are allowed
# Options for --model only.
OURS = {"method", "eval_sigma", "split", "precision", "allow", "backend"}
THEIRS = {"images", "labels", "classes", "size", "resize", "mean", "std", "strict", "denoiser"}
ONNX = {*THEIRS, "output", "channels"}
ONLY = {"model": OURS, "onnx": ONNX, "timm": {*THEIRS, "weights"}}


@dataclass(frozen=True, kw_only=True, slots=True)
class Foreign:
    """A classifier trained elsewhere, its images, and their preprocessing.

    ``kind`` is a file of rrcm/inference/foreign/, ``name`` the name or file of the classifier.
    A value of None stands for the classifier's own.
    """

    kind: str
    name: str
    sigma: float
    images: Path | None
    labels: Path | None
    classes: Path | None
    weights: Path | None
    denoiser: Path | None
    output: str | None
    size: tuple[int, int] | None
    channels: int | None
    resize: str
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None
    batch_size: int | None
    strict: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Allowed:
    """What --precision auto may choose: ``precisions``; a given ``backend`` or ``batch_size``."""

    precisions: tuple[str, ...]
    backend: str | None
    batch_size: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """A classifier, and how to draw its votes, certify and report them.

    ``stopping`` are the constants of the rule ``sample.stop``; ``shard`` is i/k; ``budget`` is in
    seconds from ``began``, 0 for none; ``devices`` are those of further processes, none to work in
    this one. Where there is ``allowed``, what is fastest of it takes the place of the precision,
    the backend and the batch size of ``sample``.
    ``seeded`` is whether the user chose the seed of the noise, ``radius`` the one to judge each
    image at, if any.
    """

    source: Trained | Foreign
    sample: Sample
    stopping: dict[str, Any]
    certify: Certify
    report: Report
    shard: str = "1/1"
    budget: float = 0.0
    devices: tuple[str, ...] = ()
    allowed: Allowed | None = None
    seeded: bool = False
    radius: float | None = None
    began: float = field(default_factory=time.monotonic, compare=False)

    def answering(self) -> "Request":
        """Return the request for single answers: draws serve the certificate that is reported."""
        certificate, alpha = self.certify.certificates[0], self.certify.alpha
        sample = dataclasses.replace(self.sample, certificate=certificate, alpha=alpha)
        return dataclasses.replace(self, sample=sample)


def resolve(options: Options, *, outside: str = "anytime") -> Request:
    """Turn the options of a command into a request; params.yaml decides what they leave open.

    ``outside`` is the stopping rule where there is no params.yaml.

    Raises:
        ConfigError: No such run, options that contradict each other, or settings under which
            nothing could be certified.
        BackendError: The run has not been trained and exported here; the message says how to get
            it.
        DataError: There is no such folder of images.
    """
    kind = _kind(options)
    source: Trained | Foreign
    params: Params | None
    if kind == "model":
        params = load()
        source = trained(params, options)
    else:
        params = load() if PARAMS.exists() else None
        source = _foreign(kind, options)
    sample = params.sample if params else dataclasses.replace(defaults.DRAWS, stop=outside)
    stopping = params.stopping if params else defaults.STOPPING
    given = options.given()
    allowed = _allowed(options)
    if allowed:
        del given["precision"]
    sample = dataclasses.replace(sample, **{key: given[key] for key in SAMPLE if key in given})
    require(sample.split in SPLITS, f"--split: must be test or choice, got {sample.split!r}")
    certify = params.certify if params else defaults.CERTIFY
    report = params.report if params else defaults.REPORT
    for key, kind in COMPONENTS.items():
        if key in given:
            registry.require(kind, given[key])
    require(
        sample.precision in PRECISIONS,
        f"--precision: one of {', '.join((*PRECISIONS, AUTO))}, got {sample.precision!r}",
    )
    if options.certificate is not None:
        certify = dataclasses.replace(certify, certificates=[options.certificate])
    if options.radii is not None or options.radius is not None:
        report = dataclasses.replace(report, radii=_radii(options))
        if options.stop is None:
            constants = stopping.get(sample.stop, {})
            sample = _until_decided(sample, constants, always=options.radius is not None)
        for rule, constants in (defaults.STOPPING | stopping).items():
            if "radii" in constants:
                stopping = stopping | {rule: constants | {"radii": report.radii}}
    if options.tolerance is not None:
        stopping = _with_tolerance(options.tolerance, stopping, rule=sample.stop)
    if options.alpha is not None:
        certify = dataclasses.replace(certify, alpha=options.alpha)
        sample = dataclasses.replace(sample, alpha=options.alpha)
    if params:  # its checks also cover combinations of these values
        changed: dict[str, Any] = {
            "sample": sample,
            "certify": certify,
            "stopping": stopping,
            "report": report,
        }
        params = dataclasses.replace(params, **changed)
    where = "params.yaml's stopping" if params else "what works without a params.yaml"
    require(
        sample.stop in stopping,
        f"--stop {sample.stop}: not in {where}, only {', '.join(stopping)}."
        f"{suggest(sample.stop, [*stopping])}",
    )
    return Request(
        source=source,
        sample=sample,
        stopping=stopping[sample.stop],
        certify=certify,
        report=report,
        shard=options.shard,
        budget=0.0 if options.budget is None else seconds(options.budget),
        devices=device_names(options.devices, shard=options.shard) if options.devices else (),
        allowed=allowed,
        seeded=options.seed is not None,
        radius=options.radius,
    )


def _kind(options: Options) -> str:
    """Return which of --model, --onnx and --timm was given.

    Raises:
        ConfigError: None or several were given, or an option does not go with it.
    """
    given = options.given()
    kinds = [kind for kind in ONLY if kind in given]
    if len(kinds) != 1:
        got = " and ".join(f"--{kind}" for kind in kinds) or "none"
        raise ConfigError(f"give one of --model, --onnx and --timm; got {got}")
    (kind,) = kinds
    if odd := sorted({*given} & set().union(*ONLY.values()) - ONLY[kind]):
        raise ConfigError(f"--{odd[0].replace('_', '-')} does not go with --{kind}")
    return kind


def _allowed(options: Options) -> Allowed | None:
    """Return what --precision auto may choose from; None if another precision was given.

    Raises:
        ConfigError: --allow names no precision, or does not go with --precision.
    """
    named = tuple(options.allow.split(",")) if options.allow else ()
    for name in named:
        require(
            name in PRECISIONS,
            f"--allow: expected some of {', '.join(PRECISIONS)}, got {name!r}."
            f"{suggest(name, [*PRECISIONS])}",
        )
    if options.precision != AUTO:
        require(not named, "--allow: goes with --precision auto only")
        return None
    return Allowed(
        precisions=tuple(sorted({PRECISIONS[0], *named})),
        backend=options.backend,
        batch_size=options.batch_size,
    )


def _until_decided(sample: Sample, constants: dict[str, Any], *, always: bool) -> Sample:
    """Return ``sample`` with the rule `grid`, unless its own decides the radii anyway."""
    if "radii" in constants or (sample.stop in ("none", "futile") and not always):
        return sample
    return dataclasses.replace(sample, stop="grid")


def _with_tolerance(
    tolerance: float, stopping: dict[str, dict[str, Any]], *, rule: str
) -> dict[str, dict[str, Any]]:
    """Return the constants of all rules with another tolerance of `anytime`.

    Raises:
        ConfigError: ``rule`` is another one, or the tolerance is not positive.
    """
    require(rule == "anytime", "--tolerance: is of the rule anytime; add --stop anytime")
    require(
        0 < tolerance < math.inf, f"--tolerance: must be positive and finite, got {tolerance:g}"
    )
    changed = {"tolerance": tolerance}
    return {k: v | changed if k == "anytime" else v for k, v in stopping.items()}


def _radii(options: Options) -> list[float]:
    """Return the radii that were asked for, by --radii or --radius.

    Raises:
        ConfigError: Both were given, or a radius is not a finite number that is at least 0.
    """
    if options.radius is None:
        return parse_radii(options.radii or "")
    require(options.radii is None, "--radius: is one of --radii; give one of the two options")
    radius = options.radius
    require(0 <= radius < math.inf, f"--radius: must be finite and not negative, got {radius:g}")
    return [radius]


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


def settings() -> tuple[Certify, Report]:
    """Return the settings to certify and report: those of params.yaml, if there is one."""
    if not PARAMS.exists():
        return defaults.CERTIFY, defaults.REPORT
    params = load()
    return params.certify, params.report


def _foreign(kind: str, options: Options) -> Foreign:
    images, channels = options.images, options.channels
    noise_level(options.sigma, name="--sigma")
    require(channels in (None, 1, 3), f"--channels: 1 (grey) or 3 (RGB), got {channels}")
    if images is not None and not images.is_dir():
        if images.exists():
            raise DataError(
                f"--images {images}: a file, not a folder; `rrcm predict --image {images}` takes it"
            )
        raise DataError(f"--images {images}: no such folder")
    return Foreign(
        kind=kind,
        name=(options.onnx if kind == "onnx" else options.timm) or "",
        sigma=options.sigma,
        images=images,
        labels=options.labels,
        classes=options.classes,
        weights=options.weights,
        denoiser=options.denoiser,
        output=options.output,
        size=None if options.size is None else _size(options.size),
        channels=channels,
        resize="crop" if options.resize is None else options.resize,
        mean=None if options.mean is None else _numbers("mean", options.mean),
        std=None if options.std is None else _numbers("std", options.std),
        batch_size=options.batch_size,
        strict=options.strict,
    )


def _size(text: str) -> tuple[int, int]:
    """Parse ``224``, or height x width as ``224x160``."""
    found = re.fullmatch(r"([1-9]\d{0,4})(?:x([1-9]\d{0,4}))?", text)
    if not found:
        raise ConfigError(f"--size: expected pixels, such as 224 or 224x160, got {text!r}")
    return int(found[1]), int(found[2] or found[1])


def _numbers(name: str, text: str) -> tuple[float, ...]:
    """Parse ``0.485,0.456,0.406``."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(
            f"--{name}: expected a number for each channel, such as 0.485,0.456,0.406, got {text!r}"
        ) from None


def device_names(text: str, *, shard: str) -> tuple[str, ...]:
    """Parse ``0,1``, ``cpu,cpu`` or ``all``.

    Raises:
        ConfigError: It is neither, it mixes both, or the request is for one shard already.
    """
    names = tuple(text.split(","))
    if names != ("all",) and not all(name == "cpu" or name.isdecimal() for name in names):
        raise ConfigError(
            f"--devices: expected GPU numbers or cpu, such as 0,1, or all, got {text!r}"
        )
    if 0 < names.count("cpu") < len(names):
        raise ConfigError(f"--devices: GPUs and cpu round differently, give one kind, got {text!r}")
    if shard != "1/1":
        raise ConfigError(f"--devices: makes shards of its own, and was given --shard {shard}")
    return names


def seconds(text: str) -> float:
    """Parse ``90s``, ``10m`` or ``1.5h``.

    Raises:
        ConfigError: It is no such time, or 0.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text)
    if not found or not float(found[1]):
        raise ConfigError(f"--budget: expected a time such as 90s, 10m or 1.5h, got {text!r}")
    return float(found[1]) * SECONDS[found[2]]
