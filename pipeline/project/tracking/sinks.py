"""Where `rrcm log` sends trainings: TensorBoard, MLflow or Weights & Biases, a class each.

Guarantee of each: a training is one run, named after its stage and known by its digest, however
often it is sent; no telemetry, code or figures of this machine go with it. Packages are imported
when a sink is opened, so that one works without those of the others.
"""

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from rrcm.core.errors import ConfigError, DataError, one_line

PROJECT = "rrcm"  # the name of all runs together
METRICS, PARAMS = 1000, 100  # most of each that MLflow takes at once
LONGEST = 6000  # characters of a parameter's value in MLflow


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """A finished training: values at each step, and its results."""

    stage: str
    digest: str
    parameters: Mapping[str, Any]  # nested, by section of params.yaml
    rows: list[tuple[int, dict[str, float]]]
    results: Mapping[str, float]

    @property
    def last(self) -> int:
        """The last step, at which the results are shown."""
        return self.rows[-1][0] if self.rows else 0


class Sink(Protocol):
    """Where trainings go: ``place`` says where, and ``shown`` how to look at it."""

    place: Path | str
    shown: str

    def send(self, run: Run) -> None:
        """Make the sink hold exactly one run of this training, with all that ``run`` has.

        Raises:
            DataError: The sink refuses it.
        """


class TensorBoard:
    """Event files below a folder, ``<stage>/<digest>/``, written anew each time."""

    def __init__(self, to: str | None) -> None:
        """Take a folder; None is results/tensorboard.

        Raises:
            ConfigError: ``to`` is an address.
        """
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter
        self.place = _folder(to or "results/tensorboard", "tensorboard")
        self.shown = f"`tensorboard --logdir {self.place}` shows it"

    def send(self, run: Run) -> None:
        """Write curves and results as scalars, parameters and results as a row of HPARAMS."""
        from torch.utils.tensorboard.summary import hparams

        path = self.place / run.stage / run.digest[:8]
        for old in path.glob("events.out.tfevents.*"):
            old.unlink()
        # purge_step: a TensorBoard that shows the folder forgets what it had read there before
        with self._writer(str(path), purge_step=0) as writer:
            for step, values in [*run.rows, (run.last, run.results)]:
                for name, value in values.items():
                    writer.add_scalar(name, value, step)
            for part in hparams(_texts(run.parameters), dict(run.results)):
                writer.file_writer.add_summary(part)


class MLflow:
    """The experiment ``rrcm`` of a folder or a tracking server."""

    def __init__(self, to: str | None) -> None:
        """Take a folder or an address; None is MLFLOW_TRACKING_URI, or else results/mlflow."""
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # these three: before the import
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # MLflow 3 refuses folders without
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")  # 7 take minutes
        from mlflow import MlflowClient

        self.place = address = to or os.environ.get("MLFLOW_TRACKING_URI") or "results/mlflow"
        self.shown = f"`mlflow ui --backend-store-uri {address}` shows it"
        if "://" not in address and address != "databricks":
            address = Path(address).resolve().as_uri()
            self.shown = f"`MLFLOW_ALLOW_FILE_STORE=true {self.shown[1:]}"
        self._client = MlflowClient(tracking_uri=address)

    def send(self, run: Run) -> None:
        """Create the run; one that has all of its curves gets the results that differ."""
        from mlflow.entities import Metric, Param
        from mlflow.exceptions import MlflowException

        client, now = self._client, time.time_ns() // 1_000_000
        with _refused("mlflow", MlflowException):
            found = client.get_experiment_by_name(PROJECT)
            experiment = found.experiment_id if found else client.create_experiment(PROJECT)
            tags = {"rrcm.digest": run.digest, "rrcm.stage": run.stage}
            query = " and ".join(f"tags.`{key}` = '{value}'" for key, value in tags.items())
            number, kept = "", dict[str, float]()
            metrics = [Metric(k, v, now, step) for step, row in run.rows for k, v in row.items()]
            for old in client.search_runs([experiment], query):
                if old.info.status == "FINISHED":
                    number, kept, metrics = old.info.run_id, old.data.metrics, []
                else:  # it was cut off while it was sent
                    client.delete_run(old.info.run_id)
            if fresh := not number:
                number = client.create_run(experiment, tags=tags, run_name=run.stage).info.run_id
                texts = [Param(k, str(v)[:LONGEST]) for k, v in _texts(run.parameters).items()]
                for start in range(0, len(texts), PARAMS):
                    client.log_batch(number, params=texts[start : start + PARAMS])
            for key, value in run.results.items():
                if kept.get(key) != value:
                    metrics.append(Metric(key, value, now, run.last))
            for start in range(0, len(metrics), METRICS):
                client.log_batch(number, metrics=metrics[start : start + METRICS])
            if fresh:
                client.set_terminated(number)


