"""Sampling as the stage and the command line both do it: the backend, workers, progress."""

from pathlib import Path

import torch

from pipeline import progress
from rrcm import registry, sample
from rrcm.config import Eval, Sample
from rrcm.sample import Backend
from rrcm.shards import Split
from rrcm.votes import Header


def backend(evaluation: Eval, cfg: Sample) -> Backend:
    """The classifier of an evaluation in the configured backend, on the GPU if there is one."""
    return registry.load("backends", cfg.backend).Backend(
        Path("."),
        evaluation.run,
        precision=cfg.precision,
        device="cuda" if torch.cuda.is_available() else "cpu",
    )


def definition(evaluation: Eval, cfg: Sample) -> Header:
    """The header of the votes that `run` would write."""
    return sample.header(
        backend(evaluation, cfg), cfg.backend, evaluation.run, evaluation.sigma, cfg
    )


def run(
    evaluation: Eval, cfg: Sample, split: Split, path: Path, *, title: str
) -> dict[str, object]:
    """Sample the votes of an evaluation into ``path``, resuming it; says what ran them."""
    header = definition(evaluation, cfg)
    workers = 1 if torch.cuda.is_available() else torch.get_num_threads()
    images = len(sample.subset(cfg.subset, len(split.idx)))
    counts = sample.sample(lambda: backend(evaluation, cfg), split, header, path, workers=workers)
    progress.images(counts, total=images, draws=cfg.n0 + cfg.n, title=title)
    return {"provider": header.provider, "workers": workers, "images": images}
