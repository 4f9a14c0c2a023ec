"""What the command line does outside the graph: certify, merge, predict and report on demand.

Votes are kept under .rrcm/votes by all that defines them, so that the same request goes on where it
stopped and another one starts afresh; votes that the graph has made already are used as they are.
"""

import dataclasses
import hashlib
import json
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from PIL import Image, UnidentifiedImageError

from pipeline import devices, sampling
from pipeline.requests import Request
from rrcm import certify as certification
from rrcm import params as parameters
from rrcm import report as reporting
from rrcm import sample, shards, votes
from rrcm.certificates import transfer
from rrcm.errors import DataError
from rrcm.evidence import ABSTAIN
from rrcm.params import Params
from rrcm.settings import Eval, Sample
from rrcm.shards import Split
from rrcm.voters import Backend
from rrcm.votes import Header, Row

VOTES, RESULTS = Path(".rrcm/votes"), Path("results")


def certify(request: Request) -> str:
    """Certify the test images with a run; returns the table to show and where it was written."""
    header, rows, source = _votes(request)
    if request.shard == "1/1":
        return _table(request.params, header, rows, source)
    path = _shard(request, request.shard)
    votes.write(path, header, rows)
    return (
        f"{len(rows)} images, shard {header.shard}\nvotes: {path}\n"
        "`rrcm merge` puts the shards together"
    )


def share(request: Request) -> str:
    """Certify on several devices, one process for each, to the votes that one would have made."""
    devices.run(request.devices)
    count = len(request.devices)
    if count == 1:
        return certify(request)  # of the votes that the process has made
    parts = [_shard(request, f"{i}/{count}") for i in range(1, count + 1)]
    return merge(parts, request.params)


def merge(paths: list[Path], params: Params | None = None) -> str:
    """Put shards of votes together, certify them, and return the table to show."""
    params = params or parameters.load()
    header, rows = votes.merge(paths)
    if header.run not in params.runs:
        raise DataError(f"{paths[0]}: votes of run {header.run}, which params.yaml does not have")
    path = VOTES / f"{_key(header)}.jsonl"
    votes.write(path, header, rows)
    return _table(params, header, rows, path)


def _table(params: Params, header: Header, rows: list[Row], source: Path) -> str:
    certificates, alpha = params.certify.certificates, params.certify.alpha
    table = certification.certify(header, rows, certificates=certificates, alpha=alpha)
    name = f"{_name(header.run, header.sigma, header, header.budget)}-a{alpha:g}"
    path = RESULTS / f"{name}.csv"
    certification.write(table, path)
    architecture = params.runs[header.run].architecture
    evaluation = Eval(run=header.run, architecture=architecture, sigma=header.sigma)
    only = dataclasses.replace(params, evals={name: evaluation})
    drawn = int(table["n"].sum()) + header.n0 * sum(bool(row.n0) for row in rows)
    most = header.n0 + header.n
    lines = [
        f"{_accuracy(only, {name: table})}\n",
        f"{len(table)} images, n0 = {header.n0}, n = {header.n}, alpha = {alpha:g}; stopping rule "
        f"{header.stop}: {drawn:,} draws, {100 * drawn / (len(table) * most):.3g} % of all",
        f"the function: {header.backend} {header.precision} on {header.provider}",
        f"certificates: {path}\nvotes: {source}",
    ]
    if "transfer" in certificates:
        ceiling = transfer.ceiling(
            header.rule(), pairs=header.paired, sigma=header.sigma, alpha=alpha
        )
        lines.insert(2, ceiling)
    return "\n".join(lines)


def _name(run: str, sigma: float, draws: Sample | Header, budget: float) -> str:
    """The name of a request's files, of all that a user may ask for differently."""
    parts = [run, f"e{sigma:g}", f"n{draws.n}", draws.stop]
    parts += [draws.subset.replace(":", "")] if draws.subset != "all" else []
    parts += ["label-aware"] if draws.label_aware else []
    parts += [f"b{budget:g}s"] if budget else []
    return "-".join(parts)


def _shard(request: Request, shard: str) -> Path:
    evaluation, draws = request.evaluation, request.params.sample
    name = _name(evaluation.run, evaluation.sigma, draws, request.budget)
    return RESULTS / f"{name}-shard{shard.replace('/', 'of')}.jsonl"


def _votes(request: Request) -> tuple[Header, list[Row], Path]:
    evaluation, params = request.evaluation, request.params
    split = shards.read(Path("shards"), "test")
    backend = sampling.backend(evaluation, params.sample)
    wanted = _header(request, backend, split)
    path = VOTES / f"{_key(wanted)}.jsonl"
    graph = [Path(f"votes/{name}.jsonl") for name, e in params.evals.items() if e == evaluation]
    for made in (*graph, path):
        if made.exists():
            header, rows = votes.read(made)
            if header == wanted:
                return header, rows, made
    path.parent.mkdir(parents=True, exist_ok=True)
    sampling.run(
        backend,
        evaluation,
        params.sample,
        wanted,
        split,
        journal=path.with_suffix(".journal"),
        path=path,
        title=f"certify {evaluation.run}" + (f" {wanted.shard}" if wanted.shard != "1/1" else ""),
    )
    return *votes.read(path), path


