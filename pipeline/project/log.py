"""``rrcm log``: sends the curves of trainings to TensorBoard, MLflow or Weights & Biases.

A training always writes its curves to ``log.csv``, so that it needs no server; this exports them.
Guarantee of each sink: a training is one run, named after its stage and known by its digest,
written anew each time it is sent; no telemetry, code or figures of this machine go with it.
"""

import json
import math
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from pipeline.project.patterns import matching
from rrcm.analysis import entries
from rrcm.core.errors import ConfigError, DataError, StageError, one_line
from rrcm.core.files import read_config, read_json, sha256
from rrcm.core.registry import suggest
from rrcm.models.trained.base import checkpoint

FOLDERS = {"pretrain": "pretrained", "train": "models", "denoise": "denoisers"}  # of each stage
DIGITS = 16  # of a digest
PROJECT = "rrcm"  # the name of all runs together
BATCH = 1000  # values that MLflow takes at once
PARAMS = 100  # parameters that MLflow takes at once, and the characters of one:
LONGEST = 6000


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """A finished training and its values at each step; the last also has validation_accuracy."""

    stage: str
    digest: str
    parameters: Mapping[str, Any]  # dotted, as runs.loss.lbd
    rows: list[tuple[int, dict[str, float]]]


def log(sink: str, *, to: str | None, only: Sequence[str], say: Callable[[str], None]) -> str:
    """Send the finished trainings, each as one run, with a line to ``say``.

    Returns:
        Where the trainings are now, and how to look at them.

    Raises:
        ConfigError: There is no such sink, ``to`` is not for it, or a pattern matches nothing.
        ModuleNotFoundError: Its package is not installed.
        StageError: There is no training.
        DataError: A file is damaged, or the sink refuses what it is sent.
    """
    if sink not in SINKS:
        raise ConfigError(
            f"rrcm log {sink}: there is no such sink, only {', '.join(SINKS)}."
            f"{suggest(sink, [*SINKS])}"
        )
    logs = _logs(only)
    if to and "://" in to and sink != "mlflow":
        raise ConfigError(f"--to {to}: {sink} writes to a folder, and this is an address")
    send, shown = SINKS[sink](to)
    for stage, folder in logs.items():
        path = Path("provenance", f"{stage}.json")
        record = read_json(path) if path.exists() else {}  # it is not, after `rrcm pull`
        run = Run(
            stage=stage,
            digest=str(record.get("inputs") or sha256(folder / "log.csv"))[:DIGITS],
            parameters=_parameters(folder),
            rows=_rows(stage, folder),
        )
        accuracy = record.get("validation_accuracy")
        if run.rows and accuracy is not None:
            run.rows[-1][1]["validation_accuracy"] = float(accuracy)
        send(run)
        say(f"{run.stage}: {len(run.rows)} rows")
    return shown


def _logs(only: Sequence[str]) -> dict[str, Path]:
    """The folders of the trainings whose logs are here, or of those that the patterns match."""
    here = {
        f"{kind}@{file.parent.name}": file.parent
        for kind, parent in FOLDERS.items()
        for file in sorted(Path(parent).glob("*/log.csv"))
    }
    if not here:
        folders = ", ".join(f"{folder}/" for folder in FOLDERS.values())
        raise StageError(
            f"no training has ended here: {folders} have no log.csv; `rrcm repro` makes them"
        )
    return {stage: here[stage] for stage in matching(here, only, kind="training here")}


def _rows(stage: str, folder: Path) -> list[tuple[int, dict[str, float]]]:
    """The steps of ``log.csv`` with their values, and the speed that was measured at them."""
    speed = Path("provenance", f"{stage}.csv")
    table = _table(folder / "log.csv")
    if speed.exists():
        measured = _table(speed)
        table = table.join(measured[measured.columns.difference(table.columns)])
    return [
        (int(step), {key: float(v) for key, v in row.items() if math.isfinite(v)})
        for step, row in table.iterrows()
    ]


def _table(path: Path) -> pd.DataFrame:
    """The rows of a CSV file of numbers by its column ``step``."""
    try:
        return pd.read_csv(path).astype(float).set_index("step")
    except (KeyError, ValueError, OSError) as error:  # pandas's own errors are ValueErrors
        raise DataError(f"{path}: damaged ({one_line(error)}); `dvc checkout {path}`") from None


def _parameters(folder: Path) -> dict[str, Any]:
    """The sections of params.yaml that made it, without their names, so that runs compare.

    A second section of a kind, which belongs to the network that the training started from, is
    below ``start``.
    """
    encoder = folder / "encoder.safetensors"
    if encoder.exists():  # of a pre-training, whose parameters are in its metadata
        made_with = json.loads(checkpoint.load(encoder)[1].get("params", "{}"))
    else:
        made_with = read_config(folder).get("params", {})
    sections: dict[str, Any] = {}
    for section in sorted(made_with, key=lambda key: key.partition(".")[2] != folder.name):
        kind = section.partition(".")[0]
        place = sections.setdefault("start", {}) if kind in sections else sections
        place[kind] = made_with[section]
    values = {k: v for kind, node in sections.items() for k, v in entries.flat(node, kind).items()}
    return {k: json.dumps(v) if isinstance(v, list) else v for k, v in values.items()}


