"""Training of a denoiser, by any objective of rrcm/denoising/, from scratch or from weights."""

import copy
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from rrcm import (
    batches,
    checkpoints,
    classifier,
    condition,
    denoiser,
    distributed,
    loading,
    noise,
    registry,
)
from rrcm.computing import Computed
from rrcm.config import NOTHING, require
from rrcm.denoiser_config import Denoising
from rrcm.diffusion import Schedule, Times
from rrcm.draws import Draws
from rrcm.loading import Batch
from rrcm.loop import State, decayed, optimise, train
from rrcm.parsing import parse
from rrcm.shards import Split


def start(cfg: Denoising, shape: dict[str, Any], *, device: str = "cpu") -> State:
    """The state before the first step: a network, its average if there is one, and an optimizer.

    Raises:
        CheckpointError: The weights of ``cfg.start`` are missing, damaged or of another network.
        ConfigError: There is no such network, of such a ``shape``.
    """
    torch.manual_seed(noise.torch_seed(cfg.seed, noise.INITIALISE))
    network = denoiser.network(cfg.network, shape, where=f"models.{cfg.model}")
    if cfg.start != NOTHING:
        path = Path(cfg.start) / "model.safetensors"
        checkpoints.restore(network, checkpoints.load(path)[0], source=str(path))
    network.to(device)  # before the optimizer, whose state follows its parameters
    modules: dict[str, nn.Module] = {"network": network}
    if cfg.ema:
        modules["average"] = copy.deepcopy(network).requires_grad_(False)
    groups = decayed(network.parameters(), cfg.optimizer)
    return State(modules=modules, optimizer=optimise(groups, cfg.optimizer))


def result(state: State) -> nn.Module:
    """The network that training leaves: the average, or without one that of the last step."""
    return state.modules.get("average", state.modules["network"])


def schedule(cfg: Denoising) -> Schedule | None:
    """Which noise the denoiser knows; None where it predicts the clean image of one sigma."""
    objective, constants = _objective(cfg)
    return objective.schedule(constants)


def denoise(
    state: State, split: Split, cfg: Denoising, guide: nn.Module | None = None
) -> Iterator[State]:
    """Run from ``state.step`` to ``cfg.steps``; yields the state after every step.

    ``guide`` is what `load_guide` returns, or another module of its kind. It is put in evaluation
    mode and frozen.

    Raises:
        ConfigError: The guide is not what the objective looks at, devices cannot share a batch, or
            the images are not of the network's size.
    """
    objective, constants = _objective(cfg)
    network = state.modules["network"].train()
    _prepare(network, cfg)
    called = Computed(network, cfg.compute)
    if guide is not None:
        guide = Computed(guide.eval().requires_grad_(False), cfg.compute)
    device = next(network.parameters()).device
    declared = objective.schedule(constants)
    times = None if declared is None else Times(declared).to(device)
    random = any(isinstance(part, nn.Dropout) and part.p > 0 for part in network.modules())

    def loss(batch: Batch, draw: Draws) -> dict[str, Tensor]:
        x = batch.views["image"]
        if random:  # dropout draws from the global generator
            torch.manual_seed(int(draw.uniform(x)[0] * 2**24))
        found = objective.loss(
            called, x, batch.labels, guide=guide, times=times, draw=draw, cfg=constants
        )
        return {cfg.objective: found}

    stream = loading.batches(
        split,
        {"image": cfg.augment},
        batch_size=cfg.batch_size,
        seed=cfg.seed,
        start=state.step,
        stop=cfg.steps,
        device=device,
        workers=cfg.compute.workers,
        where="denoisers",
    )
    for _ in train(
        state,
        stream,
        loss,
        network=network,
        steps=cfg.steps,
        per_epoch=batches.steps_per_epoch(len(split.labels), batch_size=cfg.batch_size),
        optimizer=cfg.optimizer,
        accumulate=cfg.compute.accumulate,
        seed=cfg.seed,
    ):
        state.took([called], batch_size=cfg.batch_size)
        if cfg.ema:
            _follow(state.modules["average"], network, momentum=cfg.ema)
        yield state


class Blank(nn.Module):
    """A denoiser's network of (pixels, told) alone, told zeros of whatever condition it has.

    To count operations by, which are the same.
    """

    def __init__(self, network: nn.Module, shape: dict[str, Any]) -> None:
        """``shape`` is that of ``network``."""
        super().__init__()
        self.network, self.numbers = network, shape.get("condition", 0)

    def forward(self, x: Tensor, told: Tensor) -> Tensor:
        """What ``network`` makes of ``x`` [B, C, H, W], told [] or [B]."""
        condition = [x.new_zeros(len(x), self.numbers)] if self.numbers else []
        return self.network(x, told.expand(len(x)), *condition)


def load_guide(cfg: Denoising, shape: dict[str, Any], *, device: str = "cpu") -> nn.Module | None:
    """What the objective looks at beside the images, as ``cfg.guide`` names it, or None.

    ``models/<run>`` is a classifier, of pixels without noise or without most of it, which is told
    the sigma that it was trained at. ``represented/<name>`` is a `condition.Condition`, for
    networks that have one; ``shape`` is that of the network.

    Raises:
        ConfigError: It is not of the kind that the objective asks for, or of other dimensions.
        CheckpointError: It is missing or damaged.
    """
    objective, _ = _objective(cfg)
    wanted, numbers = objective.GUIDE, shape.get("condition", 0)
    if wanted == "represented" and numbers == 0:
        wanted = ""
    folder = "" if cfg.guide == NOTHING else cfg.guide.partition("/")[0]
    ways = f"{wanted}/<name>" if wanted else f"nothing beside the images, that is {NOTHING}"
    require(folder == wanted, f"denoisers: guide: {cfg.objective} looks at {ways}; got {cfg.guide}")
    if wanted == "represented":
        found = condition.load(Path(cfg.guide), device=device)
        require(
            len(found.mean) == numbers,
            f"denoisers: guide: {cfg.guide} gives {len(found.mean)} numbers, and the network has "
            f"a condition of {numbers}; set condition of models.{cfg.model} to {len(found.mean)}",
        )
        return found
    if not wanted:
        return None
    network, config = classifier.load(Path(cfg.guide))
    for key in ("channels", "image_size"):
        own = config["model"]["shape"].get(key)
        require(
            shape.get(key, own) == own,
            f"denoisers: guide: {cfg.guide} has {key} {own}, but models.{cfg.model}, whose "
            f"pictures it looks at, has {shape.get(key)}; name a run of the same",
        )
    return classifier.Told(network, config["sigma"]).to(device)


def _objective(cfg: Denoising) -> tuple[ModuleType, Any]:
    """The module of the objective, and its constants."""
    objective = registry.load("denoising", cfg.objective)
    return objective, parse(cfg.loss, objective.Config, where="denoisers: loss")


def _prepare(network: nn.Module, cfg: Denoising) -> None:
    if cfg.compute.recompute:
        require(
            hasattr(network, "recompute"),
            f"denoisers: compute.recompute: {cfg.network} cannot; set it to false, and save memory "
            "by devices or batch_size",
        )
        network.recompute = True
    if distributed.world() > 1:
        distributed.synchronise(network)


@torch.no_grad()
def _follow(average: nn.Module, network: nn.Module, *, momentum: float) -> None:
    """Move ``average`` towards ``network`` after a step; its statistics become those of that."""
    torch._foreach_lerp_([*average.parameters()], [*network.parameters()], 1 - momentum)
    for behind, ahead in zip(average.buffers(), network.buffers(), strict=True):
        behind.copy_(ahead)
