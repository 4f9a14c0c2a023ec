"""Finds the stages that run in this checkout, and how far each is, from what they save."""

import fcntl
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

from pipeline.runtime.graph import SCRATCH
from pipeline.runtime.throughput import SPEED
from pipeline.workflow.shares import JOURNAL
from rrcm.certification.sampling import procedure
from rrcm.certification.votes import records
from rrcm.config.params import Params
from rrcm.core.errors import RrcmError
from rrcm.training.engine.inputs import order


@dataclass(frozen=True, kw_only=True, slots=True)
class Running:
    """A stage that runs: its process, the share that is done, and seconds left; None: not known."""

    name: str
    pid: int
    done: float | None
    left: float | None


def stages(whole: Params) -> list[Running]:
    """Stages whose process holds the lock of its stage; the progress is as of its last save."""
    found = []
    for path in sorted(SCRATCH.glob("*.lock")):
        if (pid := _holder(path)) is not None:
            name = path.name.removesuffix(".lock")
            try:
                done, left = _progress(name, whole, began=path.stat().st_mtime)
            except (OSError, ValueError, KeyError, IndexError, RrcmError):
                done = left = None  # nothing is saved yet, or it is ending
            found.append(Running(name=name, pid=pid, done=done, left=left))
    return found


def _holder(path: Path) -> int | None:
    """The process that holds a lock, None if none does; another that tries it just then waits."""
    try:
        file = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return int(os.pread(file, 20, 0) or 0)
    finally:
        os.close(file)
    return None


def _progress(name: str, whole: Params, *, began: float) -> tuple[float, float | None]:
    """Share done and seconds left of a stage that began at the time ``began``."""
    scratch = max((SCRATCH / name).iterdir(), key=lambda folder: folder.stat().st_mtime)
    group, _, item = name.partition("@")
    if group == "sample":
        return _sampled(scratch, began)
    saved = scratch / SPEED
    row = json.loads(saved.read_text())[-1]
    share = row["step"] / _steps(group, item, whole)
    since = time.time() - saved.stat().st_mtime
    return share, max(0.0, row["seconds"] * (1 - share) / share - since)


def _steps(group: str, item: str, whole: Params) -> int:
    """Steps of a training in all."""
    if group != "train":
        return {"pretrain": whole.pretrain, "denoise": whole.denoisers}[group][item].steps
    recipe = whole.recipes[whole.runs[item].recipe]
    images = json.loads(Path("shards/train/index.json").read_text())["images"]
    labelled = round(images * recipe.labels)
    return recipe.epochs * order.steps_per_epoch(labelled, batch_size=recipe.batch_size)


def _sampled(scratch: Path, began: float) -> tuple[float, float | None]:
    """Share of the images that are finished; no time left is known of a sampling that resumed."""
    header, rows, _ = records.scan(scratch / JOURNAL)
    images = len(procedure.subset(header.subset, header.images, shard=header.shard))
    share = len({row.idx for row in rows if row.stop}) / images
    created = scratch.stat().st_mtime  # a journal that grows does not change its folder
    if created < began or not share:
        return share, None
    return share, (time.time() - created) * (1 - share) / share
