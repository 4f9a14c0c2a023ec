"""What a user asks for on the command line, resolved against params.yaml; imports nothing heavy."""

import dataclasses
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.checked import load
from pipeline.runs import find_run
from rrcm import defaults
from rrcm.config import PARAMS, require
from rrcm.errors import BackendError, ConfigError, DataError
from rrcm.params import Params
from rrcm.registry import suggest
from rrcm.settings import Certify, Eval, Report, Sample, noise_level

SPLITS = ("test", "choice")  # that may be certified
SECONDS = {"s": 1, "m": 60, "h": 3600}
SAMPLE = ("n", "split", "subset", "stop", "batch_size", "seed")  # override keys of `sample`
OURS = {"method", "eval_sigma", "split"}  # options of --model alone
THEIRS = {"images", "labels", "classes", "size", "resize", "mean", "std", "strict"}
ONNX = {*THEIRS, "output", "channels"}
ONLY = {"model": OURS, "onnx": ONNX, "timm": {*THEIRS, "weights"}}


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    """A run of params.yaml, smoothed at the sigma of ``evaluation``; ``votes`` the graph made."""

    evaluation: Eval
    trained_at: float
    votes: tuple[Path, ...]

    @property
    def sigma(self) -> float:
        """The sigma to smooth with."""
        return self.evaluation.sigma


@dataclass(frozen=True, kw_only=True, slots=True)
class Foreign:
    """Somebody's classifier, ``kind`` (of rrcm/foreign/) and ``name`` or file, and its pictures.

    None is what the classifier says itself.
    """

    kind: str
    name: str
    sigma: float
    images: Path | None
    labels: Path | None
    classes: Path | None
    weights: Path | None
    output: str | None
    size: tuple[int, int] | None
    channels: int | None
    resize: str
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None
    strict: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """A classifier, how to draw, certify and report, and how to go about it.

    ``stopping`` are the constants of the rule ``sample.stop``, ``shard`` is i/k, ``budget`` in
    seconds or 0 for none, ``devices`` more than this process has. ``prefixes`` asks for those of an
    ensemble, too. ``seeded`` says whether somebody chose the seed of picture files.
    """

    source: Trained | Foreign
    sample: Sample
    stopping: dict[str, Any]
    certify: Certify
    report: Report
    shard: str = "1/1"
    budget: float = 0.0
    devices: tuple[str, ...] = ()
    prefixes: bool = False
    seeded: bool = False

    def answering(self) -> "Request":
        """The same for single answers: drawn for the certificate that is reported, at its alpha."""
        certificate, alpha = self.certify.certificates[0], self.certify.alpha
        sample = dataclasses.replace(self.sample, certificate=certificate, alpha=alpha)
        return dataclasses.replace(self, sample=sample)


def resolve(options: Mapping[str, Any], *, outside: str = "anytime") -> Request:
    """What a user asks for by the options of `rrcm certify`, by name; None is not given.

    ``outside`` is the stopping rule where there is no params.yaml.

    Raises:
        ConfigError: No such run, options that contradict each other, or settings under which
            nothing could be certified.
        BackendError: The run has not been trained and exported here; says how to get it.
        DataError: There is no such folder of pictures.
    """
    given = {k: value for k, value in options.items() if value is not None and value is not False}
    kinds = [kind for kind in ONLY if kind in given]
    if len(kinds) != 1:
        got = " and ".join(f"--{kind}" for kind in kinds) or "none"
        raise ConfigError(f"give one of --model, --onnx and --timm; got {got}")
    (kind,) = kinds
    if odd := sorted({*given} & set().union(*ONLY.values()) - ONLY[kind]):
        raise ConfigError(f"--{odd[0].replace('_', '-')} does not go with --{kind}")
    for option in ("sigma", "eval_sigma"):
        if option in given:
            noise_level(given[option], name=f"--{option.replace('_', '-')}")
    inside = kind == "model" or PARAMS.exists()
    params = load() if inside else None
    source = _trained(params, given) if kind == "model" else _foreign(kind, given)
    sample = params.sample if params else dataclasses.replace(defaults.DRAWS, stop=outside)
    stopping = params.stopping if params else defaults.STOPPING
    sample = dataclasses.replace(sample, **{key: given[key] for key in SAMPLE if key in given})
    require(sample.split in SPLITS, f"--split: must be test or choice, got {sample.split!r}")
    certify = params.certify if params else defaults.CERTIFY
    report = params.report if params else defaults.REPORT
    if "radii" in given:
        report = dataclasses.replace(report, radii=parse_radii(given["radii"]))
        sample, stopping = _deciding(sample, stopping, report.radii, stop="stop" in given)
    if "alpha" in given:
        certify = dataclasses.replace(certify, alpha=given["alpha"])
        if sample.stop != "none":  # whose votes serve every alpha
            sample = dataclasses.replace(sample, alpha=given["alpha"])
    if params:  # which checks what these owe each other
        changed = {"sample": sample, "certify": certify, "stopping": stopping, "report": report}
        params = dataclasses.replace(params, **changed)
    where = "params.yaml's stopping" if params else "what works without a params.yaml"
    require(
        sample.stop in stopping,
        f"--stop {sample.stop}: not in {where}, only {', '.join(stopping)}."
        f"{suggest(sample.stop, [*stopping])}",
    )
    shard = given.get("shard", "1/1")
    return Request(
        source=source,
        sample=sample,
        stopping=stopping[sample.stop],
        certify=certify,
        report=report,
        shard=shard,
        budget=0.0 if options.get("budget") is None else seconds(options["budget"]),
        devices=device_names(given["devices"], shard=shard) if given.get("devices") else (),
        prefixes=_prefixes(params, source, given),
        seeded="seed" in given,
    )


