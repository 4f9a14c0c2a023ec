"""Opens the classifier and the images of a request: a run, or any network and folder."""

import dataclasses
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rrcm.certification import openers
from rrcm.certification.sampling import session
from rrcm.certification.sampling.voting import Backend
from rrcm.certification.smoothed import Smoothed
from rrcm.cli.differences import line
from rrcm.cli.requests import Allowed, Foreign, Request
from rrcm.cli.runs import Trained
from rrcm.cli.stale import Present
from rrcm.config.certification import Eval, Sample
from rrcm.core.errors import BackendError, ConfigError, DataError, printable
from rrcm.core.files import read_bytes
from rrcm.core.labels import UNKNOWN
from rrcm.data.image_folder import folder
from rrcm.data.splits import shards
from rrcm.data.splits.pictures import MAX_VALUE, Fit
from rrcm.data.splits.shards import Split

SHOWN = 3  # ways of drawing that were not chosen


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """A smoothed classifier, called ``name``, and the images that it is certified on.

    ``made`` are files of votes that may answer the same request. For a folder of images, ``files``
    maps an index to its file, and ``left_out`` has a line for each file that was not used. ``said``
    are lines to show with the results. ``reference`` is the function to which ``draws.paired``
    draws are compared.
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
    """Open the classifier and the images of a request.

    Raises:
        RrcmError: One of them is missing or damaged, or they do not fit each other.
    """
    source = request.source
    if isinstance(source, Foreign):
        return _foreign(request, source)
    return _trained(request, source)


def classifier(request: Request, *, max_value: int = MAX_VALUE) -> Smoothed:
    """Open the smoothed classifier of a request, for pixels whose maximum ``max_value`` is 1.0.

    Raises:
        RrcmError: It is missing or damaged, or cannot be certified.
    """
    source, draws = request.source, request.sample
    if isinstance(source, Foreign):
        draws = dataclasses.replace(draws, paired=0)
        found = _opened(source, draws)
    else:
        fit = shards.fit(shards.read_index(Path("shards", draws.split)))
        if request.allowed:
            draws = _fastest(request.allowed, source.evaluation, draws, fit)
        _compare(source.evaluation.run, draws.backend)
        backend = session.backend(source.evaluation, draws)
        found = Smoothed(backend, shape=fit.shape, draws=draws, fit=fit)
    return dataclasses.replace(found, stopping=request.stopping, max_value=max_value)


def _fastest(allowed: Allowed, evaluation: Eval, draws: Sample, fit: Fit) -> Sample:
    """Return the draws with what is fastest here; says so."""
    from rrcm.certification import fastest  # it needs the extra that runs ONNX files

    chosen, found = fastest.choose(evaluation, draws, fit.shape, **dataclasses.asdict(allowed))
    best, *others = map(str, found)
    also = f"; {'; '.join(others[:SHOWN])}" if others else ""
    note(f"--precision auto: {best} noisy images/s{also}")
    return chosen


def _opened(source: Foreign, draws: Sample) -> Smoothed:
    options: dict[str, Any] = {
        "sigma": source.sigma,
        "mean": source.mean,
        "std": source.std,
        "size": source.size,
        "classes": None if source.classes is None else class_names(source.classes),
        "resize": source.resize,
        "draws": draws,
        "denoiser": source.denoiser,
    }
    try:
        if source.kind == "onnx":
            only: dict[str, Any] = {"channels": source.channels, "output": source.output}
            return openers.onnx(source.name, **only, **options)
        opened = openers.timm(source.name, weights=source.weights, **options)
    except BackendError as error:
        text = str(error)
        if text.startswith("classes: "):  # here the file is known
            text = f"--classes {source.classes}: {text.removeprefix('classes: ')}"
        raise BackendError(text) from None
    if source.batch_size is None:
        return opened
    return dataclasses.replace(
        opened, draws=dataclasses.replace(opened.draws, batch_size=source.batch_size)
    )


def class_names(path: Path) -> list[str]:
    """Read a file with one class name per line.

    Raises:
        DataError: It is missing, or is not text.
    """
    try:
        lines = read_bytes(path).decode("utf-8-sig").splitlines()
    except DataError as error:
        raise DataError(f"--classes {error}") from None
    except UnicodeDecodeError:
        raise DataError(f"--classes {path}: not a text file with a name in each line") from None
    return [line.strip() for line in lines if line.strip()]


def _trained(request: Request, source: Trained) -> Source:
    run, split = source.evaluation.run, shards.read(Path("shards"), request.sample.split)
    if source.trained_at is not None:
        note(f"{run} was trained at sigma = {source.trained_at:g}")
    found = classifier(request, max_value=split.max_value)
    return Source(
        name=run,
        smoothed=found,
        split=split,
        made=source.votes,
        reference=session.reference(source.evaluation, found.draws),
    )


def _foreign(request: Request, source: Foreign) -> Source:
    if source.images is None:
        raise ConfigError(f"--{source.kind} {source.name}: give its images with --images")
    found = classifier(request)
    backend: Any = found.backend  # it also has the normalisation of pixels
    assert found.fit is not None  # every foreign classifier has one
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
    before = "" if source.denoiser is None else f"{printable(str(source.denoiser))}, then "
    name = Path(source.name).stem if source.kind == "onnx" else source.name
    name = printable(f"{name}-{source.images.resolve().name}").lstrip(".")
    return Source(
        name=name,
        smoothed=dataclasses.replace(found, draws=draws),
        split=pictures.split,
        files=dict(zip(pictures.split.idx.tolist(), pictures.files, strict=True)),
        left_out=pictures.left_out,
        said=[
            f"inside the function: {before}{backend.normalise}, then {printable(source.name)}",
            f"before the noise: {found.fit}",
            *pictures.passed_over,
        ],
    )


def _compare(run: str, backend: str) -> None:
    """Refuse a file that was made for another run than params.yaml has; note other differences."""
    present = Present()
    if changed := present.asked(run, backend=backend).stale:
        note(line(run, changed, f"`dvc repro {present.whole.maker(run)}`"))


def note(text: str, *, kind: str = "note") -> None:
    """Print a line on standard error that is neither an error nor a result."""
    print(f"{kind}: {printable(text)}", file=sys.stderr)
