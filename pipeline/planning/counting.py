"""Counts what networks and trainings compute and keep, on tensors without data.

Operations are those of the matrix products and convolutions, two per multiply-add, as
`throughput.operations` counts them. Nothing is computed: networks have no weights here (PyTorch's
``meta`` device), so that a network of any size is counted in less than a second.
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pipeline.runtime import throughput
from rrcm.config.denoisers import Denoising
from rrcm.config.sections import Pretrain, Run
from rrcm.core import registry
from rrcm.core.schema import parse
from rrcm.models.trained.diffusion_process import Times
from rrcm.training.engine.draws import Draws
from rrcm.training.pretrain import noise_levels

ROWS = 2  # images of a count; results are per image
FLOAT = 4  # bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Network:
    """One network: ``operations`` of a forward pass of one image, and its ``parameters``.

    ``saved`` are the bytes per image that a forward pass keeps for the backward pass, in float32;
    ``widest`` is the most that one operation reads and writes, in bytes per image; ``kernels`` are
    the operators of a forward pass, each of which a GPU has to start.
    """

    operations: float
    parameters: int
    saved: float
    widest: float
    kernels: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """What one training step asks of a network, per image of the batch.

    ``passes`` counts forward passes; a backward pass counts as two, or as one where only the input
    gets a gradient. ``gradients`` are the forward passes that a backward pass follows: ``trained``
    are those whose activations are kept together for the gradient of the weights, and ``attacked``
    the most of any one gradient of the input. ``calls`` are passes of a whole batch, one after the
    other, whatever its size.
    """

    passes: float
    calls: float
    gradients: float
    trained: float
    attacked: float

    @property
    def alive(self) -> float:
        """Most forward passes whose activations are kept at one time."""
        return max(self.trained, self.attacked)


@contextmanager
def without_data() -> Iterator[None]:
    """Networks built in the block have shapes, and no numbers."""
    with torch.device("meta"):
        yield


def network(module: nn.Module, size: tuple[int, ...], *, recompute: bool = False) -> Network:
    """Count a ``module``, (pixels [B, *size], sigma) to anything, that `without_data` made.

    ``recompute``: a backward pass computes the activations of each block again.
    """
    own = {t.untyped_storage()._cdata for t in module.state_dict(keep_vars=True).values()}
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            kept[storage._cdata] = storage  # alive, so that no other gets its number
        return tensor

    x, sigma = torch.empty(ROWS, *size, device="meta"), torch.ones((), device="meta")
    for part in module.modules():
        if getattr(part, "supports_recompute", False):
            setattr(part, "recompute", recompute)  # noqa: B010 (not every module declares it)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        module.train()(x, sigma)
    widest = _Widest(own)
    with torch.no_grad(), widest:
        module.eval()(x, sigma)
    return Network(
        operations=throughput.operations(module, size),
        parameters=parameters(module),
        saved=sum(storage.nbytes() for storage in kept.values()) / ROWS,
        widest=widest.bytes / ROWS,
        kernels=widest.kernels,
    )


class _Widest(TorchDispatchMode):
    """Notes the most bytes that one operation reads and writes, weights left out; counts them."""

    def __init__(self, own: set[int]) -> None:
        super().__init__()
        self.bytes, self.kernels, self._own = 0, 0, own

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        out = function(*args, **(kwargs or {}))
        tensors = [t for t in tree_leaves([args, kwargs, out]) if isinstance(t, Tensor)]
        storages = {s._cdata: s.nbytes() for s in (t.untyped_storage() for t in tensors)}
        self.bytes = max(self.bytes, sum(n for s, n in storages.items() if s not in self._own))
        self.kernels += not getattr(function, "is_view", False)
        return out


class Calls(nn.Module):
    """Calls ``module``, and counts rows as `loop.Computed` does."""

    def __init__(self, module: nn.Module) -> None:
        """Begin at zero."""
        super().__init__()
        self.module = module
        self.passes = self.calls = self.gradients = self.trained = self.attacked = 0

    def forward(self, x: Tensor, *rest: Tensor) -> Tensor:
        """The output of ``module``."""
        y: Tensor = self.module(x, *rest)
        rows = len(x)
        self.passes += rows
        self.calls += 1
        if y.requires_grad:
            self.gradients += rows
            self.calls += 2 if self.module.training else 1
            self.passes += 2 * rows if self.module.training else rows
            if self.module.training:
                self.trained += rows
            else:  # gradient of the input only
                self.attacked = max(self.attacked, rows)
        return y

    def cost(self) -> Cost:
        """Of all calls so far; gradients of inputs are taken one after the other."""
        return Cost(
            passes=self.passes / ROWS,
            calls=self.calls,
            gradients=self.gradients / ROWS,
            trained=self.trained / ROWS,
            attacked=self.attacked / ROWS,
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
    """What a step of a run's method asks of its classifier, by calling the loss of the method.

    It is called as at the end of the training, when no attack is warming up.
    """
    module = registry.load("methods", run.method)
    cfg = parse(run.loss, module.Config, where="runs: loss")
    called = Calls(_Linear(image=False))
    module.loss(
        called.train(),
        torch.full((ROWS, 1, 2, 2), 0.5),
        torch.zeros(ROWS, dtype=torch.int64),
        sigma=torch.tensor(run.sigma),
        draw=Draws(0, 0),
        done=1.0,
        cfg=cfg,
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Pretraining:
    """The cost of the trained encoder, and ``passes`` and ``calls`` of all encoders together.

    ``trained`` and ``followers`` count parameters: of the encoder and the heads, and of their
    moving averages.
    """

    encoder: Cost
    passes: float
    calls: float
    trained: int
    followers: int


def pretraining(cfg: Pretrain, shape: dict[str, Any], size: tuple[int, ...]) -> Pretraining:
    """What a step of a pre-training asks of its encoders, by calling the loss of its objective."""
    module = registry.load("networks", cfg.architecture)
    declared = parse(shape, module.Config, where=f"models.{cfg.model}")
    objective = registry.load("objectives", cfg.objective)
    constants = parse(cfg.loss, objective.Config, where="pretrain: loss")
    with without_data():
        encoder = module.Encoder(declared)
    heads = objective.heads(module, declared, constants)
    online = {"encoder": Calls(_Shaped(encoder)), **heads}
    sources = {name: source for name, (source, _) in objective.targets(constants).items()}
    averages = {
        name: Calls(_Shaped(encoder)) if source == "encoder" else copy.deepcopy(heads[source])
        for name, source in sources.items()
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
    counts = {"encoder": parameters(encoder)}
    counts |= {name: parameters(head) for name, head in heads.items()}
    called = [each for each in (*online.values(), *averages.values()) if isinstance(each, Calls)]
    return Pretraining(
        encoder=online["encoder"].cost(),
        passes=sum(each.cost().passes for each in called),
        calls=sum(each.cost().calls for each in called),
        trained=sum(counts.values()),
        followers=sum(counts[source] for source in sources.values()),
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


def parameters(module: nn.Module) -> int:
    """Number of weights of a network."""
    return sum(p.numel() for p in module.parameters())
