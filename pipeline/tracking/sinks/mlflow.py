"""MLflow: a folder, or whatever an MLflow client can write to, such as a tracking server."""

import json
import os
import time
from collections.abc import Mapping
from typing import Any

# Before the import: nothing is reported to MLflow's authors, unless the user has said otherwise.
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # MLflow 3 refuses folders without it
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")  # 7 take minutes

from mlflow import MlflowClient
from mlflow.entities import Metric, Param
from mlflow.exceptions import MlflowException

from pipeline.tracking.interface import flat, folder
from pipeline.tracking.trainings import Identity

PLACE = "results/mlflow"
ERRORS = (MlflowException,)
EXPERIMENT = "rrcm"
DIGEST, STAGE = "rrcm.digest", "rrcm.stage"  # tags by which a run is found again
METRICS, PARAMS = 1000, 100  # most of each that MLflow takes at once
LONGEST = 6000  # characters of a parameter's value


class Sink:
    """Writes the runs of an experiment ``rrcm``, each once."""

    def __init__(self, to: str | None) -> None:
        """Take a folder or an address; None is MLFLOW_TRACKING_URI, or else `PLACE`.

        Raises:
            MlflowException: The server does not answer.
        """
        self.place = to or os.environ.get("MLFLOW_TRACKING_URI") or PLACE
        address = self.place
        if "://" not in address and address != "databricks":
            address = folder(address, "mlflow").resolve().as_uri()
        self.shown = f"`mlflow ui --backend-store-uri {self.place}` shows it"
        if address != self.place:
            self.shown = f"`MLFLOW_ALLOW_FILE_STORE=true {self.shown[1:]}"
        self._client = MlflowClient(tracking_uri=address)
        found = self._client.get_experiment_by_name(EXPERIMENT)
        self._experiment = (
            found.experiment_id if found else self._client.create_experiment(EXPERIMENT)
        )

    def begin(self, identity: Identity, parameters: Mapping[str, Any]) -> "Run":
        """Find the run of a training, or create it."""
        tags = {DIGEST: identity.digest, STAGE: identity.stage}
        wanted = " and ".join(f"tags.`{key}` = '{value}'" for key, value in tags.items())
        found = self._client.search_runs([self._experiment], wanted, max_results=1)
        if not found:
            found = [self._client.create_run(self._experiment, tags=tags, run_name=identity.stage)]
        return Run(self._client, found[0].info.run_id, parameters)


class Run:
    """Implements `interface.Run`."""

    def __init__(self, client: MlflowClient, run: str, parameters: Mapping[str, Any]) -> None:
        """Ask which values the run has, and send the parameters that it lacks."""
        self._client, self._id, self._queue = client, run, list[Metric]()
        found = client.get_run(run)
        data, self._ended = found.data, found.info.end_time is not None
        self._latest: dict[str, float] = dict(data.metrics)
        self._last = {
            name: max(one.step for one in client.get_metric_history(run, name))
            for name in self._latest
        }
        self._step = 0
        texts = {
            key: value if isinstance(value, str) else json.dumps(value)
            for key, value in flat(parameters).items()
        }
        lacking = [Param(k, v[:LONGEST]) for k, v in texts.items() if k not in data.params]
        for start in range(0, len(lacking), PARAMS):
            client.log_batch(run, params=lacking[start : start + PARAMS])

    def scalars(self, step: int, values: Mapping[str, float]) -> bool:
        """Send the values that the run lacks at this step or after it."""
        self._step = step
        lacking = {k: v for k, v in values.items() if step > self._last.get(k, -1)}
        self._add(lacking)
        return bool(lacking)

    def flush(self) -> None:
        """Send what waits."""
        for start in range(0, len(self._queue), METRICS):
            self._client.log_batch(self._id, metrics=self._queue[start : start + METRICS])
        self._queue.clear()

    def end(self, summary: Mapping[str, float]) -> None:
        """Send the values of the summary that differ, at the last step; the run has then ended."""
        self._add({k: v for k, v in summary.items() if self._latest.get(k) != v})
        if self._queue or not self._ended:  # its end stays that of the first time
            self.flush()
            self._client.set_terminated(self._id)

    def close(self) -> None:
        """Send what waits."""
        self.flush()

    def _add(self, values: Mapping[str, float]) -> None:
        now = time.time_ns() // 1_000_000
        self._queue += [Metric(name, value, now, self._step) for name, value in values.items()]
        if len(self._queue) >= METRICS:
            self.flush()
