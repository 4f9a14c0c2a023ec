"""Turns the options of a command into a request; imports nothing heavy."""

import dataclasses
import math
import re
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rrcm.cli.classifiers import ClassifierSource, Foreign, Opened
from rrcm.cli.options import Options
from rrcm.cli.project import Project, Settings
from rrcm.config import defaults
from rrcm.config.certification import Certify, Report, Sampling, noise_level
from rrcm.core import formats, registry
from rrcm.core.errors import ConfigError, DataError
from rrcm.core.ranges import require

if TYPE_CHECKING:  # PyTorch takes seconds
    from rrcm.certification.smoothed import Smoothed

SPLITS = ("test", "choice")  # splits that may be certified
SECONDS = {"s": 1, "m": 60, "h": 3600}
SAMPLE = (  # override keys of `sample`
    *("n", "n0", "split", "subset", "stop", "batch_size", "seed"),
    *("noise", "certificate", "precision", "backend"),
)
COMPONENTS = {"certificate": "certificates", "noise": "distributions"}
COMPONENTS |= {"backend": "backends", "stop": "stopping"}
PRECISIONS = ("fp32", "fp16", "int8", "bf16")
AUTO = "auto"  # --precision: the fastest of those that are allowed
# Options for --model only.
OURS = {"method", "eval_sigma", "split", "precision", "allow", "backend"}
THEIRS = {"images", "labels", "classes", "size", "resize", "as_stored"}
THEIRS |= {"mean", "std", "strict", "count_nan"}
ONNX = {*THEIRS, "output", "channels"}
ONLY = {"model": OURS, "onnx": ONNX, "timm": {*THEIRS, "weights"}}


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """A classifier, and how to draw its votes, certify and report them.

    ``stopping`` are the constants of the rule ``sample.stop``; ``shard`` is i/k; ``budget`` is in
    seconds from ``budget_start``, 0 for none. ``seeded`` is whether the user chose the seed of the
    noise. Without a ``report``, nobody has named radii.
    """

    source: ClassifierSource
    project: Project
    sample: Sampling
    stopping: dict[str, Any]
    certify: Certify
    report: Report | None
    shard: str = "1/1"
    budget: float = 0.0
    seeded: bool = False
    budget_start: float = field(default_factory=time.monotonic, compare=False)

    def answering(self) -> "Request":
        """Return the request for single answers: draws serve the certificate that is reported."""
        sample = dataclasses.replace(self.sample, certificate=self.certify.certificates[0])
        return dataclasses.replace(self, sample=sample)

    def classifier(self, *, max_value: int | None = None) -> "Smoothed":
        """Open the smoothed classifier, for pixels whose maximum ``max_value`` is 1.0.

        Raises:
            RrcmError: It is missing or damaged, or cannot be certified.
        """
        smoothed = self.source.classifier(self.sample, max_value=max_value)
        return dataclasses.replace(smoothed, stopping=self.stopping)

    def opened(self) -> Opened:
        """Open the classifier and its images.

        Raises:
            RrcmError: One of them is missing or damaged, or they do not fit each other.
        """
        opened = self.source.opened(self.sample)
        smoothed = dataclasses.replace(opened.smoothed, stopping=self.stopping)
        return dataclasses.replace(opened, smoothed=smoothed)


def resolve(options: Options, project: Project) -> Request:
    """Turn the options of a command into a request; the project decides what they leave open.

    Raises:
        ConfigError: No such classifier, options that contradict each other, or settings under which
            nothing could be certified.
        BackendError: The classifier has not been trained and exported here; the message says how to
            get it.
        DataError: There is no such folder of images.
    """
    kind = _kind(options)
    source = project.classifier(options) if kind == "model" else _foreign(kind, options)
    kept = project.settings()
    settings = _overridden(options, kept or Settings())
    if kept:
        project.require(settings)
    sample = settings.sample
    return Request(
        source=source,
        project=project,
        sample=sample,
        stopping=settings.stopping[sample.stop],
        certify=settings.certify,
        report=settings.report,
        shard=options.shard,
        budget=0.0 if options.budget is None else seconds(options.budget),
        seeded=options.seed is not None,
    )


def _overridden(options: Options, settings: Settings) -> Settings:
    """Return the settings with those that options give."""
    given = options.given()
    if options.precision == AUTO:
        del given["precision"]
    sample = dataclasses.replace(
        settings.sample, **{key: given[key] for key in SAMPLE if key in given}
    )
    certify, report = settings.certify, settings.report
    require(sample.split in SPLITS, f"--split: must be test or choice, got {sample.split!r}")
    for key, kind in COMPONENTS.items():
        if key in given:
            registry.require(kind, given[key])
    require(
        sample.precision in PRECISIONS,
        f"--precision: one of {', '.join((*PRECISIONS, AUTO))}, got {sample.precision!r}",
    )
    if options.certificate is not None:
        certify = dataclasses.replace(certify, certificates=[options.certificate])
    if options.radii is not None:
        confidence = report.confidence if report else defaults.CONFIDENCE
        report = Report(radii=parse_radii(options.radii), confidence=confidence)
        rule = registry.load("stopping", sample.stop)
        if options.stop is None and not (rule.Rule.fixed or "radii" in rule.DEFAULTS):
            sample = dataclasses.replace(sample, stop=defaults.DRAWS.stop)
    if options.tolerance is not None and options.stop is None:
        sample = dataclasses.replace(sample, stop="anytime")
    if options.alpha is not None:
        certify = dataclasses.replace(certify, alpha=options.alpha)
        sample = dataclasses.replace(sample, alpha=options.alpha)
    stopping = settings.stopping | {sample.stop: _constants(options, settings, sample.stop, report)}
    return Settings(sample=sample, stopping=stopping, certify=certify, report=report)


def _constants(
    options: Options, settings: Settings, rule: str, report: Report | None
) -> dict[str, Any]:
    """Return the constants of the rule: those that it has here, or its own, and those of options.

    Raises:
        ConfigError: There is a tolerance, which is not positive, or ``rule`` is not `anytime`.
    """
    constants = settings.stopping.get(rule) or registry.load("stopping", rule).DEFAULTS
    if report is not None and "radii" in constants:
        if options.radii is not None or constants["radii"] is None:
            constants = constants | {"radii": report.radii}
    if (tolerance := options.tolerance) is not None:
        asked = f"--tolerance: is of the rule anytime, and was given --stop {rule}"
        require(rule == "anytime", asked)
        finite = 0 < tolerance < math.inf
        require(finite, f"--tolerance: must be positive and finite, got {tolerance:g}")
        constants = constants | {"tolerance": tolerance}
    return constants


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


def _foreign(kind: str, options: Options) -> Foreign:
    images, channels = options.images, options.channels
    noise_level(options.sigma, name="--sigma")
    require(channels in (None, 1, 3), f"--channels: 1 (grey) or 3 (RGB), got {channels}")
    if images is not None and not images.is_dir():
        if images.is_file():
            taken = f"; `rrcm predict --image {images}` takes it"
            what = formats.told(images, "a file, not a folder")
            picture = what == formats.WORDS["picture"]
            raise DataError(f"--images {images}: {what}{taken if picture else ''}")
        raise DataError(f"--images {formats.missing(images, 'no such folder')}")
    return Foreign(
        kind=kind,
        options=options,
        size=None if options.size is None else _size(options.size),
        mean=None if options.mean is None else _numbers("mean", options.mean),
        std=None if options.std is None else _numbers("std", options.std),
    )


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
