"""What several test files need."""

import typing
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import numpy as np
import torch
from hypothesis import settings
from torch import Tensor, nn

from rrcm.config import params, sections
from rrcm.config.denoisers import Denoising
from rrcm.config.evaluation import Representation
from rrcm.config.generation import Generation
from rrcm.config.params import Params
from rrcm.core.schema import parse, read_yaml
from rrcm.data.splits.shards import Split

TESTS = Path(__file__).parents[1]
MINI = params.load(TESTS / "mini.yaml")
MORE = read_yaml(TESTS / "mini-more.yaml")
PRETRAIN = MINI.pretrain["tiny"]
MODEL = sections.Model(architecture="vit", shape=MINI.models["tiny"])
GENERATION = parse(MORE["generations"]["told"], Generation, where="generations")
DENOISING = parse(MORE["denoisers"]["tiny"] | {"steps": 1}, Denoising, where="denoisers")
REPRESENTATION = parse(MORE["representations"]["tiny"], Representation, where="representations")

few = settings(deadline=None, max_examples=25)


@cache
def shipped(name: str) -> Params:
    """A shipped preset, read once: YAML in Python takes a second."""
    return params.load(TESTS.parent / f"presets/{name}.yaml")


class Linear(nn.Module):
    """The smallest classifier: (x [B, ...], sigma) -> scores [B, K], whatever sigma is."""

    def __init__(self, pixels: int, classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(pixels, classes)

    def forward(self, x: Tensor, sigma: Tensor) -> Tensor:
        return self.linear(x.flatten(1))


def constants(component: ModuleType) -> dict[str, Any]:
    """Some valid constant for each knob of a component's ``Config``."""
    some = {float: 0.5, int: 2, bool: False, list[float]: [0.5, 1.0]}
    hints = typing.get_type_hints(component.Config).items()
    return {
        knob: some.get(kind) or next(iter(typing.get_args(kind)), False) for knob, kind in hints
    }


def turned(component: ModuleType, knob: str) -> Any:
    """Another valid value of a knob than that of `constants`."""
    kind, value = typing.get_type_hints(component.Config)[knob], constants(component)[knob]
    if typing.get_origin(kind) is Literal:
        return next(option for option in typing.get_args(kind) if option != value)
    if kind is bool:
        return not value
    return [2 * each for each in value] if isinstance(value, list) else 2 * value


def descent(network: nn.Module, loss: Callable[[], Tensor], *, lr: float, steps: int) -> Tensor:
    """What a loss is, on average, before each of some steps of plain SGD."""
    optimizer, history = torch.optim.SGD(network.parameters(), lr=lr), []
    for _ in range(steps):
        history.append(loss().mean())
        optimizer.zero_grad()
        history[-1].backward()
        optimizer.step()
    return torch.stack(history)  # [steps]


def equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    """Whether two sets of named tensors are the same, bit for bit."""
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def contents(folder: Path) -> dict[str, bytes]:
    """All files below a folder."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def split(images: int, seed: int) -> Split:
    """Noisy digits of a kind: class c is bright in two rows of its own."""
    rng = np.random.default_rng(seed)
    labels = np.arange(images) % 4
    pixels = rng.integers(0, 6, size=(images, 1, 8, 8))
    for i, c in enumerate(labels):
        pixels[i, :, 2 * c : 2 * c + 2] += 11
    return Split(
        idx=np.arange(images),
        images=pixels.astype(np.uint8),
        labels=labels,
        classes=("a", "b", "c", "d"),
        max_value=16,
    )
