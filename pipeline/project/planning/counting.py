"""Counts what networks and losses compute, on networks without weights (PyTorch's ``meta`` device).

Operations are those of matrix products and convolutions, two per multiply-add, as PyTorch's
FlopCounterMode counts them; nothing is computed, so that a network of any size takes a moment.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from pipeline.runtime import throughput
from rrcm.config.denoisers import Denoising
from rrcm.config.sections import Pretrain, Run
from rrcm.core import registry
from rrcm.core.schema import parse
from rrcm.models.trained.denoiser import Times
from rrcm.training.engine.draws import Draws
from rrcm.training.pretrain import noise_levels

ROWS = 2  # images of a count; results are per image


@dataclass(frozen=True, kw_only=True, slots=True)
class Network:
    """A forward pass of one image: its ``operations``, and the ``kernels`` that a GPU starts."""

    operations: float
    parameters: int
    kernels: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """What a training step asks of a network, per image of the batch.

    ``passes`` counts forward passes; a backward pass counts as two, or as one where only the input
    gets a gradient. ``gradients`` are the forward passes that a backward pass follows, and
    ``trained`` those of them for the gradient of the weights. ``calls`` are passes of a whole
    batch, one after the other, whatever its size.
    """

    passes: float
    gradients: float
    trained: float
    calls: int


def network(build: Callable[[], nn.Module], size: tuple[int, ...]) -> Network:
    """Count a network, (pixels [B, *size], sigma) to anything."""
    with torch.device("meta"):
        module = build().eval()
        with torch.no_grad(), _Kernels() as kernels:
            module(torch.empty(ROWS, *size), torch.ones(()))
    return Network(
        operations=throughput.operations(module, size),
        parameters=sum(p.numel() for p in module.parameters()),
        kernels=kernels.count,
    )


class _Kernels(TorchDispatchMode):
    """Counts the operators that are not views."""

    count = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.count += not getattr(function, "is_view", False)
        return function(*args, **(kwargs or {}))


class Calls(nn.Module):
    """Calls ``module`` with `ROWS` images, and counts rows as `loop.Computed` does."""

    def __init__(self, module: nn.Module) -> None:
        """Begin at zero."""
        super().__init__()
        self.module = module
        self.passes = self.gradients = self.trained = self.calls = 0

    def forward(self, x: Tensor, *rest: Tensor) -> Tensor:
        """The output of ``module``."""
        y: Tensor = self.module(x, *rest)
        self.passes += len(x)
        self.calls += 1
        if y.requires_grad:
            backward = 2 if self.module.training else 1  # else only the input gets a gradient
            self.passes += backward * len(x)
            self.calls += backward
            self.gradients += len(x)
            self.trained += len(x) * self.module.training
        return y

    def cost(self) -> Cost:
        """Of all calls so far."""
        return Cost(
            passes=self.passes / ROWS,
            gradients=self.gradients / ROWS,
            trained=self.trained / ROWS,
            calls=self.calls,
        )


class _Linear(nn.Module):
    """The smallest classifier or denoiser, whose calls are counted in place of a network's."""

    def __init__(self, *, image: bool) -> None:
        super().__init__()
        self.image, self.weight = image, nn.Parameter(torch.ones(4, 4 if image else 3))

    def forward(self, x: Tensor, *rest: Tensor) -> Tensor:
        y = x.flatten(1) @ self.weight
        return y.unflatten(1, x.shape[1:]) if self.image else y


def method(run: Run) -> Cost:
    """What a step of a run's method asks of its classifier, at the end of the training."""
    module = registry.load("methods", run.method)
    called = Calls(_Linear(image=False))
    module.loss(
        called.train(),
        torch.full((ROWS, 1, 2, 2), 0.5),
        torch.zeros(ROWS, dtype=torch.int64),
        sigma=torch.tensor(run.sigma),
        draw=Draws(0, 0),
        done=1.0,  # no attack is warming up
        cfg=parse(run.loss, module.Config, where="runs: loss"),
    )
    return called.cost()


def denoising(cfg: Denoising) -> tuple[Cost, Cost]:
    """What a step of a denoiser's objective asks of the denoiser, and of its guide."""
    module = registry.load("denoiser_objectives", cfg.objective)
    constants = parse(cfg.loss, module.Config, where="denoisers: loss")
    declared = module.schedule(constants)
    called = Calls(_Linear(image=True))
    guide = Calls(_Linear(image=False).eval().requires_grad_(False))
    module.loss(
        called.train(),
        torch.full((ROWS, 1, 2, 2), 0.5),
        torch.zeros(ROWS, dtype=torch.int64),
        guide=guide if module.GUIDE and cfg.guide.partition("/")[0] == module.GUIDE else None,
        times=None if declared is None else Times(declared),
        draw=Draws(0, 0),
        cfg=constants,
    )
    return called.cost(), guide.cost()


def pretraining(cfg: Pretrain, shape: dict[str, Any], size: tuple[int, ...]) -> Cost:
    """What a step of a pre-training asks of its encoders; ``passes`` and ``calls`` are of all.

    Heads are called, and not counted.
    """
    module = registry.load("networks", cfg.architecture)
    declared = parse(shape, module.Config, where=f"models.{cfg.model}")
    objective = registry.load("objectives", cfg.objective)
    constants = parse(cfg.loss, objective.Config, where="pretrain: loss")
    with torch.device("meta"):
        encoder = module.Encoder(declared)
    heads = objective.heads(module, declared, constants)
    online = {"encoder": Calls(_Shaped(encoder)), **heads}
    averages = {
        name: Calls(_Shaped(encoder)) if source == "encoder" else copy.deepcopy(heads[source])
        for name, (source, _) in objective.targets(constants).items()
    }
    levels, weights = noise_levels(0, cfg.grid, steps=cfg.steps)
    objective.loss(
        nn.ModuleDict(online).train(),
        nn.ModuleDict(averages).train().requires_grad_(False),
        {view: torch.zeros(ROWS, *size) for view in objective.VIEWS},
        levels=levels,
        weights=weights,
        draw=Draws(0, 0),
        cfg=constants,
    )
    own = online["encoder"].cost()
    followers = [each.cost() for each in averages.values() if isinstance(each, Calls)]
    return Cost(
        passes=own.passes + sum(each.passes for each in followers),
        gradients=own.gradients,
        trained=own.trained,
        calls=own.calls + sum(each.calls for each in followers),
    )


class _Shaped(nn.Module):
    """Outputs of the shape of an encoder's, without its values."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self._encoder = [encoder]  # no submodule: it has no numbers

    def forward(self, *given: Tensor) -> Tensor:
        with torch.no_grad():
            shape = self._encoder[0](*(tensor.to("meta") for tensor in given)).shape
        return self.weight * torch.ones(shape)
