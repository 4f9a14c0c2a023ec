"""Sampling as the stage and the command line both do it: the backend, workers, progress."""

import os
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pipeline import progress
from rrcm import noise, registry, sample, shards, voters
from rrcm.drawing import Progress
from rrcm.settings import Eval, Sample
from rrcm.shards import Split
from rrcm.voters import Backend
from rrcm.votes import Header

CALIBRATION = 64  # noisy validation images that int8 takes its ranges from


def backend(
    evaluation: Eval, cfg: Sample, *, precision: str | None = None, prefixes: bool = False
) -> Backend:
    """The classifier of an evaluation in the configured backend, on the GPU if there is one.

    With ``prefixes``, its scores are those of all prefixes of an ensemble.
    """
    return registry.load("backends", cfg.backend).Backend(
        Path("."),
        evaluation.run,
        sigma=evaluation.sigma,
        precision=precision or cfg.precision,
        device="cuda" if torch.cuda.is_available() else "cpu",
        calibration=partial(_calibration, evaluation.sigma),
        prefixes=prefixes,
    )


def reference(evaluation: Eval, cfg: Sample) -> Backend | None:
    """The float32 form of the function, where ``cfg`` wants its votes compared."""
    return backend(evaluation, cfg, precision="fp32") if cfg.paired else None


def _calibration(sigma: float) -> Tensor:
    """Noisy images of the validation split, with noise that nothing else is drawn with."""
    split = shards.read(Path("shards"), "validation")
    x, idx = torch.from_numpy(split.pixels(slice(CALIBRATION))), split.idx[:CALIBRATION]
    images = torch.from_numpy(idx)
    z = noise.gaussian(
        0, images, torch.zeros_like(images), tuple(x.shape[1:]), stream=noise.VALIDATE
    )
    return x + sigma * z


def workers() -> int:
    """Threads that compute batches: the cores that torch would use, or two to keep a GPU busy."""
    return 2 if torch.cuda.is_available() else torch.get_num_threads()


def run(
    function: Backend,
    header: Header,
    split: Split,
    *,
    journal: Path,
    path: Path,
    title: str,
    reference: Backend | None,
) -> dict[str, Any]:
    """Sample the votes that ``header`` defines into ``path``, resuming; says what ran them."""
    alone = rows_are_alone(function, header, split)
    images = len(sample.subset(header.subset, len(split.idx), shard=header.shard))
    states = sample.sample(
        function,
        split,
        header,
        journal,
        path,
        workers=workers(),
        every=save_every(),
        reference=reference,
    )
    last = shown(states, total=images, title=title)
    return {
        "provider": header.provider,
        "workers": workers(),
        "images": images,
        "draws": last.draws,
        "rows_are_alone": alone,
    }


def rows_are_alone(function: Backend, header: Header, split: Split) -> bool:
    """Whether a row's scores depend on that row alone; says so if they do not."""
    alone = voters.rows_are_alone(function, batch(split, header.batch_size))
    if not alone:
        print(
            f"note: {header.provider} {header.precision} rounds a row by its place in a batch, so "
            "votes may differ from run to run where two scores nearly tie",
            file=sys.stderr,
        )
    return alone


def save_every() -> float:
    """Seconds of drawing that a kill may cost."""
    return float(os.environ.get("RRCM_SAVE_SECONDS", "5"))


def shown(states: Iterator[Progress], *, total: int, title: str) -> Progress:
    """Run through sampling, showing images done, noisy images per second and the time left."""
    state = next(states)
    with progress.bar(total, state.images, title, " images") as shown:
        began = time.monotonic()
        for state in states:
            rate = state.draws / max(time.monotonic() - began, 1e-9)
            shown.set_postfix_str(f"{rate:,.0f} noisy images/s", refresh=False)
            shown.update(state.images - shown.n)
    return state


def batch(split: Split, size: int) -> Tensor:
    """The first ``size`` images, or those that there are again and again, as pixels."""
    rows = torch.arange(size) % len(split.idx)
    return torch.from_numpy(split.pixels(rows.numpy()))
