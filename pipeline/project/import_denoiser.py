"""Imports a released diffusion model, for ``rrcm import --denoiser``, to purify noisy images."""

import re
from functools import partial
from pathlib import Path
from typing import Any

from pipeline import checked
from pipeline.project import imports
from pipeline.project.imports import Options
from pipeline.project.presets import written
from rrcm.config.sections import Run
from rrcm.core.errors import ConfigError
from rrcm.diffusion import openai_unet
from rrcm.models.trained import denoiser
from rrcm.models.trained.denoiser import Schedule

NETWORK = "unet"


def import_denoiser(file: Path, asked: Options) -> str:
    """Write ``imported/<name>/``, and have DVC track it; params.yaml stays as it is.

    Args:
        file: A checkpoint of improved-diffusion or guided-diffusion.
        asked: Options that `check_options` has passed, for a denoiser. ``schedule`` is ``cosine:T``
            or ``linear:T``, of T steps; ``rescale`` is whether the network takes times rescaled to
            1000 steps.

    Returns:
        A line to show, with the entries that put the first run of params.yaml behind the denoiser,
        as DDS does.

    Raises:
        CheckpointError: ``file`` is no such checkpoint.
        ConfigError: The name is taken, or a value is not valid.
    """
    out = imports.place(asked.name)
    process = _schedule(asked.schedule, rescale=asked.rescale)
    found = openai_unet.read(
        file, image_size=asked.image_size, heads=asked.heads, head_channels=asked.head_channels
    )
    runs = checked.load().runs
    form = {"network": NETWORK, "shape": found.shape, "schedule": process}
    with imports.kept(out, partial(denoiser.save, tensors=found.tensors, **form)):
        pass
    size = " x ".join(str(found.shape[key]) for key in ("channels", "image_size", "image_size"))
    said = f"{out}: a denoiser of images of {size}."
    if not runs:
        return said
    entries = _entries(out, *next(iter(runs.items())))
    return f"{said} To put a classifier behind it, add to params.yaml:\n\n{written(entries)}"


def _schedule(text: str, *, rescale: bool) -> Schedule:
    """Parse ``cosine:4000``."""
    kind, _, steps = text.partition(":")
    if kind not in ("cosine", "linear") or not re.fullmatch(r"[1-9]\d{0,5}", steps):
        raise ConfigError(
            f"--schedule: {text!r}: cosine or linear, a colon, and the number of steps it was "
            "trained with, as cosine:4000"
        )
    try:
        return Schedule(kind=kind, steps=int(steps), rescale=rescale)
    except ConfigError as error:
        raise ConfigError(f"--schedule: {text!r}: {error}") from None


def _entries(out: Path, run: str, described: Run) -> dict[str, dict[str, Any]]:
    """Return the entries of params.yaml for a run behind the denoiser in ``out``, by section."""
    name, sigma = f"{run}-{out.name}", described.sigma
    purified = {
        "method": "dds",
        "sigma": sigma,
        "denoiser": out.as_posix(),
        "network": NETWORK,
        "run": run,
        "architecture": described.architecture,
        "purifier": "one_shot",
        "purify": {"rule": "first"},
        "votes": 1,
        "local": {"copies": 0, "sigma": 0.0, "fixed": True, "seed": 0},
    }
    evaluation = {"run": name, "architecture": described.architecture, "sigma": sigma}
    return {
        "purified": {name: purified},
        "evals": {f"{name}-e{round(100 * sigma):03d}": evaluation},
    }