def _header(request: Request, backend: Backend, split: Split) -> Header:
    evaluation, params = request.evaluation, request.params
    return sample.header(
        backend,
        split,
        evaluation.run,
        evaluation.sigma,
        params.sample,
        params.stopping[params.sample.stop],
        shard=request.shard,
        budget=request.budget,
    )


def _key(header: Header) -> str:
    return hashlib.sha256(json.dumps(dataclasses.asdict(header)).encode()).hexdigest()[:16]


def predict(request: Request, image: str) -> str:
    """Classify one image, by index in the raw data or from a picture file; or abstain."""
    test = shards.read(Path("shards"), "test")
    split, truth = _picture(image, test)
    backend = sampling.backend(request.evaluation, request.params.sample)
    alone = dataclasses.replace(request.params.sample, subset="all", label_aware=False)
    request = dataclasses.replace(request, params=dataclasses.replace(request.params, sample=alone))
    header = _header(request, backend, split)
    certificate, alpha = request.params.certify.certificates[0], request.params.certify.alpha
    with TemporaryDirectory() as folder:
        path = Path(folder, "votes.jsonl")
        journal = path.with_suffix(".journal")
        reference = sampling.reference(request.evaluation, request.params.sample)
        workers = sampling.workers()
        states = sample.sample(
            backend, split, header, journal, path, workers=workers, reference=reference
        )
        *_, _ = states
        _, (row,) = votes.read(path)
    got = certification.certified(
        row,
        header,
        header.rule(),
        certificate=certificate,
        alpha=certification.alpha_left(header, alpha),
        coin=certification.coin(header.seed, row.idx),
    )
    drawn = f"{got.n_A:,} of {got.n:,} noisy draws"
    radius = certification.floor(got.radius, digits=4)
    if got.label == ABSTAIN:
        return f"{image}: abstain: no class is certain at alpha = {alpha:g} ({drawn}){truth}"
    return (
        f"{image}: class {header.classes[got.label]}, certified within an l2 radius of "
        f"{radius:.4f} with confidence {1 - alpha:g} ({drawn}){truth}"
    )


def _picture(image: str, split: Split) -> tuple[Split, str]:
    """One image as a split, whose index keys the noise, and the true label if it is known."""
    channels, height, width = split.images.shape[1:]
    if image.isdecimal():
        found = np.flatnonzero(split.idx == int(image))
        if len(found) == 0:
            some = ", ".join(map(str, split.idx[:5]))
            raise DataError(f"--image {image}: not a test image; test images are {some}, …")
        one = dataclasses.replace(
            split, idx=split.idx[found], images=split.images[found], labels=split.labels[found]
        )
        return one, f"; the label is {split.classes[one.labels[0]]}"
    try:
        picture = Image.open(image).convert("L" if channels == 1 else "RGB")
    except FileNotFoundError:
        raise DataError(f"--image {image}: neither a file nor an index") from None
    except (UnidentifiedImageError, OSError) as error:
        raise DataError(f"--image {image}: not a picture ({error})") from None
    if picture.size != (width, height):
        raise DataError(
            f"--image {image}: {picture.width} x {picture.height} pixels, but the model takes "
            f"{width} x {height}"
        )
    array = np.asarray(picture, dtype=np.uint8).reshape(1, height, width, channels)
    zero = np.zeros(1, dtype=np.int64)
    images = np.ascontiguousarray(array.transpose(0, 3, 1, 2))
    return Split(idx=zero, images=images, labels=zero, classes=split.classes, white=255), ""


def report() -> str:
    """The certified-accuracy table of everything that params.yaml evaluates, and the page."""
    params = parameters.load()
    page = Path("report/index.html")
    paths = {name: Path(f"certificates/{name}.csv") for name in params.evals}
    if missing := [path for path in (*paths.values(), page) if not path.exists()]:
        raise DataError(f"{missing[0]} is not here; `dvc repro` makes it, or `dvc pull` fetches it")
    tables = {name: certification.read(path) for name, path in paths.items()}
    return f"{_accuracy(params, tables)}\n\nthe report: {page}"


def _accuracy(params: Params, tables: dict) -> str:
    found = reporting.entries(params, tables)
    radii, confidence = params.report.radii, params.report.confidence
    table = reporting.accuracy_table(found, radii=radii, confidence=confidence)
    title = f"certified accuracy, % [{100 * confidence:g} % Wilson interval]"
    return f"{title}\n\n{table.to_string(index=False)}"
