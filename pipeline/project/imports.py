"""Turns a checkpoint of the reference implementation into a run of params.yaml: ``rrcm import``.

import_denoiser.py imports denoisers, with the shared helpers of this file.
"""

import math
import re
import shutil
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from pipeline.project import artifacts
from pipeline.project.presets import written
from pipeline.runtime import graph
from rrcm.config import params, sections
from rrcm.config.sections import Model
from rrcm.core.errors import ConfigError
from rrcm.core.files import atomic
from rrcm.core.schema import Name, cast, read_yaml
from rrcm.models import rrcm_release
from rrcm.models.rrcm_release import Checkpoint
from rrcm.models.trained.base import checkpoint, classifier

FOLDER = Path("imported")
OF_CLASSIFIERS = ("classes", "sigma", "arch", "skip_norm")  # options of classifiers only
OF_DENOISERS = ("schedule", "rescale", "head_channels")
RECIPES = {True: "imported", False: "imported-skip-norm"}  # by final_norm


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """The options of ``rrcm import`` as they were typed; None or False where one was left out."""

    classes: int | None = None
    sigma: float | None = None
    arch: str | None = None
    heads: int | None = None
    image_size: int | None = None
    skip_norm: bool = False
    name: str | None = None
    denoiser: bool = False
    schedule: str | None = None
    rescale: bool = False
    head_channels: int | None = None


def import_checkpoint(file: Path, asked: Options) -> str:
    """Write ``imported/<name>/``, have DVC track it, and add a run to params.yaml.

    A classifier becomes a run of no epochs and an evaluation at its sigma, which `dvc repro`
    exports and certifies like any other. For an encoder, params.yaml stays as it is.

    Args:
        file: The checkpoint, of the reference implementation.
        asked: Options for a classifier or an encoder, already checked by `check_options`.

    Returns:
        A line to show; for an encoder, with the entries of a run that would fine-tune it.

    Raises:
        CheckpointError: ``file`` is no such checkpoint, or contradicts ``asked``.
        ConfigError: A name is taken, or params.yaml is for images of another size.
    """
    sigma = asked.sigma
    out = place(asked.name or f"{asked.arch or 'vit'}-imported-s{round(100 * sigma):03d}")
    if not (math.isfinite(sigma) and sigma > 0):
        raise ConfigError(f"--sigma: must be positive, got {sigma}")
    found = rrcm_release.read(
        file, arch=asked.arch, heads=asked.heads, final_norm=not asked.skip_norm
    )
    _check(file, found, classes=asked.classes, image_size=asked.image_size)
    entries = _entries(out.name, found, sigma=sigma)
    edited = None if found.classes is None else _edited(entries)
    with kept(out, partial(_write, found=found, sigma=sigma)):
        if edited is not None:
            with atomic(sections.PARAMS) as part:
                part.write_text(edited, encoding="utf-8", newline="\n")
                whole = params.load(part)
            artifacts.write(whole)
    if edited is None:
        return f"{out}: an encoder. To fine-tune it, add to params.yaml:\n\n{written(entries)}"
    evaluation = next(iter(entries["evals"]))
    return f"{out}: a classifier of {found.classes} classes; `dvc repro certify@{evaluation}`"


def check_options(asked: Options) -> None:
    """Refuse options of the other kind of import, and require those that have no default.

    Raises:
        ConfigError: Names the option.
    """
    kind, other, way = "a classifier", OF_DENOISERS, "add --denoiser"
    needed = ("classes", "sigma")
    if asked.denoiser:
        kind, other, way = "a denoiser", OF_CLASSIFIERS, "leave out --denoiser"
        needed = ("name", "schedule", "image_size")
    for name in other:
        if getattr(asked, name) not in (None, False):
            raise ConfigError(f"{_option(name)}: not for {kind}; leave it out, or {way}")
    for name in needed:
        if getattr(asked, name) is None:
            raise ConfigError(f"{_option(name)}: needed to import {kind}; see docs/importing.md")


def _option(parameter: str) -> str:
    return f"--{parameter.replace('_', '-')}"


def place(name: str) -> Path:
    """Return ``imported/<name>``, where nothing is yet.

    Raises:
        ConfigError: ``name`` is taken, or is not allowed as a name.
    """
    out = FOLDER / cast(name, Name, where="--name")
    if out.exists() or out.with_suffix(".dvc").exists():
        raise ConfigError(f"{out}: exists already; import under another --name")
    return out


@contextmanager
def kept(out: Path, write: Callable[[Path], None]) -> Iterator[None]:
    """Have ``write`` make the folder ``out``, whole or not at all, and DVC track it.

    If the block fails, or is interrupted, ``out`` is removed.
    """
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=FOLDER, prefix=".") as scratch:
        part = Path(scratch, "part")
        write(part)
        part.rename(out)
    try:
        graph.track(out)
        yield
    except BaseException:  # an interrupt too: half an import must not stay behind
        shutil.rmtree(out)
        out.with_suffix(".dvc").unlink(missing_ok=True)
        raise