class WandB:
    """The project WANDB_PROJECT, or else ``rrcm``; offline unless WANDB_MODE is online."""

    def __init__(self, to: str | None) -> None:
        """Take a folder, in which wandb makes a folder ``wandb``; None is results.

        Raises:
            ConfigError: ``to`` is an address; wandb reads that of its server from WANDB_BASE_URL.
        """
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # before the import
        import wandb

        self._wandb = wandb
        self.place = _folder(to or "results", "wandb")
        self._online = os.environ.get("WANDB_MODE", "offline") == "online"
        folder = self.place / "wandb"
        self.shown = "online" if self._online else f"`wandb sync {folder}/offline-run-*` uploads it"

    def send(self, run: Run) -> None:
        """Write the run, whose id is the digest: offline anew, online the steps that it lacks."""
        self.place.mkdir(parents=True, exist_ok=True)
        if not self._online:
            for old in (self.place / "wandb").glob(f"offline-run-*-{run.digest}"):
                shutil.rmtree(old)
        quiet = self._wandb.Settings(
            console="off", silent=True, symlink=False, save_code=False, disable_git=True,
            x_disable_meta=True, x_disable_stats=True, x_disable_machine_info=True,
            x_save_requirements=False,
        )  # fmt: skip
        with (
            _refused("wandb", self._wandb.Error),
            self._wandb.init(
                project=os.environ.get("WANDB_PROJECT", PROJECT),
                id=run.digest,
                name=run.stage,
                group=run.stage.partition("@")[0],
                config=dict(run.parameters),
                dir=str(self.place),
                mode="online" if self._online else "offline",
                resume="allow" if self._online else None,
                settings=quiet,
            ) as opened,
        ):
            first = opened.step
            for step, values in run.rows:
                if step >= first:
                    opened.log(values, step=step, commit=True)
            opened.summary.update(dict(run.results))


SINKS: dict[str, Callable[[str | None], Sink]] = {
    "mlflow": MLflow, "tensorboard": TensorBoard, "wandb": WandB,
}  # fmt: skip


@contextmanager
def _refused(sink: str, *errors: type[Exception]) -> Iterator[None]:
    """Make an error of a sink's library, which a user can mend, one line."""
    try:
        yield
    except errors as error:
        raise DataError(f"rrcm log {sink}: {one_line(error)}") from None


def _folder(to: str, sink: str) -> Path:
    """The value of ``--to`` as a folder.

    Raises:
        ConfigError: It is an address.
    """
    if "://" in to:
        raise ConfigError(f"--to {to}: {sink} writes to a folder, and this is an address")
    return Path(to)


def _texts(parameters: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested parameters as one mapping, ``{"recipes.epochs": 3}``; lists are JSON."""
    flat: dict[str, Any] = {}
    for key, value in parameters.items():
        if isinstance(value, Mapping):
            flat |= _texts(value, f"{prefix}{key}.")
        else:
            plain = isinstance(value, bool | int | float | str)
            flat[f"{prefix}{key}"] = value if plain else json.dumps(value)
    return flat
