"""Pre-training: an encoder that agrees with itself along diffusion trajectories, without labels."""

import copy
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from rrcm import batches, distributed, loading, noise, registry, schedules
from rrcm.computing import Computed
from rrcm.config import Grid, Model, Pretrain
from rrcm.draws import Draws
from rrcm.errors import ConfigError
from rrcm.loading import Batch
from rrcm.loop import State, decayed, optimise, train
from rrcm.parsing import parse
from rrcm.shards import Split


def start(cfg: Pretrain, model: Model, *, device: str = "cpu") -> State:
    """The state before the first step: an online network, its EMA target, and an optimizer."""
    torch.manual_seed(noise.torch_seed(cfg.seed, noise.INITIALISE))
    module = registry.load("models", model.architecture)
    shape = parse(model.shape, module.Config, where="models: shape")
    objective, constants = _objective(cfg)
    online = nn.ModuleDict({"encoder": module.Encoder(shape)})
    online.update(objective.heads(module, shape, constants))
    online["encoder"].patch_embed.requires_grad_(not cfg.freeze_patches)
    online.to(device)  # before the optimizer, whose state follows its parameters
    followed = objective.targets(constants).items()
    target = nn.ModuleDict({name: copy.deepcopy(online[source]) for name, (source, _) in followed})
    target.requires_grad_(False)
    groups = decayed((p for p in online.parameters() if p.requires_grad), cfg.optimizer)
    optimizer = optimise(groups, cfg.optimizer)
    return State(modules={"online": online, "target": target}, optimizer=optimizer)


def pretrain(state: State, split: Split, cfg: Pretrain) -> Iterator[State]:
    """Run from ``state.step`` to ``cfg.steps``; yields the state after every step.

    The result is ``state.modules["online"]["encoder"]``. The log has, beside the terms of the loss,
    what the objective notes and the target's ``momentum``.

    Raises:
        ConfigError: The views are not those of the objective, or devices cannot share a batch.
    """
    objective, constants = _objective(cfg)
    _require_views(cfg, objective.VIEWS)
    online, target = (state.modules[name].train() for name in ("online", "target"))
    _prepare(online, target, cfg)
    called = [
        nn.ModuleDict({name: Computed(part, cfg.compute) for name, part in module.items()})
        for module in (online, target)
    ]
    targets = objective.targets(constants)
    seen_by = [called[1][name] for name, (source, _) in targets.items() if source == "encoder"]
    device = next(online.parameters()).device

    def loss(batch: Batch, draw: Draws) -> dict[str, Tensor]:
        levels, weights = noise_levels(batch.step, cfg.grid, steps=cfg.steps)
        sigmas = noise.to_sigma(levels).float().to(device)
        return objective.loss(
            *called, batch.views, sigmas=sigmas, weights=weights, draw=draw, cfg=constants
        )

    stream = loading.batches(
        split,
        cfg.augment,
        batch_size=cfg.batch_size,
        seed=cfg.seed,
        start=state.step,
        stop=cfg.steps,
        device=device,
        workers=cfg.compute.workers,
        where="pretrain",
    )
    for _ in train(
        state,
        stream,
        loss,
        network=online,
        steps=cfg.steps,
        per_epoch=batches.steps_per_epoch(len(split.labels), batch_size=cfg.batch_size),
        optimizer=cfg.optimizer,
        accumulate=cfg.compute.accumulate,
        seed=cfg.seed,
    ):
        state.took([called[0]["encoder"], *seen_by], batch_size=cfg.batch_size)
        momentum = _follow(state, targets, cfg)
        if state.log and state.log[-1]["step"] == state.step:
            levels, weights = noise_levels(state.step - 1, cfg.grid, steps=cfg.steps)
            draw = Draws(cfg.seed, state.step - 1)
            noted = objective.noted(levels, weights, draw, constants)
            state.log[-1] |= noted | {"momentum": momentum}
        yield state


def noise_levels(step: int, grid: Grid, *, steps: int) -> tuple[Tensor, Tensor | None]:
    """The grid of ``step``, descending, float64 [N], and how often each pair is drawn [N - 1].

    Levels are in model space; None is a uniform draw.
    """
    points = schedules.grid_points(
        step, steps=steps, first=grid.first, last=grid.last, rule=grid.rule
    )
    levels = schedules.karras_grid(points, t_min=grid.t_min, t_max=grid.t_max, rho=grid.rho)
    if grid.sampling == "uniform":
        return levels, None
    return levels, schedules.lognormal_weights(levels, mean=grid.mean, std=grid.std)


def _objective(cfg: Pretrain) -> tuple[ModuleType, Any]:
    """The module of the objective, and its constants."""
    objective = registry.load("objectives", cfg.objective)
    return objective, parse(cfg.loss, objective.Config, where="pretrain: loss")


def _require_views(cfg: Pretrain, views: tuple[str, ...]) -> None:
    if cfg.augment.keys() != {*views}:
        raise ConfigError(
            f"pretrain: augment: {cfg.objective} asks for the views {', '.join(views)}; got "
            f"{', '.join(cfg.augment) or 'none'}"
        )


def _prepare(online: nn.ModuleDict, target: nn.ModuleDict, cfg: Pretrain) -> None:
    online["encoder"].recompute = cfg.compute.recompute
    for module in (online, target):
        if distributed.world() > 1:
            distributed.synchronise(module)


@torch.no_grad()
def _follow(state: State, targets: dict[str, tuple[str, float | None]], cfg: Pretrain) -> float:
    """Move the targets towards the online network after a step; the momentum of the schedule.

    Parameters alone: in training, BatchNorm uses the statistics of its batch, and nobody reads
    those that the target keeps.
    """
    scheduled = schedules.ema_momentum(
        state.step - 1,
        steps=cfg.steps,
        start=cfg.target.start,
        end=cfg.target.end,
        steepness=cfg.target.steepness,
    )
    online, target = (state.modules[name] for name in ("online", "target"))
    for name, (source, momentum) in targets.items():
        behind, ahead = ([*part.parameters()] for part in (target[name], online[source]))
        weight = 1 - (scheduled if momentum is None else momentum)
        torch._foreach_lerp_(behind, ahead, weight)
    return scheduled
