"""Saves and loads purified classifiers, in ``models/<name>/`` like every trained network.

Guarantee: ``model.safetensors`` holds everything that defines the function, and its SHA-256
identifies the function in votes files.
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rrcm.config.certification import Local, Purified
from rrcm.core import registry
from rrcm.core.errors import CheckpointError
from rrcm.core.files import read_config, sha256, write_json
from rrcm.core.ranges import require
from rrcm.core.schema import parse
from rrcm.models.trained import denoiser, ensembles
from rrcm.models.trained.base import checkpoint
from rrcm.models.trained.diffusion_process import Denoiser
from rrcm.models.trained.purified_classifier import Precise, PurifiedClassifier, Resize
from rrcm.noise import streams

FUNCTION = ("purifier", "purify", "votes", "local")  # keys of `Purified` that define the function


def save(
    folder: Path,
    cfg: Purified,
    *,
    root: Path,
    pictures: tuple[int, ...],
    code: list[str],
    params: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Write a denoiser and a classifier as one network; returns its ``config.json``.

    ``model.safetensors`` holds everything that defines the function, and its SHA-256 identifies the
    function in votes files. Nothing is written if the parts do not fit together.

    Args:
        folder: Where to write ``model.safetensors`` and ``config.json``.
        cfg: The denoiser, the run, and how they are combined.
        root: The folder of ``denoisers/`` and ``models/``.
        pictures: Shape [C, H, W] of the pictures to purify.
        code: Files whose SHA-256 is recorded, so that later stages depend on them.
        params: Sections of params.yaml that made it, by name; recorded with those of its parts.

    Raises:
        CheckpointError: The denoiser or the run is missing or damaged.
        ConfigError: They, or the constants of ``cfg``, do not fit together.
    """
    behind, run = root / cfg.denoiser, root / "models" / cfg.run
    configs = [read_config(path) for path in (behind, run)]
    tensors = {
        f"{name}.{key}": tensor
        for name, path in (("denoiser", behind), ("classifier", run))
        for key, tensor in checkpoint.load(path / "model.safetensors")[0].items()
    }
    made_with = {k: v for config in configs for k, v in config.pop("params", {}).items()}
    config = {
        "classes": _of(configs[1], "classes", run),
        "sigma": cfg.sigma,
        "pictures": [*pictures],
        "purified": {key: value for key, value in asdict(cfg).items() if key in FUNCTION},
        "names": {"denoiser": cfg.denoiser, "run": cfg.run},
        "denoiser": configs[0],
        "classifier": configs[1],
        "code": {file: sha256(root / file) for file in code},
        "params": made_with | (params or {}),
    }
    if cfg.local.copies and cfg.local.fixed:
        tensors["local"] = _copies(cfg.local, ensembles.pictures(_first(configs[1])))
    rebuild(config, folder, tensors)
    kept = ("pictures", "purified", "denoiser", "classifier")
    function = json.dumps([config[key] for key in kept], sort_keys=True)
    checkpoint.save(folder / "model.safetensors", tensors, {"purified": function})
    write_json(folder / "config.json", config)
    return config


def about(root: Path, run: str) -> dict[str, Any]:
    """The ``weights`` digest of ``root/models/<run>``, and the ``params`` that made it."""
    folder = root / "models" / run
    params = read_config(folder).get("params", {})
    return {"weights": sha256(folder / "model.safetensors"), "params": params}


def load(folder: Path) -> tuple[nn.Module, dict[str, Any]]:
    """A run, an ensemble or a purified classifier for inference, and its ``config.json``.

    It maps (x, sigma) to scores, or (x, sigma, z) if it has ``normals``, and has `fix`.

    Raises:
        CheckpointError: It is missing or damaged.
    """
    config = read_config(folder)
    if "purified" not in config:
        return ensembles.load(folder)
    return rebuild(config, folder), config


def rebuild(
    config: dict[str, Any],
    folder: Path,
    tensors: dict[str, Tensor] | None = None,
    *,
    trained: bool = False,
) -> PurifiedClassifier:
    """The function of a ``config.json``, with the classifier as trained or in inference form.

    ``tensors`` are its weights, by default those in ``folder``, which errors name.

    Raises:
        CheckpointError: ``config`` or the weights are missing or damaged.
        ConfigError: The parts do not fit together.
    """
    path = folder / "model.safetensors"
    if tensors is None:
        tensors, _ = checkpoint.load(path)
    try:
        made, sigma = config["purified"], config["classifier"]["sigma"]
        local = parse(made["local"], Local, where="purified: local")
        _, _, _ = before = config["pictures"]
        after = ensembles.pictures(_first(config["classifier"]))
        purifier, votes = registry.load("purifiers", made["purifier"]), made["votes"]
        constants = parse(made["purify"], purifier.Config, where="purified: purify")
        clean = config["denoiser"]
        channels = clean["shape"]["channels"]
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{folder / 'config.json'}: damaged ({error!r})") from None
    asked = purifier.normals(constants)
    _fits(before, after, channels, local, votes, asked)
    behind = denoiser.build(clean, ensembles.within(tensors, "denoiser."), source=str(path))
    if isinstance(behind, Denoiser):
        behind.network = Precise(behind.network)
    whole = behind if isinstance(behind, Denoiser) else Precise(behind)
    network: Any = ensembles.rebuild(
        config["classifier"], folder, ensembles.within(tensors, "classifier.")
    )
    if not trained:
        network = ensembles.inference(network, config["classifier"])
    fields = votes * (asked + (0 if local.fixed else local.copies))
    return PurifiedClassifier(
        purifier.Purifier(whole, constants),
        network.fix(sigma),
        Resize(before[1], after[1]),
        votes=votes,
        normals=(fields, *before) if fields else (),
        local=local,
        copies=tensors.get("local"),
    ).eval()


def _fits(
    before: list[int], after: list[int], channels: int, local: Local, votes: int, asked: int
) -> None:
    """Refuse parts that do not fit together."""
    require(
        before[0] == after[0] == channels,
        f"purified: pictures have {before[0]} channels, the denoiser {channels}, the classifier "
        f"{after[0]}; all must be the same",
    )
    fresh = local.copies > 0 and not local.fixed
    require(
        not fresh or before == after,
        f"local.fixed: noise of each draw has the size of the pictures, {before[1]}, but the "
        f"classifier takes {after[1]}; set fixed: true",
    )
    require(
        votes == 1 or asked + fresh > 0,
        f"votes: {votes} votes without randomness are all the same; set it to 1, or take the "
        "purifier multi_step with steps above 1",
    )


def _copies(local: Local, shape: list[int]) -> Tensor:
    """The fixed noise delta [m, C, H, W] of a seed."""
    draws = torch.arange(local.copies)
    return streams.gaussian(
        local.seed, torch.zeros_like(draws), draws, tuple(shape), stream=streams.LOCAL
    )


def _first(config: dict[str, Any]) -> dict[str, Any]:
    """The ``config.json`` of a run, or of an ensemble's first member."""
    return config["members"][0] if "ensemble" in config else config


def _of(config: dict[str, Any], key: str, folder: Path) -> Any:
    if key not in config:
        raise CheckpointError(f"{folder / 'config.json'}: damaged (no {key!r})")
    return config[key]
