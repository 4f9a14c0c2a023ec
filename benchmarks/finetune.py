"""Steps of training from scratch per second: this project's, and a plain PyTorch loop's.

``python -m benchmarks.finetune`` trains LeNet, two ViTs and ResNet-9 by the same loss (Gaussian
augmentation), batch and optimizer on 60,000 random images, in turns. Ours is
`rrcm.training.finetune` as the stage runs it: random numbers by row, so that any number of devices
and any resumption give the same network; checks, clipping, the log; crops and flips for ResNet-9.
The plain loop indexes a tensor by a random permutation, adds `torch.randn_like`, and takes a step
in float32; nothing else. Its LeNet and ResNet-9 are PyTorch's layers in a row, its ViT is ours.
"""

import argparse
import statistics
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rrcm.config import params
from rrcm.config.params import Params
from rrcm.config.sections import Model, Recipe
from rrcm.core import registry
from rrcm.data.splits.shards import Split
from rrcm.models.trained.base import classifier
from rrcm.models.trained.base.classifier import Unconditional
from rrcm.training import finetune

IMAGES, CLASSES, SIGMA = 60_000, 10, 0.25
NETWORKS = {  # preset, its model, and what is different here
    "lenet": ("mnist", "lenet", {}),
    "vit4": ("fashion-mnist", "vit", {"patch_size": 4}),
    "vit7": ("fashion-mnist", "vit", {}),
    "resnet9": ("cifar10-cpu", "resnet9", {}),
}
AUGMENT: dict[str, list[Any]] = {"resnet9": [{"crop": {"pad": 4}}, {"flip": {"p": 0.5}}]}
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
    Trained("resnet9", "fp32", compiled=False, steps=4),
    Trained("resnet9", "bf16", compiled=False, steps=4),
)


def declared(name: str) -> Model:
    """One of `NETWORKS`."""
    preset, model, changes = NETWORKS[name]
    return Model(architecture=model, shape=of_preset(preset).models[model] | changes)


def of_preset(name: str) -> Params:
    return params.load(Path(f"presets/{name}.yaml"))


def images(model: Model) -> Split:
    """Random pixels and labels."""
    rng, side = np.random.default_rng(0), model.shape["image_size"]
    return Split(
        idx=np.arange(IMAGES),
        images=rng.integers(0, 256, (IMAGES, model.shape["channels"], side, side), dtype=np.uint8),
        labels=rng.integers(0, CLASSES, IMAGES),
        classes=tuple(map(str, range(CLASSES))),
        max_value=255,
    )


def recipe(one: Trained) -> Recipe:
    """Of `presets/mnist.yaml`, for so many epochs that no benchmark reaches their end."""
    usual = of_preset("mnist").recipes["scratch"]
    compute = replace(usual.compute, precision=one.precision, compile=one.compiled)
    augment = AUGMENT.get(one.network, [])
    return replace(usual, epochs=1000, batch_size=BATCH, augment=augment, compute=compute)


def ours(model: Model, split: Split, made_by: Recipe) -> Iterator[object]:
    """Train as the stage does; yields after each step."""
    run = replace(
        of_preset("mnist").runs["lenet-gaussian-s025"], architecture=model.architecture, sigma=SIGMA
    )
    state = finetune.start(run, made_by, model, classes=CLASSES)
    method = registry.load("methods", run.method)
    yield from finetune.train(state, method, {"train": split}, run, made_by)


def lenet() -> nn.Sequential:
    """The layers in a row."""
    return nn.Sequential(
        *(nn.Conv2d(1, 20, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(20, 50, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(800, 500), nn.ReLU(), nn.Linear(500, CLASSES)),
    )


class Residual(nn.Sequential):
    """Layers beside a shortcut."""

    def forward(self, x: Tensor) -> Tensor:
        """Their sum."""
        return x + super().forward(x)


def resnet9(w: int) -> nn.Sequential:
    """The layers in a row, of ``w`` to 8 ``w`` channels."""

    def layers(channels: int, out: int) -> list[nn.Module]:
        return [nn.Conv2d(channels, out, 3, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU()]

    def residual(width: int) -> Residual:
        return Residual(*layers(width, width), *layers(width, width))

    return nn.Sequential(
        *layers(3, w),
        *(*layers(w, 2 * w), nn.MaxPool2d(2), residual(2 * w)),
        *(*layers(2 * w, 4 * w), nn.MaxPool2d(2)),
        *(*layers(4 * w, 8 * w), nn.MaxPool2d(2), residual(8 * w)),
        *(nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(8 * w, CLASSES)),
    )


def plain(model: Model, split: Split, batch: int) -> Iterator[object]:
    """The usual loop in float32; yields after each step."""
    network: nn.Module
    if model.architecture == "lenet":
        network = Unconditional(lenet())
    elif model.architecture == "resnet9":
        network = Unconditional(resnet9(model.shape["stem"]))
    else:
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
    model = declared(one.network)
    split, made_by = images(model), recipe(one)
    running = {"plain": plain(model, split, BATCH), "ours": ours(model, split, made_by)}
    for each in running.values():
        seconds_a_step(each, one.steps)
    seconds: dict[str, list[float]] = {name: [] for name in running}
    for _ in range(repeats):
        for name, each in running.items():
            seconds[name].append(seconds_a_step(each, one.steps))
    torch.compiler.reset()
    return table(seconds)


def seconds_a_step(steps: Iterator[object], count: int) -> float:
    """The mean over the next ``count`` steps."""
    began = time.perf_counter()
    for _ in range(count):
        next(steps)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
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
