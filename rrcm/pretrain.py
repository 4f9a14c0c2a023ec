"""Pre-training: an encoder that agrees with itself along diffusion trajectories, without labels."""

import copy
from collections.abc import Iterator
from types import ModuleType

import torch
from torch import Tensor, nn

from rrcm import batches, distributed, loading, noise, registry, schedules
from rrcm.computing import Computed
from rrcm.config import Grid, Model, Pretrain
from rrcm.draws import Draws
from rrcm.errors import ConfigError
from rrcm.loading import Batch
from rrcm.loop import State, train
from rrcm.parsing import parse
from rrcm.shards import Split


def start(cfg: Pretrain, model: Model, *, device: str = "cpu") -> State:
    """The state before the first step: an online network, its EMA target, and AdamW."""
    torch.manual_seed(noise.torch_seed(cfg.seed, noise.INITIALISE))
    module = registry.load("models", model.architecture)
    shape = parse(model.shape, module.Config, where="models: shape")
    online = nn.ModuleDict({"encoder": module.Encoder(shape), "projector": module.Projector(shape)})
    online["encoder"].patch_embed.requires_grad_(not cfg.freeze_patches)
    online.to(device)  # before the optimizer, whose state follows its parameters
    target = copy.deepcopy(online).requires_grad_(False)
    parameters = [p for p in online.parameters() if p.requires_grad]
    decayed = [p for p in parameters if p.ndim in (2, 4)]  # matrices and kernels
    others = [p for p in parameters if p.ndim not in (2, 4)]  # biases, norms, embeddings
    optimizer = torch.optim.AdamW(
        [
            {"params": decayed, "weight_decay": cfg.optimizer.weight_decay},
            {"params": others, "weight_decay": 0.0},
        ],
        fused=True,
    )
    return State(modules={"online": online, "target": target}, optimizer=optimizer)


def pretrain(state: State, split: Split, cfg: Pretrain) -> Iterator[State]:
    """Run from ``state.step`` to ``cfg.steps``; yields the state after every step.

    The result is ``state.modules["online"]["encoder"]``. The log has, beside the terms of the loss,
    the noise level ``t`` of the step's pair, the ``points`` of the grid, and the target's
    ``momentum``.

    Raises:
        ConfigError: The views are not those of the objective, or devices cannot share a batch.
    """
    objective = registry.load("objectives", cfg.objective)
    constants = parse(cfg.loss, objective.Config, where="pretrain: loss")
    _require_views(cfg, objective.VIEWS)
    rows = distributed.part(cfg.batch_size, where="pretrain")
    online, target = (state.modules[name].train() for name in ("online", "target"))
    _prepare(online, target, cfg)
    called = [
        nn.ModuleDict({name: Computed(part, cfg.compute) for name, part in module.items()})
        for module in (online, target)
    ]
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
        where="pretrain: augment",
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
        state.passes = sum(network["encoder"].taken() for network in called) / rows
        momentum = _follow(online, target, cfg, state.step - 1)
        if state.log and state.log[-1]["step"] == state.step:
            state.log[-1] |= _noted(objective, cfg, state.step - 1) | {"momentum": momentum}
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


def _require_views(cfg: Pretrain, views: tuple[str, ...]) -> None:
    if cfg.augment.keys() != {*views}:
        raise ConfigError(
            f"pretrain: augment: {cfg.objective} asks for the views {', '.join(views)}; got "
            f"{', '.join(cfg.augment) or 'none'}"
        )


def _noted(objective: ModuleType, cfg: Pretrain, step: int) -> dict[str, float]:
    levels, weights = noise_levels(step, cfg.grid, steps=cfg.steps)
    n = objective.pair(len(levels), weights, Draws(cfg.seed, step))
    return {"t": levels[n].item(), "points": len(levels)}


def _prepare(online: nn.ModuleDict, target: nn.ModuleDict, cfg: Pretrain) -> None:
    online["encoder"].recompute = cfg.compute.recompute
    for module in (online, target):
        if distributed.world() > 1:
            distributed.synchronise(module)
    for child in target.modules():
        if isinstance(child, nn.BatchNorm1d) and cfg.target.buffers:
            child.momentum = 0.0  # its statistics follow those of the online network alone


@torch.no_grad()
def _follow(online: nn.Module, target: nn.Module, cfg: Pretrain, step: int) -> float:
    """Move the target towards the online network; the momentum of ``step``."""
    momentum = schedules.ema_momentum(
        step,
        steps=cfg.steps,
        start=cfg.target.start,
        end=cfg.target.end,
        steepness=cfg.target.steepness,
    )
    behind, ahead = [*target.parameters()], [*online.parameters()]
    if cfg.target.buffers:  # but not counters
        behind += [b for b in target.buffers() if b.is_floating_point()]
        ahead += [b for b in online.buffers() if b.is_floating_point()]
    torch._foreach_lerp_(behind, ahead, 1 - momentum)
    return momentum
