"""``rrcm import --denoiser``: a released diffusion model, for classifiers to stand behind."""

import re
from functools import partial
from pathlib import Path
from typing import Any

from pipeline import checked, imports
from pipeline.presets import written
from rrcm import denoiser, unets
from rrcm.config import Run
from rrcm.diffusion import Schedule
from rrcm.errors import ConfigError

NETWORK = "unet"


def import_denoiser(
    file: Path,
    *,
    name: str,
    schedule: str,
    rescale: bool,
    image_size: int,
    heads: int | None,
    head_channels: int | None,
) -> str:
    """Write ``imported/<name>/``, and have DVC keep it; what was done, and lines that use it.

    params.yaml stays as it is: the lines put its first run behind the denoiser, as DDS does.

    Args:
        file: What improved-diffusion or guided-diffusion wrote.
        name: Of the denoiser.
        schedule: ``cosine:T`` or ``linear:T``, of T steps.
        rescale: Whether the network is told times as if there were 1000 steps.
        image_size: Of the images that it was trained on.
        heads: Into how many heads its attention is divided; or
        head_channels: how many channels each has.

    Raises:
        CheckpointError: ``file`` is no such checkpoint.
        ConfigError: The name is taken, or an option makes no sense.
    """
    out = imports.place(name)
    process = _schedule(schedule, rescale=rescale)
    found = unets.read(file, image_size=image_size, heads=heads, head_channels=head_channels)
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
    """``cosine:4000`` as a schedule."""
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
    """What params.yaml would say of a run behind the denoiser in ``out``, by section."""
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
