"""Event files of TensorBoard: a folder for each training, which is written anew as a whole."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams

from pipeline.tracking.interface import flat, folder
from pipeline.tracking.trainings import Identity

PLACE = "results/tensorboard"
ERRORS = ()  # that are no OSErrors


class Sink:
    """Writes event files below a folder: ``<stage>/<digest>/``."""

    def __init__(self, to: str | None) -> None:
        """Take a folder; None is `PLACE`.

        Raises:
            ConfigError: ``to`` is the address of a server.
        """
        self.place = folder(to or PLACE, "tensorboard")
        self.shown = f"`tensorboard --logdir {self.place}` shows it"

    def begin(self, identity: Identity, parameters: Mapping[str, Any]) -> "Run":
        """Begin the folder of a training; event files of before are removed."""
        path = self.place / identity.stage / identity.digest[:8]
        for old in path.glob("events.out.tfevents.*"):
            old.unlink()
        return Run(path, parameters)


class Run:
    """Implements `interface.Run`."""

    def __init__(self, path: Path, parameters: Mapping[str, Any]) -> None:
        """Open ``path``. A TensorBoard that shows it forgets what it had read there before."""
        self._writer = SummaryWriter(str(path), purge_step=0)
        self._parameters, self._step = flat(parameters), 0

    def scalars(self, step: int, values: Mapping[str, float]) -> bool:
        """Write values; all are new."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._step = step
        return True

    def flush(self) -> None:
        """Write to the disk."""
        self._writer.flush()

    def end(self, summary: Mapping[str, float]) -> None:
        """Write the summary as scalars of the last step, and as metrics of the parameters."""
        for name, value in summary.items():
            self._writer.add_scalar(name, value, self._step)
        plain = {
            key: value if isinstance(value, bool | int | float | str) else json.dumps(value)
            for key, value in self._parameters.items()
        }
        for part in hparams(plain, dict(summary)):
            self._writer.file_writer.add_summary(part)

    def close(self) -> None:
        """Close the file."""
        self._writer.close()
