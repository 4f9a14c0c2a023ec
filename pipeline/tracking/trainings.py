"""Reads what trainings have written: the finished ones, and the saved state of those that run."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from safetensors import SafetensorError, safe_open

from pipeline.runtime import graph
from pipeline.runtime.throughput import SPEED
from pipeline.runtime.training import STATE
from rrcm.config import sections
from rrcm.core.errors import CheckpointError, DataError, one_line
from rrcm.core.files import read_config, read_json, require_file, sha256
from rrcm.core.schema import NAME
from rrcm.models.trained.base import checkpoint

FOLDERS = {"pretrain": "pretrained", "train": "models", "denoise": "denoisers"}  # of each stage
DIGITS = 16  # of a digest; as many as the names of the folders of saved states have

Row = tuple[int, dict[str, float]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Identity:
    """Which training it is: its stage, and the first digits of the digest of all its inputs."""

    stage: str
    digest: str

    @property
    def name(self) -> str:
        """The name in params.yaml."""
        return self.stage.partition("@")[2]


@dataclass(frozen=True, kw_only=True, slots=True)
class Training:
    """What there is of a training: parameters by section of params.yaml, and a row for each step.

    Rows are in the order of their steps, and have the six digits of ``log.csv``.
    """

    identity: Identity
    parameters: dict[str, Any]
    rows: list[Row]


def finished() -> Iterator[Identity]:
    """The trainings whose outputs are here.

    Without the provenance of a training, as after `rrcm pull`, its log identifies it.

    Raises:
        DataError: A file is damaged.
    """
    for kind, folder in FOLDERS.items():
        for log in sorted(Path(folder).glob("*/log.csv")):
            if NAME.fullmatch(log.parent.name):
                stage = f"{kind}@{log.parent.name}"
                inputs = provenance(stage).get("inputs") or sha256(log)
                yield Identity(stage=stage, digest=str(inputs)[:DIGITS])


def provenance(stage: str) -> dict[str, Any]:
    """The provenance of a stage; empty if it is not here.

    Raises:
        DataError: The file is damaged.
    """
    path = Path("provenance", f"{stage}.json")
    found = read_json(path) if path.exists() else {}
    if not isinstance(found, dict):
        raise DataError(f"{path}: damaged (no mapping); `dvc checkout {path}`")
    return found


def log_of(identity: Identity) -> Path:
    """The ``log.csv`` of a finished training."""
    kind, _, name = identity.stage.partition("@")
    return Path(FOLDERS[kind], name, "log.csv")


def read(identity: Identity) -> Training:
    """A finished training.

    Raises:
        RrcmError: A file is missing or damaged.
    """
    log, speed = log_of(identity), Path("provenance", f"{identity.stage}.csv")
    folder, encoder = log.parent, log.parent / "encoder.safetensors"
    if encoder.exists():
        made_with = _recorded(encoder)
    else:
        made_with = read_config(folder).get("params", {})
    rows = _joined(_table(log), _table(speed) if speed.exists() else [])
    return Training(identity=identity, parameters=_by_section(made_with, identity), rows=rows)


def running(stage: str) -> Training | None:
    """A training that runs now, as of its last save; None before the first one.

    Its inputs, as they are now, name the folder of its state: there is nothing to be found if they
    were edited since it began, and then the stage refuses its result, too.

    Raises:
        StageError: An input of the stage is missing.
        RrcmError: The state cannot be read.
    """
    identity = Identity(stage=stage, digest=graph.digest(stage)[:DIGITS])
    return saved(Training(identity=identity, parameters=_planned(identity), rows=[]))


def saved(training: Training) -> Training | None:
    """The same training as of its last save; None before the first one, and after the end.

    Raises:
        CheckpointError: The state is damaged.
    """
    scratch = graph.SCRATCH / training.identity.stage / training.identity.digest
    try:  # the state first: the measured speed is saved before it, and may be ahead
        state = json.loads(_metadata(scratch / STATE)["state"])
        speed = json.loads((scratch / SPEED).read_text())
    except (FileNotFoundError, KeyError):
        return None
    return Training(
        identity=training.identity,
        parameters=training.parameters,
        rows=_joined(state["log"], speed),
    )


def _planned(identity: Identity) -> dict[str, Any]:
    """The parameters that a training which runs now is going to record."""
    kind, _, name = identity.stage.partition("@")
    section = {"pretrain": "pretrain", "train": "runs", "denoise": "denoisers"}[kind]
    (own,) = sections.as_written(f"{section}.{name}").values()
    names = [f"{section}.{name}", f"models.{own['model']}"]
    made_with: dict[str, Any] = {}
    if kind == "train":
        names.append(f"recipes.{own['recipe']}")
        for file in ("model.safetensors", "encoder.safetensors"):
            if (path := Path(own["start"], file)).exists():
                made_with = _recorded(path)
                break
    return _by_section(made_with | sections.as_written(*names), identity)


def _by_section(made_with: Mapping[str, Any], identity: Identity) -> dict[str, Any]:
    """``{"runs": {...}, "recipes": {...}}`` of sections by dotted name, so that runs compare.

    A second section of a kind, which belongs to the network that the training started from, is
    below ``start``.
    """
    found: dict[str, Any] = {}
    for section in sorted(made_with, key=lambda key: key.partition(".")[2] != identity.name):
        kind = section.partition(".")[0]
        place = found.setdefault("start", {}) if kind in found else found
        place[kind] = made_with[section]
    return found


def _recorded(path: Path) -> dict[str, Any]:
    """The ``params`` in the metadata of a checkpoint; empty if it has none."""
    try:
        found = json.loads(_metadata(path).get("params", "{}"))
    except ValueError as error:
        raise CheckpointError(f"{path}: params in the metadata: damaged ({error})") from None
    return found if isinstance(found, dict) else {}


def _metadata(path: Path) -> dict[str, str]:
    """The text in a checkpoint, read without its tensors, and so without a check of its digest."""
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {}).get(checkpoint.ABOUT, "{}"))
        return dict(about.get("text", {}))
    except FileNotFoundError:
        raise
    except (SafetensorError, OSError, ValueError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path}: damaged ({one_line(error)})") from None


def _table(path: Path) -> list[dict[str, float]]:
    """The rows of a CSV file of numbers with a column ``step``, without its empty cells."""
    require_file(path)
    try:
        table = pd.read_csv(path)
        steps = table["step"].astype(int)
        columns = table.drop(columns="step").astype(float)
    except KeyError:
        raise DataError(f"{path}: has no column step; `dvc checkout {path}`") from None
    except (ValueError, OSError) as error:  # pandas's own errors are ValueErrors
        raise DataError(f"{path}: damaged ({one_line(error)}); `dvc checkout {path}`") from None
    rows = columns.to_dict("records")
    return [{"step": step, **row} for step, row in zip(steps, rows, strict=True)]


def _joined(log: Iterable[Mapping[str, float]], speed: Iterable[Mapping[str, float]]) -> list[Row]:
    """The rows of ``log``, each with the speed at its step."""
    measured = {int(row["step"]): row for row in speed}
    rows = []
    for row in log:
        step = int(row["step"])
        values = {**measured.get(step, {}), **row}
        numbers = {key: float(f"{value:.6g}") for key, value in values.items() if key != "step"}
        rows.append((step, {k: v for k, v in numbers.items() if math.isfinite(v)}))
    return rows
