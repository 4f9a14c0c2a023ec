"""What test_distributed.py runs in two processes, each of which writes what it found."""

import dataclasses
import sys
from pathlib import Path

import torch
from helpers import MINI, MODEL, PRETRAIN, split
from torch import Tensor, nn

from rrcm.config.sections import Mix, Model
from rrcm.core import registry
from rrcm.models.trained.base import checkpoint
from rrcm.training import finetune, pretrain
from rrcm.training.engine import distributed, loop

SYMMETRIC = PRETRAIN.loss | {"symmetric": True}
MIX = Mix(mixup=0.8, cutmix=1.0, prob=1.0, switch=0.5, smoothing=0.1)

DATA = {"train": split(64, seed=0), "validation": split(20, seed=1)}
COMMON = dataclasses.replace(PRETRAIN, steps=4, batch_size=16, seed=3)
AVERAGED = dataclasses.replace(COMMON.target, start=0.5, end=0.9)
PRETRAININGS = {
    "both ways": dataclasses.replace(COMMON, loss=SYMMETRIC, target=AVERAGED),
}
RUN = dataclasses.replace(MINI.runs["tiny-rrcm-s050"], seed=3)
RECIPE = dataclasses.replace(MINI.recipes["finetune"], epochs=1, batch_size=16)
RECIPES = {
    "mixed": dataclasses.replace(RECIPE, mix=MIX),
    "resnet": dataclasses.replace(RECIPE, final_norm=False),
    "reweighting": dataclasses.replace(RECIPE, epochs=3),
    "catrs": RECIPE,
}
RUNS = {  # of these names, of other methods
    name: dataclasses.replace(RUN, method=name, loss=loss)
    for name, loss in {
        "reweighting": {"m": 1, "steps": 1, "step": 0.2, "begin": 0.3, "keep": 0.3, "every": 1},
        "catrs": {"lbd": 1.0, "m": 2, "steps": 1, "epsilon": 0.2, "draws": 9},
    }.items()
}
RESNET = {"size": "8", "image_size": 8, "channels": 1, "mean": [0.3], "std": [0.2]}
RESNET |= {"projector_width": 8, "projector_dim": 4}
NORMS = {"rows": (nn.BatchNorm1d, ()), "pictures": (nn.BatchNorm2d, (3, 2))}


def begin(name: str) -> loop.State:
    """A training of this file; under plain SGD, where rounding stays rounding."""
    if name in PRETRAININGS:
        state, momentum = pretrain.start(PRETRAININGS[name], MODEL), 0.0
    else:
        model = Model(architecture="resnet", shape=RESNET) if name == "resnet" else MODEL
        state, momentum = finetune.start(RUN, RECIPES[name], model, classes=4), 0.9
    groups = [
        {k: g[k] for k in g.keys() & {"params", "lr_scale"}} for g in state.optimizer.param_groups
    ]
    state.optimizer = torch.optim.SGD(groups, lr=1.0, momentum=momentum)
    return state


def states(name: str, state: loop.State):
    """Train ``state``."""
    if name in PRETRAININGS:
        return pretrain.pretrain(state, DATA["train"], PRETRAININGS[name])
    run, teacher = RUNS.get(name, RUN), finetune.start(RUN, RECIPE, MODEL, classes=4)
    method, noisy = registry.load("methods", run.method), torch.tensor(RUN.sigma)
    told = teacher.modules["classifier"], noisy
    return finetune.train(state, method, DATA, run, RECIPES[name], teacher=told)


def trained(name: str) -> dict[str, Tensor]:
    """Weights, buffers and log at the end."""
    state = begin(name)
    for _ in states(name, state):
        pass
    return {
        **{
            f"{owner}.{key}": tensor
            for owner, module in state.modules.items()
            for key, tensor in module.state_dict().items()
        },
        **{f"kept.{key}": tensor for key, tensor in state.kept.items()},
        "log": torch.tensor([[*row.values()] for row in state.log], dtype=torch.float64),
        "score": torch.tensor(max(state.best_score, 0.0)),
    }


def normalised(name: str, rows: slice) -> dict[str, Tensor]:
    """Output and gradients, in float64, of a BatchNorm that sees some rows of a batch of 10."""
    kind, picture = NORMS[name]
    generator = torch.Generator().manual_seed(0)
    x, slope = torch.randn(2, 10, 5, *picture, dtype=torch.float64, generator=generator)
    norm = kind(5, dtype=torch.float64)
    with torch.no_grad():
        norm.weight.copy_(torch.linspace(0.5, 2, 5))
    distributed.synchronise(norm)
    x = x[rows].clone().requires_grad_()
    y = norm(x)
    (y * slope[rows]).sum().backward()
    return {"y": y.detach(), "x": x.grad, "w": norm.weight.grad, "b": norm.bias.grad} | {
        name: tensor.double() for name, tensor in norm.named_buffers()
    }


def main(folder: str) -> None:
    """In one of two processes."""
    torch.set_num_threads(1)
    out = Path(folder)
    with distributed.joined():
        rank = distributed.rank()
        found = {
            f"{name}/{key}": tensor
            for name in NORMS
            for key, tensor in normalised(name, slice(5 * rank, 5 * rank + 5)).items()
        }
        found["gathered"] = distributed.gather(torch.tensor([[10.0 * rank], [10.0 * rank + 1]]))
        heard, text = distributed.from_first(
            ({"a": torch.tensor(1), "b": torch.ones(2, dtype=torch.bfloat16)}, "text")
            if rank == 0
            else None,
            device="cpu",
        )
        assert text == "text" and distributed.from_first(None, device="cpu") is None
        found |= heard
        for name in [*PRETRAININGS, *RECIPES]:
            found |= {f"{name}/{key}": tensor for key, tensor in trained(name).items()}

        interrupted = pretrain.start(COMMON, MODEL)  # with AdamW
        for state in pretrain.pretrain(interrupted, DATA["train"], COMMON):
            if state.step == 3 and rank == 0:
                state.save(out / "interrupted")
        if rank == 0:
            interrupted.save(out / "uninterrupted")
        resumed = pretrain.start(COMMON, MODEL)
        torch.distributed.barrier()
        nowhere = out if rank == 0 else out / "another host"
        assert resumed.resume(nowhere / "interrupted") and resumed.step == 3
        for _ in pretrain.pretrain(resumed, DATA["train"], COMMON):
            pass
        resumed.save(out / f"resumed-{rank}")
        checkpoint.save(out / f"found-{rank}", found)


if __name__ == "__main__":
    main(*sys.argv[1:])
