"""Sampling as the stage and the command line both do it: workers, progress, the rate reached."""

from functools import partial
from pathlib import Path
from typing import Any

import torch

from pipeline import progress
from rrcm import registry
from rrcm.config import Eval, Sample
from rrcm.data.shards import Split
from rrcm.sample import header, sample, subset


def run(
    evaluation: Eval, cfg: Sample, split: Split, path: Path, notes: dict[str, Any], *, title: str
) -> Path:
    """Sample the votes of one evaluation into ``path``, resuming it; returns ``path``."""
    cuda = torch.cuda.is_available()
    workers = 1 if cuda else torch.get_num_threads()
    make = partial(
        registry.load("backends", cfg.backend).Backend,
        Path("."),
        evaluation.run,
        precision=cfg.precision,
        device="cuda" if cuda else "cpu",
    )
    definition = header(make(), cfg.backend, evaluation.run, evaluation.sigma, cfg)
    total, draws = len(subset(cfg.subset, len(split.idx))), cfg.n0 + cfg.n
    counts = sample(make, split, definition, path, workers=workers)
    progress.images(counts, total=total, draws=draws, title=title)
    notes |= {"provider": definition.provider, "workers": workers}
    return path
