"""Steps of training from scratch per second: this project's, and a plain PyTorch loop's.

``python -m benchmarks.finetune`` trains LeNet and two ViTs by the same loss (Gaussian
augmentation), batch and optimizer on 60,000 random images of 28 x 28, in turns. Ours is
`rrcm.training.finetune` as the stage runs it: random numbers by row, so that any number of devices
and any resumption give the same network; checks, clipping, the log. The plain loop indexes a
tensor by a random permutation, adds `torch.randn_like`, and takes a step in float32; nothing else.
Its LeNet is PyTorch's layers in a row, its ViT is ours.
"""

import argparse
import statistics
import time
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rrcm.config.sections import Compute, Mix, Model, Optimizer, Recipe, Run
from rrcm.core import registry
from rrcm.data.splits.shards import Split
from rrcm.models.trained.base import classifier
from rrcm.training import finetune

IMAGES, SIDE, CLASSES, SIGMA = 60_000, 28, 10, 0.25
PROJECTOR = {"projector_width": 8, "projector_dim": 8}
VIT = {"size": "64x4x4", "position_std": 0.5, "init": "pytorch", **PROJECTOR}
NETWORKS = {
    "lenet": ("lenet", PROJECTOR),
    "vit4": ("vit", VIT | {"patch_size": 4}),
    "vit7": ("vit", VIT | {"patch_size": 7}),
}
LR, MOMENTUM, DECAY = 0.01, 0.9, 1e-4
BATCH = 256


class Trained(NamedTuple):
    """A network, how ours is trained, and the steps of a turn."""

    network: str
    precision: str
    compiled: bool
    steps: int


TRAINED = (
    Trained("lenet", "fp32", compiled=False, steps=40),
    Trained("vit7", "fp32", compiled=True, steps=20),
    Trained("vit7", "bf16", compiled=True, steps=20),
    Trained("vit4", "fp32", compiled=True, steps=6),
    Trained("vit4", "bf16", compiled=True, steps=6),
)


def declared(name: str) -> Model:
    """One of `NETWORKS`."""
    architecture, shape = NETWORKS[name]
    return Model(architecture=architecture, shape=shape | {"image_size": SIDE, "channels": 1})


def images() -> Split:
    """Random pixels and labels."""
    rng = np.random.default_rng(0)
    return Split(
        idx=np.arange(IMAGES),
        images=rng.integers(0, 256, (IMAGES, 1, SIDE, SIDE), dtype=np.uint8),
        labels=rng.integers(0, CLASSES, IMAGES),
        classes=tuple(map(str, range(CLASSES))),
        max_value=255,
    )


def recipe(batch: int, *, precision: str, compiled: bool) -> Recipe:
    """Of `presets/mnist.yaml`, for so many epochs that no benchmark reaches their end."""
    compute = {"devices": 1, "accumulate": 1, "recompute": False, "workers": 0}
    optimizer = {"algorithm": "sgd", "lr": LR, "momentum": MOMENTUM, "weight_decay": DECAY}
    rate = {"warmup": 0.0, "warmup_by": "step", "horizon": 1.0, "milestones": [0.5], "gamma": 0.1}
    return Recipe(
        labels=1.0,
        epochs=1000,
        batch_size=batch,
        optimizer=Optimizer(**optimizer, **rate, clip=float("inf"), clip_warmup=False),
        layer_decay=1.0,
        head="trainable",
        final_norm=False,
        condition="exact",
        selection="last",
        validation_draws=1,
        augment=[],
        mix=Mix(mixup=0.0, cutmix=0.0, prob=1.0, switch=0.5, smoothing=0.0),
        compute=Compute(**compute, precision=precision, compile=compiled),
    )


def ours(model: Model, split: Split, made_by: Recipe) -> Iterator[object]:
    """Train as the stage does; yields after each step."""
    run = Run(
        architecture=model.architecture,
        model="bench",
        method="gaussian",
        sigma=SIGMA,
        seed=0,
        start="none",
        recipe="bench",
        loss={},
    )
    state = finetune.start(run, made_by, model, classes=CLASSES)
    method = registry.load("methods", "gaussian")
    yield from finetune.train(state, method, {"train": split}, run, made_by)


