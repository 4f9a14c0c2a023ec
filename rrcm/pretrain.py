"""Pre-training: an encoder that agrees with itself along diffusion trajectories, without labels."""

import copy
from collections.abc import Iterator

import torch
from torch import nn

from rrcm import augment, batches, noise, registry, schedules
from rrcm.config import Model, Pretrain
from rrcm.loop import State, train
from rrcm.parsing import parse
from rrcm.shards import Split


def start(cfg: Pretrain, model: Model, *, device: str = "cpu") -> State:
    """The state before the first step: an online network, its EMA target, and AdamW."""
    torch.manual_seed(noise.torch_seed(cfg.seed, noise.INITIALISE))
    module = registry.load("models", model.architecture)
    shape = parse(model.shape, module.Config, where="models: shape")
    online = nn.ModuleDict({"encoder": module.Encoder(shape), "projector": module.Projector(shape)})
    online.to(device)  # before the optimizer, whose state follows its parameters
    target = copy.deepcopy(online).requires_grad_(False)
    parameters = [*online.parameters()]
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

    The result is ``state.modules["online"]["encoder"]``.
    """
    objective = registry.load("objectives", cfg.objective)
    constants = parse(cfg.loss, objective.Config, where="pretrain: loss")
    view = augment.build(cfg.augment.views, where="pretrain: augment.views")
    plain = augment.build(cfg.augment.plain, where="pretrain: augment.plain")
    online, target = (state.modules[name].train() for name in ("online", "target"))
    device = next(online.parameters()).device
    pixels = torch.from_numpy(split.pixels()).to(device)
    grid = cfg.grid

    def loss(step: int) -> dict[str, torch.Tensor]:
        points = schedules.grid_points(
            step, steps=cfg.steps, first=grid.first, last=grid.last, rule=grid.rule
        )
        t = schedules.karras_grid(points, t_min=grid.t_min, t_max=grid.t_max, rho=grid.rho)
        rows = batches.rows(step, images=len(pixels), batch_size=cfg.batch_size, seed=cfg.seed)
        return objective.loss(
            online,
            target,
            pixels[rows],
            view=view,
            plain=plain,
            sigmas=noise.to_sigma(t).float().to(device),
            cfg=constants,
        )

    for _ in train(state, loss, steps=cfg.steps, optimizer=cfg.optimizer, seed=cfg.seed):
        momentum = schedules.ema_momentum(
            state.step - 1,
            steps=cfg.steps,
            start=cfg.target.start,
            end=cfg.target.end,
            steepness=cfg.target.steepness,
        )
        with torch.no_grad():  # parameters only: BatchNorm statistics of the target are its own
            torch._foreach_lerp_([*target.parameters()], [*online.parameters()], 1 - momentum)
        yield state
