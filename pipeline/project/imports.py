"""Puts checkpoints of others where params.yaml can name them: ``rrcm import``, ``import-denoiser``.

params.yaml stays as it is: the entries that a classifier needs are printed.
"""

import dataclasses
import math
import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from pipeline import checked
from pipeline.project.presets import written
from pipeline.runtime import with_dvc
from rrcm.config.sections import Model
from rrcm.core.errors import CheckpointError, ConfigError
from rrcm.core.files import atomic
from rrcm.core.ranges import require
from rrcm.core.schema import Name, cast
from rrcm.diffusion import openai_unet
from rrcm.inference.foreign import checkpoint as foreign
from rrcm.models import rrcm_release
from rrcm.models.field import reading, recognise
from rrcm.models.rrcm_release import Checkpoint
from rrcm.models.trained import denoiser
from rrcm.models.trained.base import checkpoint, classifier
from rrcm.models.trained.denoiser import Schedule

FOLDER = Path("imported")
RECIPES = {True: "imported", False: "imported-skip-norm"}  # by final_norm
NETWORK = "unet"  # of denoisers
# Networks of other repositories that are here, too: their names of layers, and ours.
NAMES = {"resnet": {"fc": "head"}, "lenet": {"fc1": "encoder.linear3", "fc2": "head"}}


def import_checkpoint(
    file: Path,
    *,
    sigma: float,
    heads: int | None,
    skip_norm: bool,
    name: str,
    normalise: str | None = None,
) -> str:
    """Write ``imported/<name>/``, and have DVC track it; the options are those of `rrcm import`.

    Returns:
        Lines to show: a classifier's run of no epochs and its evaluation, which `rrcm repro`
        exports and certifies like any other; for an encoder, a run that fine-tunes it.

    Raises:
        CheckpointError: ``file`` is no such checkpoint, or contradicts the options.
        ConfigError: A name is taken, or a value is not valid.
    """
    if not (math.isfinite(sigma) and sigma > 0):
        raise ConfigError(f"--sigma: must be positive, got {sigma}")
    whole = reading.read(file)
    if any("patch_embed." in key for key in whole.tensors):
        own = whole.found.tensors
        read = rrcm_release.recognised(file, own, heads=heads, final_norm=not skip_norm)
    else:
        read = _of_others(file, whole, normalise)
    size = str(read.shape.get("size", read.architecture))
    size = f"{read.architecture}-{size}" if size[0].isdigit() else size  # no name begins with one
    out = _place(name or f"{size}-imported-s{round(100 * sigma):03d}")
    entries = _entries(out.name, read, sigma=sigma)
    _keep(out, partial(_write, read=read, sigma=sigma))
    kind, purpose = "an encoder", "fine-tune"
    if read.classes is not None:
        kind, purpose = f"a classifier of {read.classes} classes", "certify"
    notes = "".join(f"{note}\n" for note in whole.notes)
    return f"{notes}{out}: {kind}. To {purpose} it, add to params.yaml:\n\n{written(entries)}"