def _check(file: Path, found: Checkpoint, *, classes: int, image_size: int | None) -> None:
    """Refuse a checkpoint that contradicts the options, or the image size of params.yaml."""
    if found.classes not in (None, classes):
        raise ConfigError(f"--classes: {file} knows {found.classes} classes, not {classes}")
    size, declared = found.shape["image_size"], params.load().data.size
    if image_size not in (None, size):
        raise ConfigError(f"--image-size: {file} is for images of {size} pixels, not {image_size}")
    if declared != size:
        raise ConfigError(
            f"data.size: {declared} in {sections.PARAMS}, but {file} is for images of {size} "
            "pixels; "
            "make the preset of its data current first, as with `rrcm preset cifar10`"
        )


def _write(part: Path, *, found: Checkpoint, sigma: float) -> None:
    """Write a checkpoint to the folder ``part``."""
    if found.classes is None:
        checkpoint.save(part / "encoder.safetensors", found.tensors)
        return
    described = {
        "classes": [str(c) for c in range(found.classes)],
        "condition": "nearest",
        "final_norm": found.final_norm,
        "sigma": sigma,
    }
    model = Model(architecture="vit", shape=found.shape)
    classifier.save(part, found.tensors, model=model, config=described)


def _entries(name: str, found: Checkpoint, *, sigma: float) -> dict[str, dict[str, Any]]:
    """Return the entries that params.yaml needs, by section."""
    recipe = RECIPES[found.final_norm] if found.classes else "finetune"
    run = {
        "architecture": "vit",
        "model": name,
        "method": "rrcm",
        "sigma": sigma,
        "seed": 0,
        "start": f"{FOLDER}/{name}",
        "recipe": recipe,
        "loss": {"lbd": 10.0 if sigma < 0.5 else 20.0, "eta": 0.5, "m": 2, "measure": "kl"},
    }
    evaluation = {"run": name, "architecture": "vit", "sigma": sigma}
    entries = {
        "models": {name: found.shape},
        "runs": {name: run},
        "evals": {f"{name}-e{round(100 * sigma):03d}": evaluation},
    }
    return entries | ({"recipes": {recipe: _untrained(found.final_norm)}} if found.classes else {})


def _untrained(final_norm: bool) -> dict[str, Any]:
    """Return a recipe of no epochs, so that its other values are not used."""
    return {
        "labels": 1.0,
        "epochs": 0,
        "batch_size": 1,
        "optimizer": {
            "algorithm": "adamw",
            "lr": 1.0e-4,
            "momentum": 0.9,
            "weight_decay": 0.0,
            "warmup": 0.0,
            "warmup_by": "step",
            "horizon": 1.0,
            "milestones": [],
            "gamma": 0.1,
            "clip": 1.0,
            "clip_warmup": True,
        },
        "layer_decay": 1.0,
        "head": "trainable",
        "final_norm": final_norm,
        "condition": "nearest",  # the grid point nearest to 2 sigma, as in its training
        "selection": "last",
        "validation_draws": 1,
        "augment": [],
        "mix": {"mixup": 0.0, "cutmix": 0.0, "prob": 1.0, "switch": 0.5, "smoothing": 0.0},
        "compute": {
            "devices": 1,
            "precision": "fp32",
            "accumulate": 1,
            "compile": False,
            "recompute": False,
            "workers": 0,
        },
    }


def _edited(entries: dict[str, dict[str, Any]]) -> str:
    """Return the text of params.yaml with entries added, every other byte as it was.

    Raises:
        ConfigError: A name is taken, or a section is not written in lines of its own.
    """
    text = sections.PARAMS.read_text(encoding="utf-8")
    wanted = read_yaml(sections.PARAMS)
    for section, added in entries.items():
        for key, value in added.items():
            there = wanted[section].get(key)
            if there is not None and (section != "recipes" or there != value):
                raise ConfigError(
                    f"{sections.PARAMS}: {section}.{key} exists already; import under another "
                    "--name, or rename it"
                )
            if there is None:
                wanted[section][key] = value
                text = _inserted(text, section, written({key: value}))
    try:
        as_wanted = YAML(typ="safe", pure=True).load(text) == wanted
    except YAMLError:
        as_wanted = False
    if not as_wanted:
        raise ConfigError(
            f"{sections.PARAMS}: an entry cannot be added to it as it is written; start each "
            "section "
            "at the left, and each of its entries two spaces further, as the presets do"
        )
    return text


def _inserted(text: str, section: str, entry: str) -> str:
    """Return ``text`` with an entry at the end of a section, ahead of the next one's comments."""
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith(f"{section}:")), len(lines))
    after = (i for i in range(start + 1, len(lines)) if re.match(r"[^\s#]", lines[i]))
    end = next(after, len(lines))
    while end > start + 1 and not re.match(r"\s+[^\s#]", lines[end - 1]):
        end -= 1
    return "\n".join([*lines[:end], textwrap.indent(entry, "  "), *lines[end:]]) + "\n"
