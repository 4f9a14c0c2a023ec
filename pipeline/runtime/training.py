"""Code that all training stages share: devices, resuming, periodic saving, progress, logs."""

import json
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import nn

from pipeline.runtime import graph, torchrun
from pipeline.runtime.graph import Stage
from pipeline.runtime.throughput import SPEED, Meter
from rrcm.config.sections import Compute
from rrcm.core import progress
from rrcm.core.ending import seconds_between_saves
from rrcm.core.files import sha256, write_csv, write_json
from rrcm.core.ranges import require
from rrcm.data.splits import shards
from rrcm.data.splits.shards import Split
from rrcm.training.engine import distributed
from rrcm.training.engine.loop import State

BETWEEN_SAVES = seconds_between_saves(20.0)
STATE, NOTES = "state.safetensors", "notes.json"


@contextmanager
def running(stage_name: str) -> Iterator[Stage]:
    """`graph.running`; in a process started by `on_devices`, a context for its part of the stage.

    Such a process writes no outputs, only the trained state in ``scratch``.
    """
    if not distributed.launched():
        with graph.running(stage_name) as stage:
            yield stage
        return
    with torchrun.telling(), distributed.joined():
        yield Stage(name=stage_name, scratch=torchrun.scratch(), notes={})


def read(split: str) -> Split:
    """A split of the data; processes started by `on_devices` rely on the check of their starter."""
    return shards.read(Path("shards"), split, verify=not distributed.launched())


def require_fit(model: str, shape: dict[str, Any], split: Split) -> None:
    """Refuse a network whose input does not fit the images of ``split``, before the first step.

    ``shape`` is that of ``models.<model>``; missing keys are refused when the network is built.

    Raises:
        ConfigError: Names the key, its value, and that of the images.
    """
    _, channels, *sides = split.images.shape
    for key, own, found in (
        ("channels", {channels}, f"{channels} channels (data.channels)"),
        ("image_size", {*sides}, f"{' x '.join(map(str, sides))} pixels (data.size)"),
    ):
        require(
            key not in shape or {shape[key]} == own,
            f"models.{model}.{key}: is {shape.get(key)}, but the images have {found}; set both "
            "alike",
        )


def on_devices(stage: Stage, compute: Compute) -> None:
    """If several devices are configured, train on them, each in a process that runs this script.

    The rest of the script then resumes at the end of training, and writes the outputs.
    """
    if torchrun.wanted(compute):
        torchrun.launch(stage, compute)


def run(
    states: Iterator[State],
    state: State,
    stage: Stage,
    *,
    network: nn.Module,
    size: tuple[int, ...],
    batch_size: int,
    total: int,
    compute: Compute,
) -> None:
    """Run training to its end, resuming ``state`` from the stage's scratch folder.

    Args:
        states: The iterator of `pretrain` or `train`.
        state: The state that it trains.
        stage: Its scratch folder receives the state, periodically and at the end.
        network: The network whose operations are counted.
        size: Shape of one image, (C, H, W).
        batch_size: Images of a step, over all devices.
        total: Number of steps.
        compute: Devices and precision of the training.
    """
    resumed, notes = state.resume(stage.scratch / STATE), stage.scratch / NOTES
    if resumed and state.step == total:
        if notes.exists():  # only on the host of process 0
            stage.notes |= json.loads(notes.read_text())
        return
    first, start, began = distributed.rank() == 0, state.step, time.monotonic()
    if resumed and first:
        print(f"{stage.name}: resuming at step {start} of {total}", flush=True)
    if first:
        meter = Meter(
            stage.scratch, network, step=start, size=size, batch_size=batch_size, compute=compute
        )
        shown = progress.steps(
            states, total=total, start=start, title=stage.name, images=batch_size
        )
        with closing(shown):  # prints an error on its own line, below the bar
            _drive(shown, state, stage, meter)
    else:
        for _ in states:
            pass
    stage.notes |= {
        "device": torch.device(distributed.device()).type,
        "devices": distributed.world(),
        "precision": compute.precision,
        "resumed_at": start,
        "gradient_evaluations": state.gradients,
        "steps_per_second": round((total - start) / (time.monotonic() - began), 2),
    }
    if first:
        write_json(notes, stage.notes)
        state.save(stage.scratch / STATE)


def _drive(states: Iterator[State], state: State, stage: Stage, meter: Meter) -> None:
    """Run to the end, and save periodically: first the meter, whose rows may be ahead."""
    saved = time.monotonic()
    for _ in states:
        meter.look(state)
        if time.monotonic() - saved >= BETWEEN_SAVES:
            meter.save()
            state.save(stage.scratch / STATE)
            saved = time.monotonic()
    meter.save()


def write_logs(folder: Path, state: State, stage: Stage) -> None:
    """Write the logged values of each step to ``log.csv``, for `dvc plots`.

    The speed is written beside the provenance, since no stage may depend on it.
    """
    speed = json.loads((stage.scratch / SPEED).read_text())
    for path, rows, columns in (
        (folder / "log.csv", state.log, ["step", "lr", "loss"]),
        (Path("provenance", f"{stage.name}.csv"), speed, ["step", "images_per_second"]),
    ):
        table = pd.DataFrame(rows, columns=None if rows else columns)  # no rows without epochs
        write_csv(table, path, digits="%.6g")


def data_digests(*splits: str) -> dict[str, str]:
    """SHA-256 of the index of each split, which contains the hashes of its shards."""
    return {name: sha256(Path("shards", name, "index.json")) for name in splits}