def _of_others(file: Path, read: reading.Read, normalise: str | None) -> Checkpoint:
    """Return a classifier of another repository as one of a network of this project."""
    found = recognise.network(file, read.tensors)
    by, _ = foreign.normalisation(file, read, found, foreign.given(normalise, None, None))
    kind, _, size = found.name.lower().partition("-")
    channels, side, _ = found.shape
    shape: dict[str, Any] = {"image_size": side, "channels": channels}
    shape |= {"projector_width": 2048, "projector_dim": 256}  # of an encoder's pre-training
    if size:
        mean, std = ([*values] * (channels // len(values)) for values in by)
        shape |= {"size": size, "mean": mean, "std": std}
    try:
        plain = set(by[0]) == {0.0} and set(by[1]) == {1.0}
        require(kind in NAMES, "no network of this project")
        require(bool(size) or plain, "here it has no place for the mean and std of the file")
        tensors = dict[str, Tensor]()
        for key, tensor in found.network.state_dict().items():
            layer, _, rest = key.partition(".")
            tensors[f"{NAMES[kind].get(layer, f'encoder.{layer}')}.{rest}"] = tensor
        what: dict[str, Any] = {"classes": found.classes, "final_norm": False}
        model = Model(architecture=kind, shape=shape)
        built = classifier.build(model, condition="nearest", **what)
        checkpoint.restore(built, tensors, source=found.name)
    except (ConfigError, CheckpointError) as error:
        way = "`rrcm certify --checkpoint` takes it"
        raise CheckpointError(f"{file}: {found.name}: {error}; {way}") from None
    return Checkpoint(tensors=tensors, shape=shape, architecture=kind, **what)


def import_denoiser(
    file: Path,
    *,
    name: str,
    image_size: int,
    schedule: str,
    rescale: bool,
    heads: int | None,
    head_channels: int | None,
) -> str:
    """Like `import_checkpoint`, for `rrcm import-denoiser`; returns a line to show.

    Raises:
        CheckpointError: ``file`` is no such checkpoint.
        ConfigError: The name is taken, or a value is not valid.
    """
    out, process = _place(name), _schedule(schedule, rescale=rescale)
    tensors, shape = openai_unet.read(
        file, image_size=image_size, heads=heads, head_channels=head_channels
    )
    form = {"network": NETWORK, "shape": shape, "schedule": process}
    _keep(out, partial(denoiser.save, tensors=tensors, **form))
    size = " x ".join(str(shape[key]) for key in ("channels", "image_size", "image_size"))
    return f"{out}: a denoiser of images of {size}; entries of `purified` may name it"


def _place(name: str) -> Path:
    """Return ``imported/<name>``, where nothing is yet; refuse other names."""
    out = FOLDER / cast(name, Name, where="--name")
    if out.exists() or out.with_suffix(".dvc").exists():
        raise ConfigError(f"{out}: exists already; import under another --name")
    return out


def _keep(out: Path, write: Callable[[Path], None]) -> None:
    """Have ``write`` make the folder ``out``, and DVC track it; both, or nothing."""
    with atomic(out) as part:
        write(part)
    try:
        with_dvc.track(out)
    except BaseException:  # an interrupt too: half an import must not stay behind
        shutil.rmtree(out)
        out.with_suffix(".dvc").unlink(missing_ok=True)
        raise


def _write(part: Path, *, read: Checkpoint, sigma: float) -> None:
    if read.classes is None:
        checkpoint.save(part / "encoder.safetensors", read.tensors)
        return
    described = {
        "classes": [str(c) for c in range(read.classes)],
        "condition": "nearest",
        "final_norm": read.final_norm,
        "sigma": sigma,
    }
    model = Model(architecture=read.architecture, shape=read.shape)
    classifier.save(part, read.tensors, model=model, config=described)


def _entries(name: str, read: Checkpoint, *, sigma: float) -> dict[str, dict[str, Any]]:
    """Return the entries that params.yaml needs for a run of a checkpoint, by section."""
    recipe = RECIPES[read.final_norm] if read.classes else "finetune"
    ours = read.architecture == "vit"
    loss = {"lbd": 10.0 if sigma < 0.5 else 20.0, "eta": 0.5, "m": 2, "measure": "kl"}
    run = {
        "architecture": read.architecture,
        "model": name,
        "method": "rrcm" if ours else "gaussian",  # which the file does not show
        "sigma": sigma,
        "seed": 0,
        "start": f"{FOLDER}/{name}",
        "recipe": recipe,
        "loss": loss if ours else {},
    }
    evaluation = {"run": name, "architecture": read.architecture, "sigma": sigma}
    entries = {
        "models": {name: read.shape},
        "runs": {name: run},
        "evals": {f"{name}-e{round(100 * sigma):03d}": evaluation},
    }
    return entries | ({"recipes": {recipe: _untrained(read.final_norm)}} if read.classes else {})


def _untrained(final_norm: bool) -> dict[str, Any]:
    """Return the first recipe of params.yaml with no epochs, so that little else of it is used."""
    recipes = checked.load().recipes
    require(bool(recipes), "recipes: there is none; without epochs, an import takes one over")
    recipe = dataclasses.replace(
        next(iter(recipes.values())),
        epochs=0,
        final_norm=final_norm,
        condition="nearest",  # the grid point nearest to 2 sigma, as in its training
        selection="last",
    )
    return dataclasses.asdict(recipe)


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
