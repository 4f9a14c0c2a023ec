"""The one training loop: pre-training and training of every method run through it.

Batches and noise depend on (seed, step) only, so on a CPU a run that was interrupted and resumed is
the run that was never interrupted, bit for bit.
"""

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from rrcm import checkpoints, noise
from rrcm.config import Optimizer
from rrcm.errors import TrainingError
from rrcm.schedules import warmup_cosine

LOG_EVERY = 10


@dataclass(kw_only=True)
class State:
    """All that changes during training; saving it and loading it is resuming."""

    modules: dict[str, nn.Module]
    optimizer: torch.optim.Optimizer
    step: int = 0
    log: list[dict[str, float]] = field(default_factory=list)
    best_score: float = -math.inf
    best: dict[str, Tensor] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        """Write everything to ``path``, atomically."""
        tensors = {f"best/{name}": tensor for name, tensor in self.best.items()}
        for name, module in self.modules.items():
            tensors |= {f"{name}/{key}": tensor for key, tensor in module.state_dict().items()}
        for i, moments in self.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer/{i}/{key}": tensor for key, tensor in moments.items()}
        numbers = {"step": self.step, "log": self.log, "best_score": self.best_score}
        checkpoints.save(path, tensors, {"state": json.dumps(numbers)})

    def resume(self, path: Path) -> bool:
        """Continue from ``path`` if it exists; says whether it did."""
        if not path.exists():
            return False
        tensors, text = checkpoints.load(path)
        parts: dict[str, dict[str, Tensor]] = {}
        for name, tensor in tensors.items():
            owner, _, key = name.partition("/")
            parts.setdefault(owner, {})[key] = tensor
        for name, module in self.modules.items():
            checkpoints.restore(module, parts[name], source=f"{path}: {name}")
        moments: dict[int, dict[str, Tensor]] = {}
        for name, tensor in parts.get("optimizer", {}).items():
            i, _, key = name.partition("/")
            moments.setdefault(int(i), {})[key] = tensor
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": moments, "param_groups": groups})
        numbers = json.loads(text["state"])
        self.step, self.log = numbers["step"], numbers["log"]
        self.best_score, self.best = numbers["best_score"], parts.get("best", {})
        return True


def train(
    state: State,
    loss: Callable[[int], dict[str, Tensor]],
    *,
    steps: int,
    optimizer: Optimizer,
    seed: int,
) -> Iterator[State]:
    """Run from ``state.step`` to ``steps``, updating ``state`` in place and yielding it each step.

    ``loss(step)`` gives the terms of the loss, [B] each; it may draw from torch's global generator,
    which is seeded by (seed, step) here. Parameter groups may carry an ``lr_scale``. The caller
    saves, validates and stops between steps as it likes.

    Raises:
        TrainingError: The loss is not finite any more.
    """
    warmup = math.ceil(optimizer.warmup * steps)
    parameters = [p for group in state.optimizer.param_groups for p in group["params"]]
    while state.step < steps:
        torch.manual_seed(noise.torch_seed(seed, noise.STEP, state.step))
        lr = optimizer.lr * warmup_cosine(state.step, steps=steps, warmup=warmup)
        for group in state.optimizer.param_groups:
            group["lr"] = lr * group.get("lr_scale", 1.0)

        terms = {name: term.mean() for name, term in loss(state.step).items()}
        total = torch.stack([*terms.values()]).sum()
        state.optimizer.zero_grad()
        total.backward()
        grad_norm = nn.utils.clip_grad_norm_(parameters, optimizer.clip)
        state.optimizer.step()
        state.step += 1

        if state.step % LOG_EVERY == 0 or state.step == steps:
            numbers = {"loss": total, **terms, "grad_norm": grad_norm}
            row = {"step": state.step, "lr": lr} | {k: v.item() for k, v in numbers.items()}
            if not math.isfinite(row["loss"] + row["grad_norm"]):
                raise TrainingError(
                    f"the loss is not finite at step {state.step} (loss {row['loss']}, gradient "
                    f"norm {row['grad_norm']}); lower optimizer.lr or optimizer.clip"
                )
            state.log.append(row)
        yield state
