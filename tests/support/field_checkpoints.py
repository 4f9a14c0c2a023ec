"""Checkpoints as the field's programs write them, and forward passes as they are described.

State dicts are drawn by hand, by names and shapes; passes are plain arithmetic in float64.
"""

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

State = dict[str, torch.Tensor]


class Drawn(dict):
    """A state dict that grows by layers, drawn by a seed."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(seed)

    def add(self, name: str, *shape: int, scale: float = 0.2, centre: float = 0.0) -> None:
        self[name] = centre + scale * torch.randn(*shape, generator=self.generator)

    def conv(self, name: str, after: int, before: int, kernel: int, *, bias: bool = False) -> None:
        scale = (2 / (before * kernel**2)) ** 0.5
        self.add(f"{name}.weight", after, before, kernel, kernel, scale=scale)
        if bias:
            self.add(f"{name}.bias", after)

    def norm(self, name: str, width: int) -> None:
        for part, centre in (("weight", 1), ("bias", 0), ("running_mean", 0), ("running_var", 1)):
            self.add(f"{name}.{part}", width, scale=0.1, centre=centre)
        self[f"{name}.num_batches_tracked"] = torch.tensor(7)

    def linear(self, name: str, after: int, before: int) -> None:
        self.add(f"{name}.weight", after, before, scale=before**-0.5)
        self.add(f"{name}.bias", after)


def normed(w: State, name: str, x: torch.Tensor, eps: float = 1e-5) -> torch.Tensor:
    mean, var, scale, shift = (
        w[f"{name}.{part}"][:, None, None]
        for part in ("running_mean", "running_var", "weight", "bias")
    )
    return (x - mean) / (var + eps).sqrt() * scale + shift


def residual(
    layers: tuple[int, ...],
    widths: tuple[int, ...],
    classes: int,
    *,
    kernel: int = 3,
    deep: bool = False,
    shortcut: str = "downsample",
    head: str = "fc",
    seed: int = 0,
) -> Drawn:
    """A ResNet, with ``deep`` blocks of bottlenecks; no ``shortcut`` for option A."""
    state, before = Drawn(seed), widths[0]
    state.conv("conv1", before, 3, kernel)
    state.norm("bn1", before)
    for stage, (count, width) in enumerate(zip(layers, widths, strict=True), start=1):
        for place in range(count):
            name, after = f"layer{stage}.{place}", width * (4 if deep else 1)
            inside = [(width, before, 3), (width, width, 3)]
            if deep:
                inside = [(width, before, 1), (width, width, 3), (after, width, 1)]
            for number, shape in enumerate(inside, start=1):
                state.conv(f"{name}.conv{number}", *shape)
                state.norm(f"{name}.bn{number}", shape[0])
            if shortcut and before != after:
                state.conv(f"{name}.{shortcut}.0", after, before, 1)
                state.norm(f"{name}.{shortcut}.1", after)
            before = after
    state.linear(head, classes, before)
    return state


def residual_scores(w: State, x: torch.Tensor) -> torch.Tensor:
    kernel = w["conv1.weight"].shape[-1]
    large = kernel == 7
    x = F.conv2d(x, w["conv1.weight"], stride=2 if large else 1, padding=kernel // 2)
    x = F.relu(normed(w, "bn1", x))
    x = F.max_pool2d(x, 3, 2, 1) if large else x
    for name in dict.fromkeys(n.rpartition(".conv1")[0] for n in w if ".conv1" in n):
        stride = 2 if name.endswith(".0") and not name.startswith("layer1") else 1
        deep = f"{name}.conv3.weight" in w
        made, last = x, 3 if deep else 2
        for number in range(1, last + 1):
            weight = w[f"{name}.conv{number}.weight"]
            by = stride if number == last - 1 else 1
            made = F.conv2d(made, weight, stride=by, padding=weight.shape[-1] // 2)
            made = normed(w, f"{name}.bn{number}", made)
            made = made if number == last else F.relu(made)
        for kind in ("downsample", "shortcut"):
            if f"{name}.{kind}.0.weight" in w:
                x = F.conv2d(x, w[f"{name}.{kind}.0.weight"], stride=stride)
                x = normed(w, f"{name}.{kind}.1", x)
        if x.shape[1] != made.shape[1]:  # option A
            zeros = torch.zeros(len(x), x.shape[1] // 2, *made.shape[2:], dtype=x.dtype)
            x = torch.cat([zeros, x[:, :, ::2, ::2], zeros], dim=1)
        x = F.relu(made + x)
    head = "fc" if "fc.weight" in w else "linear"
    return x.mean(dim=(2, 3)) @ w[f"{head}.weight"].T + w[f"{head}.bias"]


def wide(count: int, widen: int, classes: int) -> Drawn:
    """A WideResNet of 6 ``count`` + 4 layers."""
    state, before = Drawn(), 16
    state.conv("conv1", 16, 3, 3)
    for stage, width in enumerate((16, 32, 64), start=1):
        for place in range(count):
            name, after = f"block{stage}.layer.{place}", width * widen
            for number, inside in enumerate((before, after), start=1):
                state.norm(f"{name}.bn{number}", inside)
                state.conv(f"{name}.conv{number}", after, inside, 3)
            if before != after:
                state.conv(f"{name}.convShortcut", after, before, 1)
            before = after
    state.norm("bn1", before)
    state.linear("fc", classes, before)
    return state


def wide_scores(w: State, x: torch.Tensor) -> torch.Tensor:
    x = F.conv2d(x, w["conv1.weight"], padding=1)
    for name in dict.fromkeys(".".join(n.split(".")[:3]) for n in w if n.startswith("block")):
        stride = 2 if name in ("block2.layer.0", "block3.layer.0") else 1
        first = F.relu(normed(w, f"{name}.bn1", x))
        made = F.conv2d(first, w[f"{name}.conv1.weight"], stride=stride, padding=1)
        made = F.relu(normed(w, f"{name}.bn2", made))
        made = F.conv2d(made, w[f"{name}.conv2.weight"], padding=1)
        if f"{name}.convShortcut.weight" in w:  # of other channels
            x = F.conv2d(first, w[f"{name}.convShortcut.weight"], stride=stride)
        x = x + made
    x = F.avg_pool2d(F.relu(normed(w, "bn1", x)), 8).flatten(1)
    return x @ w["fc.weight"].T + w["fc.bias"]


def lenet() -> Drawn:
    state = Drawn()
    state.conv("conv1", 20, 1, 5, bias=True)
    state.conv("conv2", 50, 20, 5, bias=True)
    state.linear("fc1", 500, 800)
    state.linear("fc2", 10, 500)
    return state


def lenet_scores(w: State, x: torch.Tensor) -> torch.Tensor:
    for name in ("conv1", "conv2"):
        x = F.max_pool2d(F.relu(F.conv2d(x, w[f"{name}.weight"], w[f"{name}.bias"])), 2)
    hidden = F.relu(x.flatten(1) @ w["fc1.weight"].T + w["fc1.bias"])
    return hidden @ w["fc2.weight"].T + w["fc2.bias"]


def dense() -> Drawn:
    """DenseNet-40: 3 blocks of 6 layers, 12 new channels each."""
    state, width = Drawn(), 24
    state.conv("features.conv0", width, 3, 3)
    for block in (1, 2, 3):
        for layer in range(1, 7):
            name = f"features.block{block}.layer{layer}"
            state.norm(f"{name}.brc_1.norm", width)
            state.conv(f"{name}.brc_1.conv", 48, width, 1)
            state.norm(f"{name}.brc_2.norm", 48)
            state.conv(f"{name}.brc_2.conv", 12, 48, 3)
            width += 12
    state.norm("features.norm_last", width)
    state.linear("classifier", 10, width)
    return state


def dense_scores(w: State, x: torch.Tensor) -> torch.Tensor:
    x = F.conv2d(x, w["features.conv0.weight"], padding=1)
    for block in (1, 2, 3):
        for layer in range(1, 7):
            name = f"features.block{block}.layer{layer}"
            new = F.relu(normed(w, f"{name}.brc_1.norm", x))
            new = F.relu(
                normed(w, f"{name}.brc_2.norm", F.conv2d(new, w[f"{name}.brc_1.conv.weight"]))
            )
            x = torch.cat([x, F.conv2d(new, w[f"{name}.brc_2.conv.weight"], padding=1)], dim=1)
        x = F.avg_pool2d(x, 2) if block < 3 else x
    x = F.avg_pool2d(F.relu(normed(w, "features.norm_last", x)), 8).flatten(1)
    return x @ w["classifier.weight"].T + w["classifier.bias"]


def dncnn() -> Drawn:
    state = Drawn(seed=5)
    state.conv("dncnn.0", 64, 3, 3, bias=True)
    for place in range(2, 47, 3):
        state.conv(f"dncnn.{place}", 64, 64, 3)
        state.norm(f"dncnn.{place + 1}", 64)
    state.conv("dncnn.47", 3, 64, 3)
    state["dncnn.47.weight"] *= 0.1
    return state


def denoised(w: State, x: torch.Tensor) -> torch.Tensor:
    noise = F.relu(F.conv2d(x, w["dncnn.0.weight"], w["dncnn.0.bias"], padding=1))
    for place in range(2, 47, 3):
        noise = F.conv2d(noise, w[f"dncnn.{place}.weight"], padding=1)
        noise = F.relu(normed(w, f"dncnn.{place + 1}", noise, eps=1e-4))
    return x - F.conv2d(noise, w["dncnn.47.weight"], padding=1)


def prefixed(prefix: str, state: State) -> State:
    return {f"{prefix}{name}": tensor for name, tensor in state.items()}


def cohen(state: State, *, prefix: str = "1.", arch: str = "cifar_resnet20") -> dict:
    """As Cohen et al. and heirs: a Sequential behind a layer without tensors, with SGD's state."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(3))], lr=0.1, momentum=0.9)
    return {
        "epoch": 90,
        "arch": arch,
        "state_dict": prefixed(prefix, state),
        "optimizer": optimizer.state_dict(),
    }