# A sink: a function that sends a run, and a text that says where it is then and how to look at it.
Sink = tuple[Callable[[Run], None], str]


def tensorboard(to: str | None) -> Sink:
    """Event files below a folder, ``<stage>/<digest>/``; None is results/tensorboard."""
    from torch.utils.tensorboard import SummaryWriter
    from torch.utils.tensorboard.summary import hparams

    place = Path(to or "results/tensorboard")

    def send(run: Run) -> None:
        folder = place / run.stage / run.digest[:8]
        shutil.rmtree(folder, ignore_errors=True)
        # purge_step: a TensorBoard that shows the folder forgets what it had read there before
        with SummaryWriter(str(folder), purge_step=0) as writer:
            for step, values in run.rows:
                for name, value in values.items():
                    writer.add_scalar(name, value, step)
            final = run.rows[-1][1] if run.rows else {}
            for part in hparams(dict(run.parameters), final):
                writer.file_writer.add_summary(part)

    return send, f"{place}: `tensorboard --logdir {place}` shows it"


def mlflow(to: str | None) -> Sink:
    """The experiment ``rrcm`` of a folder or a tracking server.

    ``to`` is either; None is MLFLOW_TRACKING_URI, or else results/mlflow.
    """
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # these three: before the import
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # MLflow 3 refuses folders without
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")  # 7 take minutes
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param
    from mlflow.exceptions import MlflowException

    address = place = to or os.environ.get("MLFLOW_TRACKING_URI") or "results/mlflow"
    shown = f"mlflow ui --backend-store-uri {place}"
    if "://" not in address and address != "databricks":
        address, shown = Path(address).resolve().as_uri(), f"MLFLOW_ALLOW_FILE_STORE=true {shown}"
    client = MlflowClient(tracking_uri=address)

    def send(run: Run) -> None:
        now = time.time_ns() // 1_000_000
        texts = [Param(key, str(value)[:LONGEST]) for key, value in run.parameters.items()]
        metrics = [Metric(k, v, now, step) for step, row in run.rows for k, v in row.items()]
        tags = {"rrcm.digest": run.digest, "rrcm.stage": run.stage}
        try:
            known = client.get_experiment_by_name(PROJECT)
            experiment = known.experiment_id if known else client.create_experiment(PROJECT)
            query = " and ".join(f"tags.`{key}` = '{value}'" for key, value in tags.items())
            for old in client.search_runs([experiment], query):
                client.delete_run(old.info.run_id)
            number = client.create_run(experiment, tags=tags, run_name=run.stage).info.run_id
            for start in range(0, len(texts), PARAMS):
                client.log_batch(number, params=texts[start : start + PARAMS])
            for start in range(0, len(metrics), BATCH):
                client.log_batch(number, metrics=metrics[start : start + BATCH])
            client.set_terminated(number)
        except MlflowException as error:
            raise DataError(f"rrcm log mlflow: {one_line(error)}") from None

    return send, f"{place}: `{shown}` shows it"


def wandb(to: str | None) -> Sink:
    """Offline runs of the project WANDB_PROJECT, or else ``rrcm``, whose ids are the digests.

    ``to`` is a folder, in which wandb makes a folder ``wandb``; None is results.
    """
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # before the import
    import wandb

    place = Path(to or "results")
    quiet = wandb.Settings(
        console="off", silent=True, symlink=False, save_code=False, disable_git=True,
        x_disable_meta=True, x_disable_stats=True, x_disable_machine_info=True,
        x_save_requirements=False,
    )  # fmt: skip

    def send(run: Run) -> None:
        place.mkdir(parents=True, exist_ok=True)
        for old in (place / "wandb").glob(f"offline-run-*-{run.digest}"):
            shutil.rmtree(old)
        try:
            with wandb.init(
                project=os.environ.get("WANDB_PROJECT", PROJECT),
                id=run.digest,
                name=run.stage,
                group=run.stage.partition("@")[0],
                config=dict(run.parameters),
                dir=str(place),
                mode="offline",
                settings=quiet,
            ) as opened:
                for step, values in run.rows:
                    opened.log(values, step=step, commit=True)
        except wandb.Error as error:
            raise DataError(f"rrcm log wandb: {one_line(error)}") from None

    return send, f"{place}: `wandb sync {place}/wandb/offline-run-*` uploads it"


SINKS = {"mlflow": mlflow, "tensorboard": tensorboard, "wandb": wandb}
