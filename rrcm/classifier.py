"""The base network of a smoothed classifier, an encoder and a linear head, and its form on disk."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rrcm import checkpoints, noise, registry, schedules
from rrcm.config import Model
from rrcm.errors import CheckpointError
from rrcm.files import read_json, write_json
from rrcm.parsing import parse

NEAREST = {"points": 81, "t_min": 0.002, "t_max": 80.0, "rho": 7.0}  # the paper's final grid


class Classifier(nn.Module):
    """The contract of the certifier: (noisy pixels [B, C, H, W], sigma [] ) -> scores [B, K]."""

    def __init__(self, encoder: nn.Module, *, width: int, classes: int, condition: str) -> None:
        """Put a head that starts near uniform on ``encoder``.

        ``condition`` says which noise level the encoder is told: ``exact`` the true one, t = 2
        sigma; ``nearest`` the closest point of the paper's 81-point grid, as its code does.
        """
        super().__init__()
        self.encoder = encoder
        self.head = nn.Linear(width, classes)
        nn.init.trunc_normal_(self.head.weight, std=2e-5)
        nn.init.zeros_(self.head.bias)
        grid = schedules.karras_grid(**NEAREST) if condition == "nearest" else torch.empty(0)
        self.register_buffer("grid", grid.float(), persistent=False)

    def forward(self, x: Tensor, sigma: Tensor) -> Tensor:
        """Scores [B, K]."""
        if len(self.grid):
            sigma = noise.to_sigma(self.grid[(self.grid - noise.to_time(sigma)).abs().argmin()])
        return self.head(self.encoder(x, sigma))

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Layers from the input to the output, in the form that timm's layer decay asks for."""
        return {name: rf"^encoder\.{pattern}" for name, pattern in self.encoder.LAYERS.items()}


class Told(nn.Module):
    """A classifier as a function of pixels alone, told one sigma: pixels [B, C, H, W] to scores."""

    def __init__(self, network: nn.Module, sigma: float) -> None:
        """``network`` maps (pixels, sigma []) to scores [B, K]."""
        super().__init__()
        self.network, self.sigma = network, sigma

    def forward(self, x: Tensor) -> Tensor:
        """Scores [B, K]."""
        return self.network(x, torch.full((), self.sigma, dtype=x.dtype, device=x.device))


def build(model: Model, *, classes: int, condition: str, final_norm: bool) -> Classifier:
    """An untrained classifier of a declared network (``models.<name>`` in params.yaml).

    Without ``final_norm`` the head reads the cls token as the last block leaves it.
    """
    module = registry.load("models", model.architecture)
    cfg = parse(model.shape, module.Config, where="models: shape")
    encoder = module.Encoder(cfg, final_norm=final_norm)
    return Classifier(encoder, width=cfg.width, classes=classes, condition=condition)


def begin(network: Classifier, folder: Path) -> dict[str, Any]:
    """Give ``network`` the weights that a training starts from; the ``params`` that made them.

    These are sections of params.yaml by name, none where the file does not say them.

    ``folder`` holds ``model.safetensors``, a whole classifier, or ``encoder.safetensors``, whose
    last LayerNorm is left out where ``network`` has none.

    Raises:
        CheckpointError: There is neither, or it is of another architecture; ``network`` is as it
            was.
    """
    whole, encoder = folder / "model.safetensors", folder / "encoder.safetensors"
    if whole.exists():
        tensors, about = checkpoints.load(whole)
        checkpoints.restore(network, tensors, source=str(whole))
    elif encoder.exists():
        tensors, about = checkpoints.load(encoder)
        if isinstance(network.encoder.norm, nn.Identity):
            tensors = {name: t for name, t in tensors.items() if not name.startswith("norm.")}
        checkpoints.restore(network.encoder, tensors, source=str(encoder))
    else:
        raise CheckpointError(
            f"{folder}: holds neither model.safetensors nor encoder.safetensors; make it with "
            "`dvc repro` or `rrcm import`"
        )
    try:
        return dict(json.loads(about.get("params", "{}")))
    except (ValueError, TypeError) as error:
        raise CheckpointError(f"{folder}: params in the metadata: damaged ({error!r})") from None


def save(folder: Path, tensors: dict[str, Tensor], *, model: Model, config: dict[str, Any]) -> None:
    """Write ``model.safetensors`` and, beside it, the ``config.json`` that rebuilds the network.

    ``config`` has ``classes`` (names), ``condition`` and ``final_norm`` at least; all of it is
    kept. Its ``params`` are the sections of params.yaml that made the classifier, by name.
    """
    checkpoints.save(folder / "model.safetensors", tensors)
    write_json(folder / "config.json", {"model": dataclasses.asdict(model), **config})


def load(folder: Path) -> tuple[Classifier, dict[str, Any]]:
    """The classifier in ``folder``, in evaluation mode, and its ``config.json``."""
    path = folder / "config.json"
    try:
        config = read_json(path, CheckpointError)
        model = parse(config["model"], Model, where=f"{path}: model")
        classes, condition = len(config["classes"]), config["condition"]
        final_norm = config["final_norm"]
    except (KeyError, TypeError) as error:
        raise CheckpointError(f"{path}: damaged ({error!r})") from None
    network = build(model, classes=classes, condition=condition, final_norm=final_norm)
    path = folder / "model.safetensors"
    checkpoints.restore(network, checkpoints.load(path)[0], source=str(path))
    return network.eval().requires_grad_(False), config