CIFAR10 = ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))
CIFAR100 = ((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761))
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
NONE = ((0.0,), (1.0,))
OWN = ((0.1, 0.2, 0.3), (0.5, 0.25, 0.125))
SMALL = residual((3, 3, 3), (16, 32, 64), 10)
OF_100 = residual((1, 1, 1), (16, 32, 64), 100)
OF_IMAGENET = residual((1, 2, 1, 1), (8, 16, 32, 64), 20, kernel=7, deep=True)
SHALLOW = residual((1, 1, 1, 1), (8, 16, 32, 64), 20, kernel=7)
PYTORCH_CIFAR = residual((2, 2, 2, 2), (8, 16, 32, 64), 10, shortcut="shortcut", head="linear")
OPTION_A = residual((3, 3, 3), (16, 32, 64), 10, shortcut="", head="linear")
WIDE = wide(2, 2, 10)
NARROW = wide(1, 1, 10)
OF_ARGS = argparse.Namespace(data_path="/data", model="resnet50", lr=0.1)
FORMATS: dict[str, tuple[Callable[[], object], Callable, State, tuple, str]] = {
    # what the file holds; the pass, weights and mean and std that are certified; what is said
    "Cohen et al., CIFAR-10": (
        lambda: cohen(SMALL), residual_scores, SMALL, CIFAR10,
        "(state_dict, arch 'cifar_resnet20'): ResNet-20, 10 classes, normalised by cifar10 in the "
        "layer before it (else --normalise); pictures of 3 x 32 x 32",
    ),
    "Cohen et al., ImageNet": (
        lambda: cohen(OF_IMAGENET, prefix="1.module.", arch="resnet50"),
        residual_scores, OF_IMAGENET, IMAGENET,
        "ResNet-17, 20 classes, normalised as usual for ImageNet",
    ),
    "CAT-RS, CIFAR-100": (
        lambda: cohen(OF_100), residual_scores, OF_100, CIFAR100,
        "ResNet-8, 100 classes, normalised by cifar100",
    ),
    "SmoothMix, MNIST": (
        lambda: cohen(lenet(), arch="lenet"), lenet_scores, lenet(), NONE,
        "LeNet, 10 classes, normalised by nothing, as grey pictures by Cohen's heirs (else",
    ),
    "Consistency, DenseNet": (
        lambda: cohen(dense()), dense_scores, dense(), CIFAR10, "DenseNet-40, 10 classes",
    ),
    "denoised smoothing, WideResNet": (
        lambda: cohen(WIDE, prefix="1.module.", arch="cifar_wrn"), wide_scores, WIDE, CIFAR10,
        "WideResNet-16-2, 10 classes, normalised by cifar10",
    ),
    "RobustBench, WideResNet": (  # one block is trained, but never called
        lambda: {
            "state_dict": prefixed("module.", NARROW)
            | {f"module.sub_block1.layer.0.{n}.weight": torch.ones(16) for n in ("bn1", "bn2")}
            | {f"module.{n}": torch.tensor(v) for n, v in zip(("mu", "sigma"), OWN, strict=True)}
        },
        wide_scores, NARROW, OWN, "WideResNet-10-1, 10 classes, normalised by its own mean",
    ),
    "robustness": (  # its attacker has the network once more
        lambda: {
            "model": {
                f"module.{start}{n}": t
                for start, normaliser in (("", "normalizer"), ("attacker.", "normalize"))
                for n, t in (prefixed("model.", SMALL) | {
                    f"{normaliser}.new_{k}": torch.tensor(v)[:, None, None]
                    for k, v in zip(("mean", "std"), OWN, strict=True)
                }).items()
            },
            "epoch": 3,
        },
        residual_scores, SMALL, OWN, "ResNet-20, 10 classes, normalised by its own mean",
    ),
    "MACER": (
        lambda: {"net": {**SMALL}, "epoch": 440}, residual_scores, SMALL, NONE,
        "(net): ResNet-20, 10 classes, normalised by nothing, as by MACER",
    ),
    "torchvision's references": (
        lambda: {
            "model": {**SMALL}, "optimizer": {}, "lr_scheduler": {}, "epoch": 3, "args": OF_ARGS,
            "model_ema": prefixed("module.", SHALLOW) | {"n_averaged": torch.tensor(9)},
            "scaler": {"scale": 65536.0},
        },
        residual_scores, SHALLOW, IMAGENET, "(model_ema): ResNet-10, 20 classes",
    ),
    "RobustBench, mu and sigma": (
        lambda: {
            "best": {
                "state_dict": prefixed("module.model.", SMALL)
                | {
                    f"module.{name}": torch.tensor(value)[None, :, None, None]
                    for name, value in zip(("mu", "sigma"), OWN, strict=True)
                },
                "acc": np.float64(0.5),
            }
        },
        residual_scores, SMALL, OWN,
        "(best, state_dict): ResNet-20, 10 classes, normalised by its own mean and std",
    ),
    "RobustBench, normalize": (
        lambda: prefixed("model.", PYTORCH_CIFAR)
        | {f"normalize.{n}": torch.tensor(v) for n, v in zip(("mean", "std"), OWN, strict=True)},
        residual_scores, PYTORCH_CIFAR, OWN,
        "net.pth: ResNet-18, 10 classes, normalised by its own",
    ),
    "compiled, bare": (
        lambda: prefixed("_orig_mod.module.", SHALLOW), residual_scores, SHALLOW, IMAGENET,
        "net.pth: ResNet-10, 20 classes, normalised as usual for ImageNet",
    ),
}  # fmt: skip


def logits(forward: Callable, state: State, x: torch.Tensor, normalisation: tuple) -> torch.Tensor:
    """Scores in float64 of ``x`` [B, C, H, W] in [0, 1], noise included."""
    w = {name: t.double() for name, t in state.items()}
    mean, std = (torch.tensor(v, dtype=torch.float64)[:, None, None] for v in normalisation)
    return forward(w, (x.double() - mean) / std)


def written(folder: Path, *held: object, **options: bool) -> Iterator[Path]:
    """Files that `torch.save` wrote."""
    for place, one in enumerate(held):
        path = folder / f"net{place or ''}.pth"
        torch.save(one, path, **options)
        yield path
