"""Self-supervised pre-training of an encoder along diffusion trajectories, by any objective."""

import copy
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from rrcm.config.sections import Model, Pretrain
from rrcm.core import registry
from rrcm.core.errors import ConfigError
from rrcm.core.schema import parse
from rrcm.data.splits.shards import Split
from rrcm.noise import streams
from rrcm.noise.levels import grid_points, karras_grid, lognormal_weights
from rrcm.training.engine import distributed, schedules
from rrcm.training.engine.computing import Computed, prepare
from rrcm.training.engine.draws import Draws
from rrcm.training.engine.inputs.loading import Batch
from rrcm.training.engine.loop import Loss, State, Training, decayed, optimise


def start(cfg: Pretrain, model: Model, *, device: str = "cpu") -> State:
    """State before the first step: the online network, its EMA target, and the optimizer."""
    torch.manual_seed(streams.torch_seed(cfg.seed, streams.INITIALISE))
    module = registry.load("networks", model.architecture)
    shape = parse(model.shape, module.Config, where="models: shape")
    encoder = module.Encoder(shape)
    first = next(part for part in encoder.modules() if isinstance(part, nn.Conv2d))
    first.requires_grad_(not cfg.freeze_patches)
    modules = networks(encoder, module, shape, cfg)
    for part in modules.values():
        part.to(device)  # before the optimizer, whose state follows its parameters
    trained = (p for p in modules["online"].parameters() if p.requires_grad)
    optimizer = optimise(decayed(trained, cfg.optimizer), cfg.optimizer)
    return State(modules={**modules}, optimizer=optimizer)


def networks(
    encoder: nn.Module, models: ModuleType, shape: Any, cfg: Pretrain
) -> dict[str, nn.ModuleDict]:
    """``online``, an ``encoder`` of that ``shape`` with its heads, and ``target``."""
    objective, constants = _objective(cfg)
    online = nn.ModuleDict({"encoder": encoder} | objective.heads(models, shape, constants))
    followers = objective.targets(constants).items()
    target = nn.ModuleDict({name: copy.deepcopy(online[source]) for name, (source, _) in followers})
    return {"online": online, "target": target.requires_grad_(False)}


def loss_of(online: nn.Module, target: nn.Module, cfg: Pretrain, noted: dict[str, float]) -> Loss:
    """The loss of a pre-training; ``noted`` gets the objective's diagnostics of the latest step.

    Raises:
        ConfigError: ``cfg.augment`` lacks a view of the objective.
    """
    (objective, constants), grid = _objective(cfg), cfg.grid
    if cfg.augment.keys() != {*objective.VIEWS}:
        raise ConfigError(
            f"pretrain: augment: {cfg.objective} needs the views {', '.join(objective.VIEWS)}; "
            f"got {', '.join(cfg.augment) or 'none'}"
        )

    def loss(batch: Batch, draw: Draws) -> dict[str, Tensor]:
        points = grid_points(
            batch.step, steps=cfg.steps, first=grid.first, last=grid.last, rule=grid.rule
        )
        levels = karras_grid(points, t_min=grid.t_min, t_max=grid.t_max, rho=grid.rho)
        uniform = grid.sampling == "uniform"
        weights = None if uniform else lognormal_weights(levels, mean=grid.mean, std=grid.std)
        terms, latest = objective.loss(
            online, target, batch.views, levels=levels, weights=weights, draw=draw, cfg=constants
        )
        noted.update(latest)
        return terms

    return loss


def pretrain(state: State, split: Split, cfg: Pretrain) -> Training:
    """The training of ``state`` for ``cfg.steps``.

    Its result is ``state.modules["online"]["encoder"]``. Rows of the log hold the terms of the
    loss, the objective's diagnostics, and the ``momentum`` of the target.

    Raises:
        ConfigError: ``cfg.augment`` lacks a view of the objective, or the network does not support
            ``recompute``.
    """
    modules: dict[str, Any] = {**state.modules}  # nn.ModuleDicts
    online, target = (modules[name].train() for name in ("online", "target"))
    prepare(online["encoder"], cfg.compute, name=cfg.architecture)
    for module in (online, target) if distributed.world() > 1 else ():
        distributed.synchronise(module)  # the projectors, too
    called: list[Any] = [
        nn.ModuleDict({name: Computed(part, cfg.compute) for name, part in module.items()})
        for module in (online, target)
    ]
    objective, constants = _objective(cfg)
    targets = objective.targets(constants)
    encoders = [called[1][name] for name, (source, _) in targets.items() if source == "encoder"]
    noted: dict[str, float] = {}

    @torch.no_grad()
    def follow() -> dict[str, float]:
        """Update the targets, but not their buffers: no running statistics of them are read."""
        scheduled = schedules.ema_momentum(state.step - 1, steps=cfg.steps, target=cfg.target)
        for name, (source, momentum) in targets.items():
            averages, values = ([*part.parameters()] for part in (target[name], online[source]))
            weight = 1 - (scheduled if momentum is None else momentum)
            torch._foreach_lerp_(averages, values, weight)
        return noted | {"momentum": scheduled}

    return Training(
        state=state,
        called=[called[0]["encoder"], *encoders],
        loss=loss_of(called[0], called[1], cfg, noted),
        after=follow,
        split=split,
        augment=cfg.augment,
        where="pretrain",
        steps=cfg.steps,
        batch_size=cfg.batch_size,
        optimizer=cfg.optimizer,
        compute=cfg.compute,
        seed=cfg.seed,
    )


def _objective(cfg: Pretrain) -> tuple[ModuleType, Any]:
    """The objective's module and its constants."""
    objective = registry.load("objectives", cfg.objective)
    return objective, parse(cfg.loss, objective.Config, where="pretrain: loss")
