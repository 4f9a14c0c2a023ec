"""A classifier's answers to some pictures before votes are drawn, kept beside these votes."""

import dataclasses
import json
from pathlib import Path

from pipeline import sources
from pipeline.sources import Source
from rrcm import guards, plausibility, registry
from rrcm.files import write_json
from rrcm.plausibility import Tried
from rrcm.votes import Header, Row

FOREIGN = "foreign/"  # how the backend of a classifier begins that is none of ours


def ensure(path: Path, wanted: Header, source: Source) -> None:
    """Try the classifier, note what is found, and keep it in ``path``; once for the same votes.

    Raises:
        BackendError: It cannot be certified; see rrcm/guards.py.
    """
    if path.exists():
        return
    tried = guards.examine(
        source.smoothed.backend,
        source.split,
        noise=registry.load("noises", wanted.noise),
        sigma=wanted.sigma,
        seed=wanted.seed,
        batch_size=wanted.batch_size,
        ours=not wanted.backend.startswith(FOREIGN),
    )
    sources.note(plausibility.fact(tried, sigma=wanted.sigma))
    for line in warnings(wanted, tried, []):
        sources.note(line, kind="warning")
    write_json(path, dataclasses.asdict(tried))


def read(path: Path) -> Tried | None:
    """What `ensure` kept in ``path``; nothing where votes were drawn otherwise."""
    return Tried(**json.loads(path.read_text())) if path.exists() else None


def warnings(header: Header, tried: Tried | None, rows: list[Row]) -> list[str]:
    """What is implausible, in a line each; under noise, of all votes where there are some."""
    labels, answers = plausibility.smoothed(rows)
    if tried and not rows:
        labels, answers = tried.labels, tried.noisy
    return plausibility.warnings(tried, labels, answers, classes=header.classes, sigma=header.sigma)
