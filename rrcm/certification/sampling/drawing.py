"""Samples noisy votes of a base classifier, the only costly step of certification.

Guarantee: the noise of a draw is a function of (seed, split, image, draw); all batches have one
shape and run on one thread each. So votes do not depend on the order of images, restarts, shares or
the number of workers, if the scores of a row do not depend on the other rows of its batch
(`is_batch_invariant` says so where they do, before a command or a stage draws).
"""

import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rrcm.certification.sampling import store, voting
from rrcm.certification.sampling.journal import Journal
from rrcm.certification.sampling.sampler import SamplingProgress, VoteSampler
from rrcm.certification.votes import records
from rrcm.certification.votes.records import Header
from rrcm.config.certification import Eval, Sampling
from rrcm.core import progress, registry
from rrcm.data.splits import shards
from rrcm.data.splits.shards import Split
from rrcm.inference.backend import Backend
from rrcm.noise import streams

NEVER = 1e9  # seconds, more than anybody waits
CALIBRATION = 64  # noisy validation images that set the ranges of int8 activations
THREADS = torch.get_num_threads()  # when imported: any call of a backend on a CPU leaves one


def backend(evaluation: Eval, cfg: Sampling) -> Backend:
    """The classifier of an evaluation in the configured backend, on the GPU if there is one."""
    return registry.load("backends", cfg.backend).Backend(
        Path("."),
        evaluation.run,
        sigma=evaluation.sigma,
        precision=cfg.precision,
        device="cuda" if torch.cuda.is_available() else "cpu",
        calibration=partial(_calibration, evaluation.sigma),
    )


def _calibration(sigma: float) -> Tensor:
    """Noisy images of the validation split, from a noise stream of their own."""
    split = shards.read(Path("shards"), "validation")
    x, idx = torch.from_numpy(split.pixels(slice(CALIBRATION))), split.idx[:CALIBRATION]
    images = torch.from_numpy(idx)
    z = streams.gaussian(
        0, images, torch.zeros_like(images), tuple(x.shape[1:]), stream=streams.VALIDATE
    )
    return x + sigma * z


def workers() -> int:
    """Worker threads: as many as torch had when it started, or two to keep a GPU busy."""
    return 2 if torch.cuda.is_available() else THREADS


def run(
    function: Backend,
    header: Header,
    split: Split,
    *,
    journal: Path,
    path: Path,
    title: str,
    earlier: Sequence[Path] = (),
    budget_start: float | None = None,
) -> dict[str, Any]:
    """Sample the votes of ``header`` into ``path``, resuming from ``journal``.

    Images that have votes in files of ``earlier`` are not drawn (`store.reusable`). The file is
    written whole, at the end, and the journal is removed. Returns notes for the provenance.

    Raises:
        VotesError: ``journal`` has votes of another classifier or setting.
        ConfigError: The budget was spent before the first draw.
        BackendError: A score is NaN.
    """
    invariant = is_batch_invariant(function, voting.batch(split, header.batch))
    images = header.expected()
    if known := store.reusable(earlier, header, split):
        print(f"{title}: {len(known):,} of {images:,} images have votes already", file=sys.stderr)
    with Journal(journal, header) as kept:
        kept.complete(known.values())
        sampler = VoteSampler(split, header, kept, workers=workers(), budget_start=budget_start)
        last = shown(sampler.draw_votes([function]), header, total=images, title=title)
    records.write(path, header, sampler.rows())
    journal.unlink()
    return {
        "provider": header.provider,
        "workers": workers(),
        "images": images,
        "images_known": len(known),
        "draws": last.draws,
        "is_batch_invariant": invariant,
    }


def is_batch_invariant(function: Backend, x: Tensor) -> bool:
    """Whether scores of rows ``x`` have the same bits at other places, among other rows.

    Prints a note if they do not.
    """
    half = torch.arange(len(x)).flip(0) // 2  # rows of the first half, each twice, at other places
    with torch.inference_mode():
        x, z = x.to(function.device), voting.trial_normals(function, len(x))
        scores = function.scores(x, z)
        invariant = all(
            torch.equal(scores[rows], function.scores(x[rows], None if z is None else z[rows]))
            for rows in (half, len(x) - 1 - half)
        )
    if not invariant:
        print(
            f"note: {function.provider} rounds a row by its place in a batch, so a seed may give "
            "other votes where two scores nearly tie",
            file=sys.stderr,
        )
    return invariant


def shown(
    states: Iterator[SamplingProgress], header: Header, *, total: int, title: str
) -> SamplingProgress:
    """Consume the states of a sampling and show a progress bar; return the last state.

    Until an image is done, it shows the time that all draws of all images would take.
    """
    first = state = next(states)
    with progress.bar(total, state.images, title, " images") as shown:
        start = time.monotonic()
        for number, state in enumerate(states):
            rate = state.draws / max(time.monotonic() - start, 1e-9)
            text = f"{rate:,.0f} noisy images/s"
            if state.images == first.images:
                most = (total - state.images) * (header.n0 + header.n) - state.draws
                text += f", at most {shown.format_interval(min(most / rate, NEVER))} left"
            shown.set_postfix_str(text, refresh=number == 0)
            shown.update(state.images - shown.n)
    return state