class Lenet(nn.Sequential):
    """The layers in a row."""

    def __init__(self) -> None:
        """Initialise as PyTorch does by default."""
        super().__init__(
            *(nn.Conv2d(1, 20, 5), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(20, 50, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
            *(nn.Linear(800, 500), nn.ReLU(), nn.Linear(500, CLASSES)),
        )

    def forward(self, x: Tensor, sigma: Tensor) -> Tensor:
        """Scores; ``sigma`` is not used."""
        return super().forward(x)


def plain(model: Model, split: Split, batch: int) -> Iterator[object]:
    """The usual loop in float32; yields after each step."""
    network: nn.Module = Lenet()
    if model.architecture != "lenet":
        network = classifier.build(model, classes=CLASSES, condition="exact", final_norm=False)
    network.train()
    x, y = torch.from_numpy(split.images).float() / 255, torch.from_numpy(split.labels)
    optimizer = torch.optim.SGD(
        network.parameters(), lr=LR, momentum=MOMENTUM, weight_decay=DECAY, fused=True
    )
    sigma = torch.tensor(SIGMA)
    while True:
        for rows in torch.randperm(len(x)).split(batch):
            images = x[rows]
            scores = network(images + SIGMA * torch.randn_like(images), sigma)
            loss = F.cross_entropy(scores, y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            yield loss


def measure(one: Trained, *, repeats: int) -> str:
    """The seconds of a step in every turn, as a table."""
    model, split = declared(one.network), images()
    made_by = recipe(BATCH, precision=one.precision, compiled=one.compiled)
    running = {"plain": plain(model, split, BATCH), "ours": ours(model, split, made_by)}
    for each in running.values():
        _seconds(each, one.steps)
    seconds: dict[str, list[float]] = {name: [] for name in running}
    for _ in range(repeats):
        for name, each in running.items():
            seconds[name].append(_seconds(each, one.steps))
    torch.compiler.reset()
    return table(seconds)


def _seconds(steps: Iterator[object], count: int) -> float:
    began = time.perf_counter()
    for _ in range(count):
        next(steps)
    return (time.perf_counter() - began) / count


def table(seconds: dict[str, list[float]]) -> str:
    """Medians and ranges as a Markdown table, and the median ratio of neighbouring turns."""
    lines = [
        "| loop | images/s | ms a step, lowest | median | highest |",
        "| --- |" + " ---: |" * 4,
    ]
    for name, turns in seconds.items():
        middle = statistics.median(turns)
        lines.append(
            f"| {name} | {BATCH / middle:,.0f} | {1e3 * min(turns):.1f} | {1e3 * middle:.1f} | "
            f"{1e3 * max(turns):.1f} |"
        )
    ratios = sorted(a / b for a, b in zip(seconds["plain"], seconds["ours"], strict=True))
    middle = statistics.median(ratios)
    lines.append(f"\nours: {middle:.2f} times the plain loop ({ratios[0]:.2f} to {ratios[-1]:.2f})")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--network", choices=[*NETWORKS], help="default: all of them, in turn")
    parser.add_argument("--precision", default="fp32", choices=["fp32", "bf16"], help="of ours")
    parser.add_argument("--compile", action="store_true", help="compile ours")
    parser.add_argument("--steps", type=int, default=20, help="in a turn")
    parser.add_argument("--repeats", type=int, default=5)
    asked = parser.parse_args()
    one = Trained(asked.network, asked.precision, asked.compile, asked.steps)
    for each in [one] if asked.network else TRAINED:
        way = f"{each.precision}{', compiled' if each.compiled else ''}"
        print(f"\ntraining {each.network}, ours in {way}\n", flush=True)
        print(measure(each, repeats=asked.repeats), flush=True)


if __name__ == "__main__":
    main()
