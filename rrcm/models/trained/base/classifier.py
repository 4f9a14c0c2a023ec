"""The base classifier of smoothing, an encoder and a linear head, and its files."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rrcm.config.sections import Model
from rrcm.core import registry
from rrcm.core.errors import CheckpointError
from rrcm.core.files import read_config, write_json
from rrcm.core.schema import parse
from rrcm.models.trained.base import checkpoint
from rrcm.noise import levels, units

POINTS, NEAREST = 81, {"t_min": 0.002, "t_max": 80.0, "rho": 7.0}  # the paper's final grid


class Classifier(nn.Module):
    """Base classifier: (noisy pixels [B, C, H, W], sigma []) -> scores [B, K]."""

    grid: Tensor  # [points] or [0]

    def __init__(self, encoder: nn.Module, *, width: int, classes: int, condition: str) -> None:
        """Put a linear head on ``encoder``.

        Where ``encoder.head_init`` is ``uniform``, predictions start near uniform; where it is
        ``pytorch``, the head starts as PyTorch initialises a linear layer.

        ``condition`` is the noise level that the encoder gets: ``exact``, t = 2 sigma, or
        ``nearest``, the closest point of the paper's 81-point grid, as in the paper's code.
        """
        super().__init__()
        self.encoder = encoder
        self.head = nn.Linear(width, classes)
        if encoder.head_init == "uniform":
            nn.init.trunc_normal_(self.head.weight, std=2e-5)
            nn.init.zeros_(self.head.bias)
        nearest = condition == "nearest"
        grid = levels.karras_grid(POINTS, **NEAREST) if nearest else torch.empty(0)
        self.register_buffer("grid", grid.float(), persistent=False)

    def forward(self, x: Tensor, sigma: Tensor) -> Tensor:
        """Scores [B, K]."""
        if len(self.grid):
            sigma = units.to_sigma(self.grid[(self.grid - units.to_time(sigma)).abs().argmin()])
        return self.head(self.encoder(x, sigma))

    def fix(self, sigma: float) -> "AtSigma":
        """This classifier as a function of pixels, at one ``sigma``."""
        return AtSigma(self, sigma)

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Patterns of layers from input to output, for timm's layer decay."""
        layers: Any = self.encoder.LAYERS
        return {name: rf"^encoder\.{pattern}" for name, pattern in layers.items()}


class AtSigma(nn.Module):
    """A classifier at one sigma: maps pixels [B, C, H, W], and normal numbers z, to scores."""

    def __init__(
        self, network: nn.Module, sigma: float, *, dtype: torch.dtype | None = None
    ) -> None:
        """``network`` maps (pixels, sigma [], z if any) to scores [B, K].

        Sigma is a tensor of ``dtype``, by default that of the pixels.
        """
        super().__init__()
        self.network, self.sigma, self.dtype = network, sigma, dtype

    def forward(self, x: Tensor, *z: Tensor) -> Tensor:
        """Scores [B, K]."""
        sigma = torch.full((), self.sigma, dtype=self.dtype or x.dtype, device=x.device)
        return self.network(x, sigma, *z)


class Unconditional(nn.Module):
    """A network of pixels as one of (pixels, sigma [], not used), the same at any sigma."""

    def __init__(self, fixed: nn.Module) -> None:
        super().__init__()
        self.fixed = fixed

    def forward(self, x: Tensor, sigma: Tensor) -> Tensor:
        """Scores [B, K]."""
        return self.fixed(x)

    def fix(self, sigma: float) -> nn.Module:
        """The network itself."""
        return self.fixed


def build(model: Model, *, classes: int, condition: str, final_norm: bool) -> Classifier:
    """An untrained classifier of a declared network (``models.<name>`` in params.yaml).

    Without ``final_norm`` the head reads the encoder's output before its last LayerNorm.
    """
    module = registry.load("networks", model.architecture)
    cfg = parse(model.shape, module.Config, where="models: shape")
    encoder = module.Encoder(cfg, final_norm=final_norm)
    return Classifier(encoder, width=cfg.width, classes=classes, condition=condition)


def begin(network: Classifier, folder: Path) -> dict[str, Any]:
    """Load the initial weights of a training into ``network``; returns their recorded params.

    Params are the sections of params.yaml that made the weights, by name, or empty if the file has
    none. ``folder`` holds ``model.safetensors``, a whole classifier, or ``encoder.safetensors``,
    whose last LayerNorm is dropped if ``network`` has none.

    Raises:
        CheckpointError: Neither file exists, or it is of another architecture; ``network`` is
            unchanged.
    """
    whole, encoder = folder / "model.safetensors", folder / "encoder.safetensors"
    if whole.exists():
        tensors, about = checkpoint.load(whole)
        checkpoint.restore(network, tensors, source=str(whole))
    elif encoder.exists():
        tensors, about = checkpoint.load(encoder)
        own = network.encoder.state_dict()
        tensors = {n: t for n, t in tensors.items() if n in own or not n.startswith("norm.")}
        checkpoint.restore(network.encoder, tensors, source=str(encoder))
    else:
        raise CheckpointError(
            f"{folder}: holds neither model.safetensors nor encoder.safetensors; make it with "
            "`rrcm repro` or `rrcm import`"
        )
    try:
        return dict(json.loads(about.get("params", "{}")))
    except (ValueError, TypeError) as error:
        raise CheckpointError(f"{folder}: params in the metadata: damaged ({error!r})") from None


def save(folder: Path, tensors: dict[str, Tensor], *, model: Model, config: dict[str, Any]) -> None:
    """Write ``model.safetensors``, and the ``config.json`` from which `load` builds the network.

    ``config`` has at least ``classes`` (names), ``condition`` and ``final_norm``; its ``params``
    are the sections of params.yaml that made the classifier, by name.
    """
    checkpoint.save(folder / "model.safetensors", tensors)
    write_json(folder / "config.json", {"model": dataclasses.asdict(model), **config})


def described(config: dict[str, Any], *, where: str) -> Classifier:
    """The classifier of a ``config.json`` at ``where``, untrained, in evaluation mode, frozen.

    Raises:
        CheckpointError: ``config`` is damaged.
        ConfigError: It has keys of another version.
    """
    try:
        model = parse(config["model"], Model, where=f"{where}: model")
        classes, condition = len(config["classes"]), config["condition"]
        final_norm = config["final_norm"]
    except (KeyError, TypeError) as error:
        raise CheckpointError(f"{where}: damaged ({error!r})") from None
    network = build(model, classes=classes, condition=condition, final_norm=final_norm)
    return network.eval().requires_grad_(False)


def load(folder: Path) -> tuple[Classifier, dict[str, Any]]:
    """The classifier in ``folder``, in evaluation mode, and its ``config.json``."""
    config, path = read_config(folder), folder / "model.safetensors"
    network = described(config, where=str(folder / "config.json"))
    checkpoint.restore(network, checkpoint.load(path)[0], source=str(path))
    return network, config
