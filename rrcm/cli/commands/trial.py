"""Tries a classifier on some images before votes are drawn; keeps the answers beside the votes."""

import dataclasses
import json
from pathlib import Path

from rrcm.certification import checks, plausibility
from rrcm.certification.plausibility import TrialAnswers
from rrcm.certification.votes.records import Header
from rrcm.cli.classifiers import Opened, note
from rrcm.core import registry
from rrcm.core.errors import warn
from rrcm.core.files import write_json


def ensure(path: Path, wanted: Header, source: Opened) -> None:
    """Try the classifier, note the findings, and keep them in ``path``; once for the same votes.

    Raises:
        BackendError: It cannot be certified; see rrcm/certification/checks.py.
    """
    if path.exists():
        return
    tried = checks.examine(
        source.smoothed.backend,
        source.split,
        noise=registry.load("distributions", wanted.noise),
        sigma=wanted.sigma,
        seed=wanted.noise_key,
        batch_size=wanted.batch_size,
        ours=not wanted.foreign,
    )
    note(plausibility.fact(tried, sigma=wanted.sigma))
    warn(plausibility.of_votes(wanted, [], tried))
    write_json(path, dataclasses.asdict(tried))


def read(path: Path) -> TrialAnswers | None:
    """Return the answers that `ensure` kept in ``path``; None if votes were drawn without it."""
    return TrialAnswers(**json.loads(path.read_text())) if path.exists() else None
