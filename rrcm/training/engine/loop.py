"""The training loop of encoders, classifiers and denoisers.

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
from rrcm.data.splits.shards import Split
from rrcm.models.trained.base import checkpoint
from rrcm.training.engine import distributed
from rrcm.training.engine.computing import Computed
from rrcm.training.engine.draws import Draws
from rrcm.training.engine.inputs import loading, order
from rrcm.training.engine.inputs.loading import Batch
from rrcm.training.engine.schedules import warmup_cosine

LOG_EVERY = 10
BETA_2 = 0.999  # AdamW


@dataclass(kw_only=True)
class State:
    """Everything that changes during training; loading a saved state resumes it.

    ``passes`` is the number of forward passes for each image in the latest step, a backward pass
    counting as two. ``gradients`` is the number of gradient evaluations so far: forward passes of
    one image that were followed by a backward pass. ``kept`` has what a method keeps of each
    training image: ``weights`` (`order.rows`), float64 [N], and its ``table``, [N, ...].
    """

    modules: dict[str, nn.Module]
    optimizer: torch.optim.Optimizer
    step: int = 0
    log: list[dict[str, float]] = field(default_factory=list)
    best_score: float = -math.inf
    best: dict[str, Tensor] = field(default_factory=dict)
    gradients: int = 0
    kept: dict[str, Tensor] = field(default_factory=dict)
    passes: float = 0.0  # not saved

    @property
    def device(self) -> str:
        """The device of the modules."""
        return next((str(p.device) for m in self.modules.values() for p in m.parameters()), "cpu")

    def save(self, path: Path) -> None:
        """Write everything to ``path``, atomically."""
        tensors = {f"best/{name}": tensor for name, tensor in self.best.items()}
        tensors |= {f"kept/{name}": tensor for name, tensor in self.kept.items()}
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
        saved = distributed.from_first(checkpoint.load(path) if reads else None, device=self.device)
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
        self.kept |= parts.get("kept", {})
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
    """The optimizer of parameter ``groups``; a `Training` sets its learning rate at every step."""
    if cfg.algorithm == "sgd":
        return torch.optim.SGD(groups, lr=cfg.lr, momentum=cfg.momentum, fused=True)
    return torch.optim.AdamW(groups, betas=(cfg.momentum, BETA_2), fused=True)


@dataclass(frozen=True, kw_only=True)
class Training:
    """A training: iterating it trains ``state`` up to ``steps``, and yields it after every step.

    The caller may save, validate and stop between steps. Each of several processes gets its rows of
    every batch; all end with the same state.
    """

    state: State  # initial or resumed; parameter groups of its optimizer may have an ``lr_scale``
    called: list[Computed]  # whose passes are counted, first the one whose operations are
    loss: Loss  # (part of a batch, random draws) -> terms of the loss, [rows] each
    # What precedes an epoch, or the rest of one; may set what ``state`` keeps. Without it batches
    # are loaded ahead across the ends of epochs.
    before: Callable[[], None] | None = None
    # What follows a step, or the start if there are no steps; adds its numbers to the log.
    after: Callable[[], dict[str, float]] = dict
    split: Split
    augment: dict[str, list[Any]]  # of each view
    mixed: Callable[[Batch], Batch] = lambda batch: batch  # what happens to a whole batch
    where: str  # the section of params.yaml that says so, for messages
    steps: int  # in all
    batch_size: int  # over all processes
    optimizer: Optimizer
    compute: Compute
    seed: int  # of the order, of the augmentations, and of the draws of ``loss``

    def __iter__(self) -> Iterator[State]:
        """Train.

        Raises:
            ConfigError: A batch cannot be split evenly, or the augmentations are not of the images.
            TrainingError: The loss or its gradient is not finite.
        """
        state, optimizer, steps = self.state, self.optimizer, self.steps
        shared: nn.Module = _Terms(state.modules, self.loss)
        if distributed.world() > 1:  # averages gradients
            shared = DistributedDataParallel(
                shared, forward_sync_buffers=False, gradient_as_bucket_view=True
            )
        parameters = [p for group in state.optimizer.param_groups for p in group["params"]]
        warmup = 0 if optimizer.clip_warmup else math.ceil(optimizer.warmup * steps)
        per_epoch = order.steps_per_epoch(len(self.split.labels), batch_size=self.batch_size)
        if not steps:
            self.after()
        for batch in self._batches(per_epoch):
            lr = optimizer.lr * rate(state.step, optimizer, steps=steps, per_epoch=per_epoch)
            for group in state.optimizer.param_groups:
                group["lr"] = lr * group.get("lr_scale", 1.0)

            state.optimizer.zero_grad()
            accumulate = self.compute.accumulate
            terms = _backward(shared, batch, accumulate=accumulate, seed=self.seed)
            clip = optimizer.clip if state.step >= warmup else math.inf
            grad_norm = nn.utils.clip_grad_norm_(parameters, clip)
            state.optimizer.step()
            state.step += 1

            row: dict[str, float] = {}
            if state.step % LOG_EVERY == 0 or state.step == steps:
                row = {"step": state.step, "lr": lr} | _numbers(state.step, terms, grad_norm)
            passes, gradients = map(sum, zip(*(each.taken() for each in self.called), strict=True))
            state.passes = passes * distributed.world() / self.batch_size
            state.gradients += gradients * distributed.world()
            more = self.after()
            if row:
                state.log.append(row | more)
            yield state

    def _batches(self, per_epoch: int) -> Iterator[Batch]:
        state, each = self.state, per_epoch if self.before else self.steps
        while state.step < self.steps:
            if self.before:
                self.before()
            batches = loading.batches(
                self.split,
                self.augment,
                batch_size=self.batch_size,
                seed=self.seed,
                start=state.step,
                stop=min(self.steps, (state.step // each + 1) * each),
                device=state.device,
                workers=self.compute.workers,
                where=self.where,
                weights=state.kept.get("weights"),
            )
            yield from map(self.mixed, batches)


def rate(step: int, optimizer: Optimizer, *, steps: int, per_epoch: int) -> float:
    """Share of the peak learning rate at ``step`` of ``steps``; see `Optimizer`."""
    warmup = math.ceil(optimizer.warmup * steps)
    if optimizer.warmup_by == "epoch" and step < warmup:
        return step // per_epoch * per_epoch / warmup
    if optimizer.milestones and step >= warmup:
        return optimizer.gamma ** sum(step / steps >= share for share in optimizer.milestones)
    return warmup_cosine(step, steps=round(optimizer.horizon * steps), warmup=warmup)


class _Terms(nn.Module):
    """The loss as a module with the trained ones, as DistributedDataParallel wraps modules."""

    def __init__(self, modules: dict[str, nn.Module], loss: Loss) -> None:
        super().__init__()
        self.trained, self.loss = nn.ModuleDict(modules), loss

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
            rows=batch.rows[start : start + size],
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


def _numbers(step: int, terms: dict[str, Tensor], grad_norm: Tensor) -> dict[str, float]:
    """Loss, its terms and the gradient norm, averaged over all processes, if they are finite."""
    values = distributed.total(torch.stack([*terms.values()])) / distributed.world()
    numbers = {"loss": values.sum(), **dict(zip(terms, values, strict=True))}
    row = {name: value.item() for name, value in (numbers | {"grad_norm": grad_norm}).items()}
    if not math.isfinite(row["loss"] + row["grad_norm"]):
        raise TrainingError(
            f"the loss is not finite at step {step} (loss {row['loss']}, gradient "
            f"norm {row['grad_norm']}); lower optimizer.lr or optimizer.clip"
        )
    return row
