"""``rrcm log``: sends curves and results of trainings to TensorBoard, MLflow or Weights & Biases.

A training always writes its curves to ``log.csv``, so that it needs no server; this exports them.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pandas as pd

from pipeline.project.tracking import sinks
from pipeline.workflow.dvc_lock import Lock, md5, tree
from rrcm.core.errors import ConfigError, DataError, StageError, one_line
from rrcm.core.files import read_config, read_json, require_file, sha256
from rrcm.core.registry import suggest
from rrcm.core.schema import listed
from rrcm.models.trained.base import checkpoint

FOLDERS = {"pretrain": "pretrained", "train": "models", "denoise": "denoisers"}  # of each stage
METRICS = Path("metrics")
DIGITS = 16  # of a digest
NAMES = 200  # characters of names in an error


@dataclass(frozen=True, kw_only=True, slots=True)
class Training:
    """A finished training: its stage, where its files lie, and the digest of all its inputs."""

    stage: str
    folder: Path
    digest: str


def log(sink: str, *, to: str | None, only: Sequence[str], say: Callable[[str], None]) -> str:
    """Send the finished trainings, each as one run with its results.

    Args:
        sink: A name of `sinks.SINKS`.
        to: Folder or address; None: that of the sink.
        only: Patterns of trainings, by name or stage; none: all.
        say: Called with a line for each training.

    Returns:
        Where the trainings are now, and how to look at them.

    Raises:
        ConfigError: There is no such sink, or ``to`` is not for it.
        ModuleNotFoundError: Its package is not installed.
        StageError: There is no training, or none that a pattern matches.
        DataError: A file is damaged, or the sink refuses what it is sent.
    """
    if sink not in sinks.SINKS:
        raise ConfigError(
            f"rrcm log {sink}: there is no such sink, only {', '.join(sinks.SINKS)}."
            f"{suggest(sink, [*sinks.SINKS])}"
        )
    chosen, opened, lock = trainings(only), sinks.SINKS[sink](to), Lock()
    for training in chosen:
        run = sinks.Run(
            stage=training.stage,
            digest=training.digest,
            parameters=parameters(training),
            rows=rows(training),
            results=results(training, lock),
        )
        opened.send(run)
        say(f"{run.stage}: {len(run.rows)} rows, {len(run.results)} results")
    return f"{opened.place}: {opened.shown}"


def trainings(only: Sequence[str] = ()) -> list[Training]:
    """The trainings whose outputs are here, or those that the patterns match.

    Without the provenance of a training, as after `rrcm pull`, its log identifies it.

    Raises:
        StageError: There is none, or a pattern matches none.
    """
    here = []
    for kind, parent in FOLDERS.items():
        for file in sorted(Path(parent).glob("*/log.csv")):
            stage = f"{kind}@{file.parent.name}"
            digest = str(provenance(stage).get("inputs") or sha256(file))[:DIGITS]
            here.append(Training(stage=stage, folder=file.parent, digest=digest))
    if not here:
        folders = ", ".join(f"{folder}/" for folder in FOLDERS.values())
        raise StageError(
            f"no training has ended here: {folders} have no log.csv; `dvc repro` makes them"
        )
    chosen: list[Training] = []
    for pattern in only or ["*"]:
        alike = [t for t in here if any(fnmatchcase(n, pattern) for n in (t.stage, t.folder.name))]
        if not alike:
            names = [training.folder.name for training in here]
            raise StageError(
                f"--only {pattern}: no training here has such a name, only "
                f"{listed(names, most=NAMES)}.{suggest(pattern, names)}"
            )
        chosen += [training for training in alike if training not in chosen]
    return chosen


def provenance(stage: str) -> dict[str, Any]:
    """The provenance of a stage; empty if it is not here."""
    path = Path("provenance", f"{stage}.json")
    content: dict[str, Any] = read_json(path) if path.exists() else {}
    return content


def rows(training: Training) -> list[tuple[int, dict[str, float]]]:
    """The steps of ``log.csv`` with their values, and the speed that was measured at them.

    Raises:
        DataError: A file is damaged.
    """
    speed = Path("provenance", f"{training.stage}.csv")
    measured = _table(speed) if speed.exists() else {}
    joined = []
    for step, row in _table(training.folder / "log.csv").items():
        values = measured.get(step, {}) | row
        joined.append((step, {key: v for key, v in values.items() if math.isfinite(v)}))
    return joined


def _table(path: Path) -> dict[int, dict[str, float]]:
    """The rows of a CSV file of numbers by its column ``step``."""
    require_file(path)
    try:
        table = pd.read_csv(path)
        steps = table["step"].astype(int)
        values = table.drop(columns="step").astype(float).to_dict("records")
    except KeyError:
        raise DataError(f"{path}: has no column step; `dvc checkout {path}`") from None
    except (ValueError, OSError) as error:  # pandas's own errors are ValueErrors
        raise DataError(f"{path}: damaged ({one_line(error)}); `dvc checkout {path}`") from None
    return dict(zip(steps, values, strict=True))


def parameters(training: Training) -> dict[str, Any]:
    """The sections of params.yaml that made it, without their names, so that runs compare.

    A second section of a kind, which belongs to the network that the training started from, is
    below ``start``.

    Raises:
        CheckpointError: The checkpoint is damaged.
    """
    encoder = training.folder / "encoder.safetensors"
    if encoder.exists():  # of a pre-training, whose parameters are in its metadata
        made_with = json.loads(checkpoint.load(encoder)[1].get("params", "{}"))
    else:
        made_with = read_config(training.folder).get("params", {})
    sections: dict[str, Any] = {}
    own = training.folder.name
    for section in sorted(made_with, key=lambda key: key.partition(".")[2] != own):
        kind = section.partition(".")[0]
        place = sections.setdefault("start", {}) if kind in sections else sections
        place[kind] = made_with[section]
    return sections


def results(training: Training, lock: Lock) -> dict[str, float]:
    """``validation_accuracy``, and ``sigma_0.5/acr`` and so on of each evaluation that is its own.

    Guarantee: by dvc.lock, metrics/ are of the certificates that are here, and each stage from the
    training to them read what the stage before it wrote last. Other metrics are left out.

    Raises:
        DataError: A file of metrics is damaged.
    """
    accuracy = provenance(training.stage).get("validation_accuracy")
    scores = {} if accuracy is None else {"validation_accuracy": float(accuracy)}
    file = training.folder / "log.csv"
    certificates = {path.name: md5(path) for path in Path("certificates").glob("*.csv")}
    metrics = {path.name: md5(path) for path in METRICS.glob("*.json")}
    made = {path: digest for path, (_, digest) in lock.outputs.items()}
    if (
        made.get(METRICS.as_posix()) != tree(metrics)
        or made.get(file.as_posix()) != md5(file)
        or lock.read("report", Path("certificates")) != tree(certificates)
    ):
        return scores
    for name in sorted(metrics):
        evaluation = Path(name).stem
        lineage = lock.lineage(Path("certificates", f"{evaluation}.csv"))
        asked: Mapping[str, Any] = lineage.params.get(f"evals.{evaluation}", {}) if lineage else {}
        if lineage and not lineage.older and f"train@{asked.get('run')}" == training.stage:
            numbers = read_json(METRICS / name)
            scores |= {f"sigma_{asked['sigma']:g}/{key}": float(numbers[key]) for key in numbers}
    return scores
