"""Code that all training stages share: devices, resuming, periodic saving, progress, logs."""

import json
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import torch

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
from rrcm.training.engine.loop import Training

BETWEEN_SAVES = seconds_between_saves(20.0)
STATE, NOTES = "state.safetensors", "notes.json"


@contextmanager
def running(stage_name: str) -> Iterator[Stage]:
    """`graph.running`; in a process started by `begin`, a context for its part of the stage.

    Such a process writes no outputs, only the trained state in ``scratch``.
    """
    if not distributed.launched():
        with graph.running(stage_name) as stage:
            yield stage
        return
    with torchrun.telling(), distributed.joined():
        yield Stage(name=stage_name, scratch=torchrun.scratch(), notes={})


def begin(
    stage: Stage, compute: Compute, *splits: str, model: str, shape: dict[str, Any]
) -> dict[str, Split]:
    """Read ``splits`` of the data for the network ``models.<model>``, of that ``shape``.

    If several devices are configured, train on them, each in a process that runs this script, and
    relies on the check of the data by its starter. The rest of the script then resumes at the end
    of training, and writes the outputs.
    """
    verify = not distributed.launched()
    data = {split: shards.read(Path("shards"), split, verify=verify) for split in splits}
    require_fit(model, shape, data[splits[0]])
    if torchrun.wanted(compute):
        torchrun.launch(stage, compute)
    return data


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


def run(training: Training, stage: Stage, data: dict[str, Split], out: Path) -> bool:
    """Run a training to its end, resuming it from the stage's scratch folder; then write its logs.

    The logged values of each step are in ``log.csv`` of the folder ``out``, for `dvc plots`; the
    speed is beside the provenance, since no stage may depend on it.

    Returns:
        Whether to write the result: not in a process that another started, which continues.
    """
    _train(training, stage)
    if distributed.launched():
        return False
    speed = json.loads((stage.scratch / SPEED).read_text())
    for path, rows, columns in (
        (out / "log.csv", training.state.log, ["step", "lr", "loss"]),
        (Path("provenance", f"{stage.name}.csv"), speed, ["step", "images_per_second"]),
    ):
        table = pd.DataFrame(rows, columns=None if rows else columns)  # no rows without epochs
        write_csv(table, path, digits="%.6g")
    stage.notes |= {"seed": training.seed, "data": data_digests(*data)}
    return True


def _train(training: Training, stage: Stage) -> None:
    state, total = training.state, training.steps
    resumed, notes = state.resume(stage.scratch / STATE), stage.scratch / NOTES
    if resumed and state.step == total:
        if notes.exists():  # only on the host of process 0
            stage.notes |= json.loads(notes.read_text())
        return
    first, start, began = distributed.rank() == 0, state.step, time.monotonic()
    if not first:
        for _ in training:
            pass
    else:
        if resumed:
            print(f"{stage.name}: resuming at step {start} of {total}", flush=True)
        meter, images, saved = Meter(stage.scratch, training), training.batch_size, time.monotonic()
        shown = progress.steps(training, total=total, start=start, title=stage.name, images=images)
        with closing(shown):  # prints an error on its own line, below the bar
            for _ in shown:
                meter.look()
                if time.monotonic() - saved >= BETWEEN_SAVES:
                    meter.save()  # first: its rows may be ahead of the state
                    state.save(stage.scratch / STATE)
                    saved = time.monotonic()
            meter.save()
    stage.notes |= {
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "devices": distributed.world(),
        "precision": training.compute.precision,
        "resumed_at": start,
        "gradient_evaluations": state.gradients,
        "steps_per_second": round((total - start) / (time.monotonic() - began), 2),
    }
    if first:
        write_json(notes, stage.notes)
        state.save(stage.scratch / STATE)


def data_digests(*splits: str) -> dict[str, str]:
    """SHA-256 of the index of each split, which contains the hashes of its shards."""
    return {name: sha256(Path("shards", name, "index.json")) for name in splits}
