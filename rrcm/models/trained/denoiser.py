"""Trained denoisers, a network with a noise schedule: building, saving and loading."""

import dataclasses
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from rrcm.core import registry
from rrcm.core.errors import CheckpointError, ConfigError
from rrcm.core.files import read_config, write_json
from rrcm.core.schema import parse
from rrcm.models.trained.base import checkpoint
from rrcm.models.trained.diffusion_process import Denoiser, Schedule, Times


def network(name: str, shape: dict[str, Any], *, where: str) -> nn.Module:
    """An untrained network of rrcm/diffusion/networks/``name``.py with the given ``shape``.

    Raises:
        ConfigError: There is no such network, or ``shape``, found at ``where``, is invalid.
    """
    module = registry.load("denoiser_networks", name)
    return module.Network(parse(shape, module.Config, where=where))


def as_config(network: str, shape: dict[str, Any], schedule: Schedule | None) -> dict[str, Any]:
    """The part of ``config.json`` from which `build` makes a denoiser."""
    return {
        "network": network,
        "shape": shape,
        "schedule": None if schedule is None else dataclasses.asdict(schedule),
    }


def build(config: dict[str, Any], tensors: dict[str, Tensor], *, source: str) -> nn.Module:
    """The denoiser of a ``config`` with the weights ``tensors``, in evaluation mode, frozen.

    A `diffusion_process.Denoiser` if ``config`` has a schedule, else the network alone, which
    predicts the clean image in pixel units. ``tensors`` are named as the network's parameters;
    errors name ``source``, their file.

    Raises:
        CheckpointError: ``config`` is invalid, or ``tensors`` are of another network.
    """
    try:
        name, shape, declared = (config[key] for key in ("network", "shape", "schedule"))
        found = network(name, shape, where="shape")
        schedule = None if declared is None else parse(declared, Schedule, where="schedule")
    except (ConfigError, KeyError, TypeError) as error:
        raise CheckpointError(f"{source}: config.json: damaged ({error!r})") from None
    checkpoint.restore(found, tensors, source=source)
    whole = found if schedule is None else Denoiser(found, Times(schedule))
    return whole.eval().requires_grad_(False)


def save(
    folder: Path,
    tensors: dict[str, Tensor],
    *,
    network: str,
    shape: dict[str, Any],
    schedule: Schedule | None,
    params: dict[str, Any] | None = None,
) -> None:
    """Write ``model.safetensors`` and, beside it, the ``config.json`` that rebuilds the denoiser.

    ``tensors`` are the state dict of the network alone; without a ``schedule`` it predicts the
    clean image itself. ``params`` are the sections of params.yaml that made it, by name.
    """
    checkpoint.save(folder / "model.safetensors", tensors)
    config = as_config(network, shape, schedule)
    write_json(folder / "config.json", config | ({"params": params} if params else {}))


def load(folder: Path) -> tuple[nn.Module, dict[str, Any]]:
    """The denoiser in ``folder``, as `build` makes it, and its ``config.json``.

    Raises:
        CheckpointError: Either file is missing or damaged, or they do not belong together.
    """
    config = read_config(folder)
    weights = folder / "model.safetensors"
    return build(config, checkpoint.load(weights)[0], source=str(weights)), config
