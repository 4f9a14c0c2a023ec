"""``rrcm import``: a checkpoint of the reference implementation becomes a run of params.yaml.

What every import shares is here too; denoisers are brought in by import_denoiser.py.
"""

import math
import re
import shutil
import tempfile
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from pipeline import graph
from pipeline.presets import written
from rrcm import checkpoints, classifier, config, params, reference
from rrcm.config import Model
from rrcm.errors import ConfigError
from rrcm.files import atomic
from rrcm.parsing import Name, cast, read_yaml
from rrcm.reference import Checkpoint

FOLDER = Path("imported")
OF_CLASSIFIERS = ("classes", "sigma", "arch", "skip_norm")  # options, by what they are about
OF_DENOISERS = ("schedule", "rescale", "head_channels")
SUFFICES = {True: "imported", False: "imported-skip-norm"}  # the recipe, by final_norm


def import_checkpoint(
    file: Path,
    *,
    arch: str | None,
    classes: int,
    sigma: float,
    name: str | None,
    skip_norm: bool,
    heads: int | None,
    image_size: int | None,
) -> str:
    """Write ``imported/<name>/``, have DVC keep it, and add a run to params.yaml; what was done.

    A classifier becomes a run of no epochs and an evaluation at ``sigma``, which `dvc repro`
    exports and certifies like any other. Of an encoder, the lines of a run that would fine-tune it
    are returned, and params.yaml stays as it is.

    Raises:
        CheckpointError: ``file`` is no such checkpoint, or not as asked for.
        ConfigError: A name is taken, or params.yaml is of other images.
    """
    out = place(name or f"{arch or 'vit'}-imported-s{round(100 * sigma):03d}")
    if not (math.isfinite(sigma) and sigma > 0):
        raise ConfigError(f"--sigma: must be positive, got {sigma}")
    found = reference.read(file, arch=arch, heads=heads, final_norm=not skip_norm)
    _check(file, found, classes=classes, image_size=image_size)
    entries = _entries(out.name, found, sigma=sigma)
    edited = None if found.classes is None else _edited(entries)
    with kept(out, partial(_write, found=found, sigma=sigma)):
        if edited is not None:
            with atomic(config.PARAMS) as part:
                part.write_text(edited, encoding="utf-8", newline="\n")
                params.load(part)
    if edited is None:
        return f"{out}: an encoder. To fine-tune it, add to params.yaml:\n\n{written(entries)}"
    evaluation = next(iter(entries["evals"]))
    return f"{out}: a classifier of {found.classes} classes; `dvc repro certify@{evaluation}`"


def check_options(given: Mapping[str, Any]) -> None:
    """Refuse options that are not about what is imported, and ask for those that have no default.

    Args:
        given: All options of the command, by parameter name; None or False where not given.

    Raises:
        ConfigError: Names the option.
    """
    what = "a denoiser" if given["denoiser"] else "a classifier"
    foreign = OF_CLASSIFIERS if given["denoiser"] else OF_DENOISERS
    for name in foreign:
        if given[name] not in (None, False):
            way = "leave out --denoiser" if given["denoiser"] else "add --denoiser"
            raise ConfigError(f"{_option(name)}: not of {what}; leave it out, or {way}")
    for name in ("name", "schedule", "image_size") if given["denoiser"] else ("classes", "sigma"):
        if given[name] is None:
            raise ConfigError(f"{_option(name)}: needed to import {what}; see docs/importing.md")


def _option(parameter: str) -> str:
    return f"--{parameter.replace('_', '-')}"


def place(name: str) -> Path:
    """``imported/<name>``, where nothing is yet.

    Raises:
        ConfigError: ``name`` is taken, or no name.
    """
    out = FOLDER / cast(name, Name, where="--name")
    if out.exists() or out.with_suffix(".dvc").exists():
        raise ConfigError(f"{out}: is there already; import under another --name")
    return out


@contextmanager
def kept(out: Path, write: Callable[[Path], None]) -> Iterator[None]:
    """Have ``write`` make the folder ``out``, whole or not at all, and DVC keep it.

    If the block fails, or is interrupted, ``out`` is gone again.
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
    """Refuse what is not as asked for, or not of the images that params.yaml is about."""
    if found.classes not in (None, classes):
        raise ConfigError(f"--classes: {file} knows {found.classes} classes, not {classes}")
    size, declared = found.shape["image_size"], params.load().data.size
    if image_size not in (None, size):
        raise ConfigError(f"--image-size: {file} is for images of {size} pixels, not {image_size}")
    if declared != size:
        raise ConfigError(
            f"data.size: {declared} in {config.PARAMS}, but {file} is for images of {size} pixels; "
            "make the preset of its data current first, as with `rrcm preset cifar10`"
        )


def _write(part: Path, *, found: Checkpoint, sigma: float) -> None:
    """Make the folder ``part`` of a checkpoint."""
    if found.classes is None:
        checkpoints.save(part / "encoder.safetensors", found.tensors)
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
    """What params.yaml needs to say, by section."""
    recipe = SUFFICES[found.final_norm] if found.classes else "finetune"
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
    """A recipe of no epochs: what it says of training is not used."""
    return {
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
        "condition": "nearest",  # the grid point nearest to 2 sigma, as it was trained
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
    """params.yaml with the entries added, all else as it was to the byte.

    Raises:
        ConfigError: A name is taken, or a section is not written in lines of its own.
    """
    text = config.PARAMS.read_text(encoding="utf-8")
    wanted = read_yaml(config.PARAMS)
    for section, added in entries.items():
        for key, value in added.items():
            there = wanted[section].get(key)
            if there is not None and (section != "recipes" or there != value):
                raise ConfigError(
                    f"{config.PARAMS}: {section}.{key} is there already; import under another "
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
            f"{config.PARAMS}: an entry cannot be added to it as it is written; start each section "
            "at the left, and each of its entries two spaces further, as the presets do"
        )
    return text


def _inserted(text: str, section: str, entry: str) -> str:
    """``text`` with an entry at the end of a section, before what sets off the next one."""
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith(f"{section}:")), len(lines))
    after = (i for i in range(start + 1, len(lines)) if re.match(r"[^\s#]", lines[i]))
    end = next(after, len(lines))
    while end > start + 1 and not re.match(r"\s+[^\s#]", lines[end - 1]):
        end -= 1
    return "\n".join([*lines[:end], textwrap.indent(entry, "  "), *lines[end:]]) + "\n"
