"""Training of a denoiser by any of the objectives, from scratch or from given weights."""

import copy
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from rrcm.config.denoisers import Denoising
from rrcm.config.sections import NONE
from rrcm.core import registry
from rrcm.core.ranges import require
from rrcm.core.schema import parse
from rrcm.data.splits.shards import Split
from rrcm.diffusion import condition
from rrcm.models.trained import denoiser
from rrcm.models.trained.base import checkpoint, classifier
from rrcm.models.trained.denoiser import Schedule, Times
from rrcm.noise import streams
from rrcm.training.engine.computing import Computed, prepare
from rrcm.training.engine.draws import Draws
from rrcm.training.engine.inputs.loading import Batch
from rrcm.training.engine.loop import Loss, State, Training, decayed, optimise


def start(cfg: Denoising, shape: dict[str, Any], *, device: str = "cpu") -> State:
    """State before the first step: the network, its EMA if ``cfg.ema``, and the optimizer.

    Raises:
        CheckpointError: The weights of ``cfg.start`` are missing, damaged or of another network.
        ConfigError: There is no such network, or it cannot have this ``shape``.
    """
    torch.manual_seed(streams.torch_seed(cfg.seed, streams.INITIALISE))
    network = denoiser.network(cfg.network, shape, where=f"models.{cfg.model}")
    if cfg.start != NONE:
        path = Path(cfg.start) / "model.safetensors"
        checkpoint.restore(network, checkpoint.load(path)[0], source=str(path))
    network.to(device)  # before the optimizer, whose state follows its parameters
    modules: dict[str, nn.Module] = {"network": network}
    if cfg.ema:
        modules["average"] = copy.deepcopy(network).requires_grad_(False)
    groups = decayed(network.parameters(), cfg.optimizer)
    return State(modules=modules, optimizer=optimise(groups, cfg.optimizer))


def result(state: State) -> nn.Module:
    """The trained network: its EMA, or without one the network after the last step."""
    return state.modules.get("average", state.modules["network"])


def schedule(cfg: Denoising) -> Schedule | None:
    """The denoiser's noise schedule; None if it predicts clean images for a single sigma."""
    return _objective(cfg)[1].schedule


def loss_of(called: nn.Module, guide: nn.Module | None, cfg: Denoising) -> Loss:
    """The loss of a denoiser's training.

    A ``guide`` that the objective does not look at tells the network its condition, that of the
    image itself (eq. 57a).
    """
    objective, constants = _objective(cfg)
    device = next(called.parameters()).device
    times = None if constants.schedule is None else Times(constants.schedule).to(device)
    random = any(isinstance(part, nn.Dropout) and part.p > 0 for part in called.modules())

    def loss(batch: Batch, draw: Draws) -> dict[str, Tensor]:
        x = batch.views["image"]
        if random:  # dropout draws from the global generator
            torch.manual_seed(int(draw.uniform(x)[0] * 2**24))
        network = called
        if guide is not None and not objective.GUIDED:
            with torch.no_grad():
                network = condition.Told(called, guide(x))
        value = objective.loss(
            network, x, batch.labels, guide=guide, times=times, draw=draw, cfg=constants
        )
        return {cfg.objective: value}

    return loss


def denoise(state: State, split: Split, cfg: Denoising, guide: nn.Module | None = None) -> Training:
    """The training of ``state`` for ``cfg.steps``; its `result` is a denoiser.

    ``guide`` is what `load_guide` returns; it is put in evaluation mode and frozen.

    Raises:
        ConfigError: The network does not support ``recompute``.
    """
    network = state.modules["network"].train()
    prepare(network, cfg.compute, name=cfg.network)
    called = Computed(network, cfg.compute)
    if guide is not None:
        guide = Computed(guide.eval().requires_grad_(False), cfg.compute)

    @torch.no_grad()
    def follow() -> dict[str, float]:
        """Update the EMA after a step; buffers are copied."""
        if cfg.ema:
            average = state.modules["average"]
            torch._foreach_lerp_([*average.parameters()], [*network.parameters()], 1 - cfg.ema)
            for buffer, current in zip(average.buffers(), network.buffers(), strict=True):
                buffer.copy_(current)
        return {}

    return Training(
        state=state,
        called=[called],
        loss=loss_of(called, guide, cfg),
        after=follow,
        split=split,
        augment={"image": cfg.augment},
        where="denoisers",
        steps=cfg.steps,
        batch_size=cfg.batch_size,
        optimizer=cfg.optimizer,
        compute=cfg.compute,
        seed=cfg.seed,
    )


def load_guide(
    cfg: Denoising, shape: dict[str, Any], split: Split, *, device: str = "cpu"
) -> nn.Module | None:
    """Load the guide ``cfg.guide``, or None if there is none.

    ``models/<run>`` is a classifier of denoised images, at the sigma of its training.
    ``pretrained/<name>`` is the encoder whose representations, standardised over ``split``, a
    conditional network is told: a `Condition`. ``shape`` is that of the denoiser's network.

    Raises:
        ConfigError: The objective or the network ask for another guide, or for another size.
        CheckpointError: The guide is missing or damaged.
    """
    objective, _ = _objective(cfg)
    numbers = shape.get("condition", 0)
    ways = "models/<run>" if objective.GUIDED else "pretrained/<name>" if numbers else NONE
    require(
        cfg.guide.partition("/")[0] == ways.partition("/")[0],
        f"denoisers: guide: {cfg.objective} with a network of condition {numbers} asks for {ways}; "
        f"got {cfg.guide}",
    )
    if ways == NONE:
        return None
    if not objective.GUIDED:
        told = condition.load(Path(cfg.guide), split, device=device)
        require(
            len(told.mean) == numbers,
            f"denoisers: guide: {cfg.guide} has {len(told.mean)} dimensions; set condition of "
            f"models.{cfg.model}, which is {numbers}, to that",
        )
        return told
    network, config = classifier.load(Path(cfg.guide))
    for key in ("channels", "image_size"):
        own = config["model"]["shape"].get(key)
        require(
            shape.get(key, own) == own,
            f"denoisers: guide: {cfg.guide} has {key} {own}, but models.{cfg.model}, whose "
            f"pictures it looks at, has {shape.get(key)}; name a run of the same",
        )
    return network.fix(config["sigma"]).to(device)


def _objective(cfg: Denoising) -> tuple[ModuleType, Any]:
    """The objective's module and its constants."""
    objective = registry.load("denoiser_objectives", cfg.objective)
    return objective, parse(cfg.loss, objective.Config, where="denoisers: loss")
