"""What the stages that train share: resuming, saving now and then, progress, the log."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import torch

from pipeline import progress
from pipeline.graph import Stage
from rrcm.files import atomic
from rrcm.loop import State

# Where a worker may vanish at any time, set RRCM_SAVE_SECONDS lower: less is done again.
SECONDS_BETWEEN_SAVES = float(os.environ.get("RRCM_SAVE_SECONDS", "20"))


def device() -> str:
    """Where training runs: the GPU if there is one."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def run(states: Iterator[State], state: State, stage: Stage, *, total: int) -> None:
    """Drive training to its end, resuming ``state`` from the stage's scratch folder."""
    path, began = stage.scratch / "state.safetensors", time.monotonic()
    if state.resume(path):
        print(f"{stage.name}: resuming at step {state.step} of {total}", flush=True)
    stage.notes |= {"device": device(), "resumed_at": state.step}
    saved = time.monotonic()
    for _ in progress.steps(states, total=total, start=state.step, title=stage.name):
        if time.monotonic() - saved >= SECONDS_BETWEEN_SAVES:
            state.save(path)
            saved = time.monotonic()
    stage.notes["steps_per_second"] = round(
        (total - stage.notes["resumed_at"]) / (time.monotonic() - began), 2
    )


def write_log(path: Path, state: State) -> None:
    """Write the training log as CSV, for `dvc plots`."""
    with atomic(path) as part:
        pd.DataFrame(state.log).to_csv(part, index=False, float_format="%.6g", lineterminator="\n")
