"""Where a classifier and its pictures come from: our runs, and anybody's network and folder."""

import dataclasses
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline import sampling
from pipeline.differences import line
from pipeline.requests import Foreign, Request
from pipeline.stale import Present
from rrcm import shards, smoothed
from rrcm.errors import ConfigError, DataError, printable
from rrcm.files import read_bytes
from rrcm.folders import folder
from rrcm.pictures import WHITE
from rrcm.settings import Sample
from rrcm.shards import Split
from rrcm.smoothed import Smoothed
from rrcm.voters import Backend
from rrcm.votes import UNKNOWN


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """A smoothed classifier, called ``name``, and the pictures it is certified on.

    ``made`` are votes that may be of the same request; ``files``, image -> file, and ``left_out``
    are of a folder of pictures. ``said`` is to be told beside the results. ``reference`` is what
    ``draws.paired`` draws are compared with.
    """

    name: str
    smoothed: Smoothed
    split: Split
    made: tuple[Path, ...] = ()
    reference: Backend | None = None
    files: dict[int, str] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)


def open_source(request: Request) -> Source:
    """The classifier and the pictures of a request.

    Raises:
        RrcmError: One of them is missing, damaged, or they do not belong together.
    """
    return _foreign(request) if isinstance(request.source, Foreign) else _trained(request)


def classifier(request: Request, *, white: int = WHITE) -> Smoothed:
    """The smoothed classifier of a request, for pixels of which ``white`` is 1.0.

    Raises:
        RrcmError: It is missing or damaged, or cannot be certified.
    """
    source, draws = request.source, request.sample
    if isinstance(source, Foreign):
        draws = dataclasses.replace(draws, precision="fp32", paired=0)
        found = _opened(source, draws)
    else:
        _compare(source.evaluation.run, draws.backend)
        backend = sampling.backend(source.evaluation, draws, prefixes=request.prefixes)
        fit = shards.fit(shards.read_index(Path("shards", draws.split)))
        found = Smoothed(backend, sigma=source.sigma, shape=fit.shape, draws=draws, fit=fit)
    return dataclasses.replace(found, stopping=request.stopping, white=white)


def _opened(source: Foreign, draws: Sample) -> Smoothed:
    told: dict[str, Any] = {
        "sigma": source.sigma,
        "mean": source.mean,
        "std": source.std,
        "size": source.size,
        "classes": None if source.classes is None else class_names(source.classes),
        "resize": source.resize,
        "draws": draws,
    }
    if source.kind == "onnx":
        only = {"channels": source.channels, "output": source.output}
        return smoothed.onnx(source.name, **only, **told)
    return smoothed.timm(source.name, weights=source.weights, **told)


def class_names(path: Path) -> list[str]:
    """The names of a file, one in a line.

    Raises:
        DataError: It is missing or no text.
    """
    try:
        lines = read_bytes(path).decode().splitlines()
    except DataError as error:
        raise DataError(f"--classes {error}") from None
    except UnicodeDecodeError:
        raise DataError(f"--classes {path}: not a text file with a name in each line") from None
    return [line.strip() for line in lines if line.strip()]


def _trained(request: Request) -> Source:
    run, split = request.source.evaluation.run, shards.read(Path("shards"), request.sample.split)
    if request.source.sigma != request.source.trained_at:
        note(f"{run} was trained at sigma = {request.source.trained_at:g}")
    return Source(
        name=run,
        smoothed=classifier(request, white=split.white),
        split=split,
        made=request.source.votes,
        reference=sampling.reference(request.source.evaluation, request.sample),
    )


def _foreign(request: Request) -> Source:
    source = request.source
    if source.images is None:
        raise ConfigError(f"--{source.kind} {source.name}: give its pictures with --images")
    found = classifier(request)
    backend = found.backend
    pictures = folder(
        source.images,
        found.fit,
        classes=backend.classes,
        named=source.classes is not None,
        labels=source.labels,
        strict=source.strict,
    )
    backend.classes = list(pictures.split.classes)
    aware = found.draws.label_aware and not (pictures.split.labels == UNKNOWN).any()
    draws = dataclasses.replace(found.draws, label_aware=aware)
    name = Path(source.name).stem if source.kind == "onnx" else source.name
    name = printable(f"{name}-{source.images.resolve().name}").lstrip(".")
    return Source(
        name=name,
        smoothed=dataclasses.replace(found, draws=draws),
        split=pictures.split,
        files=dict(zip(pictures.split.idx.tolist(), pictures.files, strict=True)),
        left_out=pictures.left_out,
        said=[
            f"inside the function: {backend.normalise}, then {printable(source.name)}",
            f"before the noise: {found.fit}",
        ],
    )


def _compare(run: str, backend: str) -> None:
    """Refuse a file that was made for another run than params.yaml has; say what else differs."""
    present = Present()
    if changed := present.asked(run, backend=backend).stale:
        note(line(run, changed, f"`dvc repro {present.whole.maker(run)}`"))


def note(text: str, *, kind: str = "note") -> None:
    """Say something that is no error, and no result."""
    print(f"{kind}: {printable(text)}", file=sys.stderr)
