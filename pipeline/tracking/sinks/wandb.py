"""Weights & Biases, offline unless WANDB_MODE says otherwise."""

import os
import shutil
from collections.abc import Mapping
from typing import Any

os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # before the import

import wandb

from pipeline.tracking.interface import folder
from pipeline.tracking.trainings import Identity

PLACE = "results"  # wandb makes a folder `wandb` in it
ERRORS = (wandb.Error,)
PROJECT = "rrcm"
QUIET = {  # nothing but what is sent: no output, code, packages or figures of this machine
    "console": "off",
    "silent": True,
    "symlink": False,
    "save_code": False,
    "disable_git": True,
    "x_disable_meta": True,
    "x_disable_stats": True,
    "x_disable_machine_info": True,
    "x_save_requirements": False,
}


class Sink:
    """Writes the runs of the project WANDB_PROJECT, or else ``rrcm``."""

    def __init__(self, to: str | None) -> None:
        """Take a folder; None is `PLACE`.

        Raises:
            ConfigError: ``to`` is the address of a server; wandb reads that from WANDB_BASE_URL.
        """
        self.place = folder(to or PLACE, "wandb")
        self._online = os.environ.get("WANDB_MODE", "offline") == "online"
        runs = self.place / "wandb"
        self.shown = "online" if self._online else f"`wandb sync {runs}/offline-run-*` uploads it"

    def begin(self, identity: Identity, parameters: Mapping[str, Any]) -> "Run":
        """Begin the run of a training, whose id is the digest.

        Offline its folder is written anew as a whole; online the run is resumed.
        """
        self.place.mkdir(parents=True, exist_ok=True)
        if not self._online:
            for old in (self.place / "wandb").glob(f"offline-run-*-{identity.digest}"):
                shutil.rmtree(old)
        run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            id=identity.digest,
            name=identity.stage,
            group=identity.stage.partition("@")[0],
            config=dict(parameters),
            dir=str(self.place),
            mode="online" if self._online else "offline",
            resume="allow" if self._online else None,
            reinit="create_new",  # several trainings may run at a time
            settings=wandb.Settings(**QUIET),
        )
        return Run(run)


class Run:
    """Implements `interface.Run`."""

    def __init__(self, run: "wandb.Run") -> None:
        """Take a run that has begun."""
        self._run, self._first, self._code = run, run.step, 1

    def scalars(self, step: int, values: Mapping[str, float]) -> bool:
        """Send a row, unless the run that was resumed has it."""
        if lacking := step >= self._first:
            self._run.log(dict(values), step=step, commit=True)
        return lacking

    def flush(self) -> None:
        """Do nothing: wandb writes at once."""

    def end(self, summary: Mapping[str, float]) -> None:
        """Set the summary."""
        self._run.summary.update(dict(summary))
        self._code = 0

    def close(self) -> None:
        """End wandb's part; a run that has not ended is marked as failed until it is sent again."""
        self._run.finish(exit_code=self._code)
