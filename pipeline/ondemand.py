"""What the command line does outside the graph: certify, predict and report on demand.

Votes are kept under .rrcm/votes by all that defines them, so that the same request goes on where it
stopped and another one starts afresh; votes that the graph has made already are used as they are.
"""

import dataclasses
import hashlib
import json
from pathlib import Path

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError

from pipeline import sampling
from rrcm import certify as certification
from rrcm import config, registry, sample, shards, votes
from rrcm import report as reporting
from rrcm.config import Eval, Params
from rrcm.errors import DataError
from rrcm.shards import Split
from rrcm.votes import Header, Row

VOTES, RESULTS = Path(".rrcm/votes"), Path("results")


def certify(evaluation: Eval, params: Params) -> str:
    """Certify the test images with a run; returns the table to show and where it was written."""
    header, rows, source = _votes(evaluation, params)
    table = certification.certify(
        header, rows, certificate=params.certify.certificate, alpha=params.certify.alpha
    )
    name = f"{evaluation.run}-e{evaluation.sigma:g}-n{header.n}-a{params.certify.alpha:g}"
    if header.subset != "all":
        name += f"-{header.subset.replace(':', '')}"
    path = RESULTS / f"{name}.csv"
    certification.write(table, path)
    only = dataclasses.replace(params, evals={name: evaluation})
    return (
        f"{_accuracy(only, {name: table})}\n\n{len(table)} images, n0 = {header.n0}, "
        f"n = {header.n}, alpha = {params.certify.alpha:g}\n"
        f"certificates: {path}\nvotes: {source}"
    )


def _votes(evaluation: Eval, params: Params) -> tuple[Header, list[Row], Path]:
    split = shards.read(Path("shards"), "test")
    definition = sampling.definition(evaluation, params.sample)
    for name, known in params.evals.items():
        made = Path(f"votes/{name}.jsonl")
        if known == evaluation and made.exists():
            header, rows = votes.read(made)
            if header == definition:
                return header, rows, made
    key = hashlib.sha256(json.dumps(dataclasses.asdict(definition)).encode()).hexdigest()[:16]
    path = VOTES / f"{key}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    sampling.run(evaluation, params.sample, split, path, title=f"certify {evaluation.run}")
    return *votes.read(path), path


def predict(evaluation: Eval, params: Params, image: str) -> str:
    """Classify one image, by index in the raw data or from a picture file; or abstain."""
    split = shards.read(Path("shards"), "test")
    pixels, idx, truth = _pixels(image, split)
    backend = sampling.backend(evaluation, params.sample)
    header = sample.header(
        backend, params.sample.backend, evaluation.run, evaluation.sigma, params.sample
    )
    component = registry.load("certificates", params.certify.certificate)
    alpha = params.certify.alpha
    got = component.certify(
        *sample.vote(backend, pixels, idx, header), sigma=evaluation.sigma, alpha=alpha
    )
    share = f"{got.n_A:,} of {got.n:,} noisy draws"
    radius = certification.floor(got.radius, digits=4)
    if got.label == component.ABSTAIN:
        return f"{image}: abstain: no class is certain at alpha = {alpha:g} ({share}){truth}"
    return (
        f"{image}: class {header.classes[got.label]}, certified within an l2 radius of "
        f"{radius:.4f} with confidence {1 - alpha:g} ({share}){truth}"
    )


def _pixels(image: str, split: Split) -> tuple[torch.Tensor, int, str]:
    """Pixels [C, H, W] in [0, 1], the index that keys the noise, and the true label if known."""
    channels, height, width = split.images.shape[1:]
    if image.isdecimal():
        found = np.flatnonzero(split.idx == int(image))
        if len(found) == 0:
            some = ", ".join(map(str, split.idx[:5]))
            raise DataError(f"--image {image}: not a test image; test images are {some}, …")
        row = int(found[0])
        truth = f"; the label is {split.classes[split.labels[row]]}"
        return torch.from_numpy(split.pixels(row)), int(image), truth
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
    array = np.asarray(picture, dtype=np.float32).reshape(height, width, channels) / 255
    return torch.from_numpy(array.transpose(2, 0, 1).copy()), 0, ""


def report() -> str:
    """The certified-accuracy table of everything that params.yaml evaluates, and the page."""
    params = config.load()
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