def _deciding(
    sample: Sample, stopping: dict[str, dict[str, Any]], radii: list[float], *, stop: bool
) -> tuple[Sample, dict[str, dict[str, Any]]]:
    """How to draw so that ``radii`` are decided; ``stop`` says that the user chose the rule."""
    if not stop and sample.stop not in ("none", "futile"):  # which decide every radius
        sample = dataclasses.replace(sample, stop="grid")
    grid = stopping.get("grid", defaults.STOPPING["grid"])
    return sample, stopping | {"grid": grid | {"radii": radii}}


def parse_radii(text: str) -> list[float]:
    """``0,0.25,0.5`` as numbers.

    Raises:
        ConfigError: It is none of that.
    """
    try:
        radii = sorted({float(part) for part in text.split(",")})
    except ValueError:
        radii = [-1.0]
    if not all(0 <= radius < math.inf for radius in radii):
        raise ConfigError(f"--radii: expected radii such as 0,0.25,0.5, got {text!r}")
    return radii


def settings() -> tuple[Certify, Report]:
    """How to certify and report: as params.yaml says, if there is one."""
    if not PARAMS.exists():
        return defaults.CERTIFY, defaults.REPORT
    params = load()
    return params.certify, params.report


def _prefixes(params: Params | None, source: Trained | Foreign, given: Mapping[str, Any]) -> bool:
    """Whether prefixes are asked for, of what has some, and with nothing that would cut them."""
    if not given.get("prefixes"):
        return False
    run = source.evaluation.run if isinstance(source, Trained) else given.get("onnx", "timm")
    known = params.ensembles if params else {}
    require(
        isinstance(source, Trained) and run in known,
        f"--prefixes: {run} is no ensemble of params.yaml ({', '.join(known) or 'it has none'})",
    )
    for option in ("budget", "devices"):
        require(not given.get(option), f"--prefixes does not go with --{option}")
    require(given.get("shard", "1/1") == "1/1", "--prefixes does not go with --shard")
    return True


def _trained(params: Params, given: Mapping[str, Any]) -> Trained:
    method, sigma = given.get("method", "rrcm"), given["sigma"]
    noise = given.get("eval_sigma", sigma)
    run = find_run(params, model=given["model"], method=method, sigma=sigma, eval_sigma=noise)
    architecture = params.classifiers()[run].architecture
    evaluation = Eval(run=run, architecture=architecture, sigma=noise)
    if not Path(f"onnx/{run}.onnx").exists():
        raise BackendError(
            f"onnx/{run}.onnx is not here; make it with `dvc repro {params.maker(run)}`, or fetch "
            f"it from a remote with `rrcm pull {run}`"
        )
    return Trained(
        evaluation=evaluation,
        trained_at=sigma,
        votes=tuple(Path(f"votes/{k}.jsonl") for k, e in params.evals.items() if e == evaluation),
    )


def _foreign(kind: str, given: Mapping[str, Any]) -> Foreign:
    images, channels = given.get("images"), given.get("channels")
    require(channels in (None, 1, 3), f"--channels: 1 (grey) or 3 (RGB), got {channels}")
    if images is not None and not images.is_dir():
        raise DataError(f"--images {images}: no such folder")
    return Foreign(
        kind=kind,
        name=given[kind],
        sigma=given["sigma"],
        images=images,
        labels=given.get("labels"),
        classes=given.get("classes"),
        weights=given.get("weights"),
        output=given.get("output"),
        size=_size(given["size"]) if "size" in given else None,
        channels=channels,
        resize=given.get("resize", "crop"),
        mean=_numbers("mean", given["mean"]) if "mean" in given else None,
        std=_numbers("std", given["std"]) if "std" in given else None,
        strict=given.get("strict", False),
    )


def _size(text: str) -> tuple[int, int]:
    """``224``, or height x width as ``224x160``."""
    found = re.fullmatch(r"([1-9]\d{0,4})(?:x([1-9]\d{0,4}))?", text)
    if not found:
        raise ConfigError(f"--size: expected pixels, such as 224 or 224x160, got {text!r}")
    return int(found[1]), int(found[2] or found[1])


def _numbers(name: str, text: str) -> tuple[float, ...]:
    """``0.485,0.456,0.406``."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(
            f"--{name}: expected a number for each channel, such as 0.485,0.456,0.406, got {text!r}"
        ) from None


def device_names(text: str, *, shard: str) -> tuple[str, ...]:
    """``0,1`` or ``cpu,cpu`` one by one.

    Raises:
        ConfigError: It is neither, or both, or the work is a shard already.
    """
    names = tuple(text.split(","))
    if not all(name == "cpu" or name.isdecimal() for name in names):
        raise ConfigError(f"--devices: expected GPU numbers or cpu, such as 0,1, got {text!r}")
    if 0 < names.count("cpu") < len(names):
        raise ConfigError(f"--devices: GPUs and cpu round differently, give one kind, got {text!r}")
    if shard != "1/1":
        raise ConfigError(f"--devices: makes shards of its own, and was given --shard {shard}")
    return names


def seconds(text: str) -> float:
    """``90s``, ``10m`` or ``1.5h`` in seconds.

    Raises:
        ConfigError: It is none of these.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text)
    if not found or not float(found[1]):
        raise ConfigError(f"--budget: expected a time such as 90s, 10m or 1.5h, got {text!r}")
    return float(found[1]) * SECONDS[found[2]]
