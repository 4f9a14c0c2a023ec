"""The training loop of encoders, classifiers and denoisers, and how it calls a network.

Batches and noise depend on (seed, step) and a row's place in the batch only, so that on a CPU an
interrupted and resumed run equals an uninterrupted one, bit for bit. Accumulation and the number of
processes change results only by rounding, except that BatchNorm statistics and negatives are those
of one part of an accumulated batch (over all processes).
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from rrcm.config.sections import Compute, Optimizer
from rrcm.core.errors import ConfigError, TrainingError
from rrcm.models.trained.base import checkpoint
from rrcm.training.engine import distributed
from rrcm.training.engine.draws import Draws
from rrcm.training.engine.inputs.loading import Batch
from rrcm.training.engine.schedules import multi_step, warmup_cosine

LOG_EVERY = 10
BETA_2 = 0.999  # AdamW


class Computed(nn.Module):
    """Calls ``module`` under the settings of `Compute`; weights and their names stay as they are.

    Under ``bf16`` matrix products are computed in bfloat16; weights, gradients and the optimizer's
    moments stay float32, and outputs are cast to the type of the input.
    """

    def __init__(self, module: nn.Module, compute: Compute) -> None:
        """Compile ``module`` in place if ``compute.compile``."""
        super().__init__()
        self.module, self.narrow = module, compute.precision == "bf16"
        self._passes = self._gradients = 0
        if compute.compile:
            module.compile()

    def forward(self, x: Tensor, *rest: Tensor) -> Tensor:
        """The output of ``module`` for the rows ``x``."""
        gradient, training = torch.is_grad_enabled(), self.module.training
        if gradient:  # in evaluation mode this is an attack: gradient of the input only
            self._passes += len(x) * (3 if training else 2)
            self._gradients += len(x)
        elif training:
            self._passes += len(x)
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.narrow):
            y = self.module(x, *rest)
        return y.to(x.dtype)

    def taken(self) -> tuple[int, int]:
        """Passes and gradient evaluations, counted per row, since the last call.

        A backward pass counts as two, or as one where only the input gets a gradient, as in an
        attack. Validation does not count.
        """
        taken = self._passes, self._gradients
        self._passes = self._gradients = 0
        return taken


def prepare(network: nn.Module, compute: Compute, *, name: str) -> None:
    """Set ``network`` to recompute activations if ``compute.recompute``, and share its BatchNorms.

    Raises:
        ConfigError: The architecture ``name`` cannot recompute (``supports_recompute``), or has a
            BatchNorm that several processes cannot share.
    """
    if compute.recompute and not network.supports_recompute:
        raise ConfigError(
            f"compute.recompute: {name} does not support it; set it to false, and save memory by "
            "devices or batch_size"
        )
    setattr(network, "recompute", compute.recompute)  # noqa: B010 (not every module declares it)
    if distributed.world() > 1:
        distributed.synchronise(network)


@dataclass(kw_only=True)
class State:
    """Everything that changes during training; loading a saved state resumes it.

    ``passes`` is the number of forward passes for each image in the latest step, a backward pass
    counting as two. ``gradients`` is the number of gradient evaluations so far: forward passes of
    one image that were followed by a backward pass.
    """

    modules: dict[str, nn.Module]
    optimizer: torch.optim.Optimizer
    step: int = 0
    log: list[dict[str, float]] = field(default_factory=list)
    best_score: float = -math.inf
    best: dict[str, Tensor] = field(default_factory=dict)
    gradients: int = 0
    passes: float = 0.0  # not saved

    def took(self, called: Iterable[Computed], *, batch_size: int) -> None:
        """Record the cost of a step, in which all processes had equal parts."""
        passes, gradients = map(sum, zip(*(each.taken() for each in called), strict=True))
        self.passes = passes * distributed.world() / batch_size
        self.gradients += gradients * distributed.world()

    def save(self, path: Path) -> None:
        """Write everything to ``path``, atomically."""
        tensors = {f"best/{name}": tensor for name, tensor in self.best.items()}
        for name, module in self.modules.items():
            tensors |= {f"{name}/{key}": tensor for key, tensor in module.state_dict().items()}
        for i, moments in self.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer/{i}/{key}": tensor for key, tensor in moments.items()}
        numbers = {"step": self.step, "log": self.log, "best_score": self.best_score}
        numbers["gradients"] = self.gradients
        checkpoint.save(path, tensors, {"state": json.dumps(numbers)})

    def resume(self, path: Path) -> bool:
        """Load the state in ``path`` if the file exists; returns whether it did.

        Only process 0 reads the file; it broadcasts the state to the others.
        """
        reads = distributed.rank() == 0 and path.exists()
        device = next((str(p.device) for m in self.modules.values() for p in m.parameters()), "cpu")
        saved = distributed.from_first(checkpoint.load(path) if reads else None, device=device)
        if saved is None:
            return False
        tensors, text = saved
        parts: dict[str, dict[str, Tensor]] = {}
        for name, tensor in tensors.items():
            owner, _, key = name.partition("/")
            parts.setdefault(owner, {})[key] = tensor
        for name, module in self.modules.items():
            checkpoint.restore(module, parts[name], source=f"{path}: {name}")
        moments: dict[int, dict[str, Tensor]] = {}
        for name, tensor in parts.get("optimizer", {}).items():
            i, _, key = name.partition("/")
            moments.setdefault(int(i), {})[key] = tensor
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": moments, "param_groups": groups})
        numbers = json.loads(text["state"])
        self.step, self.log = numbers["step"], numbers["log"]
        self.gradients = numbers["gradients"]
        self.best_score, self.best = numbers["best_score"], parts.get("best", {})
        return True


Loss = Callable[[Batch, Draws], dict[str, Tensor]]


def decayed(parameters: Iterable[nn.Parameter], cfg: Optimizer) -> list[dict[str, Any]]:
    """Parameter groups: matrices and kernels decay; biases, norms and embeddings do not."""
    groups: dict[bool, list[nn.Parameter]] = {True: [], False: []}
    for parameter in parameters:
        groups[parameter.ndim in (2, 4)].append(parameter)
    return [
        {"params": groups[True], "weight_decay": cfg.weight_decay},
        {"params": groups[False], "weight_decay": 0.0},
    ]


def optimise(groups: list[dict[str, Any]], cfg: Optimizer) -> torch.optim.Optimizer:
    """The optimizer of parameter ``groups``; `train` sets its learning rate at every step."""
    if cfg.algorithm == "sgd":
        return torch.optim.SGD(groups, lr=cfg.lr, momentum=cfg.momentum, fused=True)
    return torch.optim.AdamW(groups, betas=(cfg.momentum, BETA_2), fused=True)


def train(
    state: State,
    batches: Iterable[Batch],
    loss: Loss,
    *,
    network: nn.Module,
    steps: int,
    per_epoch: int,
    optimizer: Optimizer,
    accumulate: int,
    seed: int,
) -> Iterator[State]:
    """Run over ``batches`` up to ``steps``, updating ``state`` in place and yielding it each step.

    The caller may save, validate and stop between steps. Each of several processes gets its rows of
    every batch; all end with the same state.

    Args:
        state: Initial state; parameter groups of its optimizer may have an ``lr_scale``.
        batches: One batch for each step from ``state.step`` on.
        loss: Maps (part of a batch, random draws) to the terms of the loss, [rows] each.
        network: The trained network.
        steps: Number of steps in all.
        per_epoch: Steps of an epoch, for a warm-up by epochs.
        optimizer: Learning rate schedule and clipping.
        accumulate: Number of parts in which a batch is computed.
        seed: Seed of the draws of ``loss``.

    Raises:
        ConfigError: A batch cannot be split into ``accumulate`` equal parts.
        TrainingError: The loss or its gradient is not finite.
    """
    shared = distributed.averaging(_Terms(network, loss))
    parameters = [p for group in state.optimizer.param_groups for p in group["params"]]
    warmup = 0 if optimizer.clip_warmup else math.ceil(optimizer.warmup * steps)
    for batch in batches:
        lr = optimizer.lr * rate(state.step, optimizer, steps=steps, per_epoch=per_epoch)
        for group in state.optimizer.param_groups:
            group["lr"] = lr * group.get("lr_scale", 1.0)

        state.optimizer.zero_grad()
        terms = _backward(shared, batch, accumulate=accumulate, seed=seed)
        clip = optimizer.clip if state.step >= warmup else math.inf
        grad_norm = nn.utils.clip_grad_norm_(parameters, clip)
        state.optimizer.step()
        state.step += 1

        if state.step % LOG_EVERY == 0 or state.step == steps:
            row = {"step": state.step, "lr": lr} | _numbers(terms, grad_norm)
            _require_finite(row)
            state.log.append(row)
        yield state


def rate(step: int, optimizer: Optimizer, *, steps: int, per_epoch: int) -> float:
    """Share of the peak learning rate at ``step`` of ``steps``; see `Optimizer`."""
    warmup = math.ceil(optimizer.warmup * steps)
    if optimizer.warmup_by == "epoch" and step < warmup:
        return step // per_epoch * per_epoch / warmup
    if optimizer.milestones and step >= warmup:
        return multi_step(step / steps, milestones=optimizer.milestones, gamma=optimizer.gamma)
    return warmup_cosine(step, steps=round(optimizer.horizon * steps), warmup=warmup)


class _Terms(nn.Module):
    """The loss as a module with the network, because DistributedDataParallel wraps modules."""

    def __init__(self, network: nn.Module, loss: Loss) -> None:
        super().__init__()
        self.network, self.loss = network, loss

    def forward(self, batch: Batch, draw: Draws) -> dict[str, Tensor]:
        return self.loss(batch, draw)


def _backward(shared: nn.Module, batch: Batch, *, accumulate: int, seed: int) -> dict[str, Tensor]:
    """Accumulate the gradients of a batch; returns the terms of the loss, averaged over it."""
    rows = len(batch.labels)
    if rows % accumulate:
        raise ConfigError(
            f"compute.accumulate: {rows} images a device cannot be computed in {accumulate} "
            "equal parts"
        )
    size = rows // accumulate
    sums: dict[str, Tensor] = {}
    for start in range(0, rows, size):
        part = Batch(
            step=batch.step,
            views={name: x[start : start + size] for name, x in batch.views.items()},
            labels=batch.labels[start : start + size],
        )
        draw = Draws(seed, batch.step, first=distributed.rank() * rows + start)
        parallel = shared if isinstance(shared, DistributedDataParallel) else None
        last = start + size >= rows
        with nullcontext() if parallel is None or last else parallel.no_sync():  # sync once a batch
            terms = {name: term.mean() / accumulate for name, term in shared(part, draw).items()}
            torch.stack([*terms.values()]).sum().backward()
        for name, term in terms.items():
            sums[name] = sums.get(name, 0) + term.detach()
    return sums


def _numbers(terms: dict[str, Tensor], grad_norm: Tensor) -> dict[str, float]:
    """Loss, its terms and the gradient norm, averaged over all processes, for the log."""
    values = distributed.mean(torch.stack([*terms.values()]))
    numbers = {"loss": values.sum(), **dict(zip(terms, values, strict=True))}
    return {name: value.item() for name, value in (numbers | {"grad_norm": grad_norm}).items()}


def _require_finite(row: dict[str, float]) -> None:
    if not math.isfinite(row["loss"] + row["grad_norm"]):
        raise TrainingError(
            f"the loss is not finite at step {row['step']} (loss {row['loss']}, gradient "
            f"norm {row['grad_norm']}); lower optimizer.lr or optimizer.clip"
        )
