"""Recognises the network of a state dict by the names and shapes of its tensors alone.

ResNets are those of torchvision and of Cohen et al. (2019), arXiv:1902.02918; LeNet and DenseNet
those of Jeong & Shin (2020), arXiv:2006.04062; DnCNN of Salman et al. (2020), arXiv:2003.01908;
WideResNets of Zagoruyko & Komodakis (2016), arXiv:1605.07146.
"""

import math
import re
from collections import OrderedDict
from pathlib import Path
from typing import NamedTuple

import torch
from timm.models.resnet import BasicBlock, Bottleneck, make_blocks
from torch import Tensor, nn

from rrcm.core.errors import CheckpointError
from rrcm.models import state_dict

Tensors = dict[str, Tensor]
SMALL, LARGE = 32, 224  # pixels a side of pictures, by the first convolution; shapes do not tell
LENETS = (28, 32)  # of MNIST and its kin, and of CIFAR-10
COUNTED = "num_batches_tracked"  # of BatchNorm, which nothing computes with
# What tensors of other networks, or hostile ones, raise.
MISFIT = (LookupError, ValueError, ArithmeticError, RuntimeError, AssertionError, TypeError)
LOOKS = {  # names, what they look like, and the way out
    r"(dncnn\.)?2\.weight": "a DnCNN denoiser; give it with --denoiser beside its classifier",
    r"input_blocks\.": "a diffusion UNet; `rrcm import-denoiser` takes it",
    r"(base_model\.)?(patch_embed|cls_token)": "a ViT; `rrcm import` takes those of rRCM",
    r"features\.\d+\.": "a VGG, AlexNet or MobileNet",
    r"layer\.0\.block\.": "a WideResNet whose activation no tensor shows",
    r"layer1\.0\.bn1": "a residual network of another kind",
}


class Recognised(NamedTuple):
    """A network, what it is called, and the tensors under its names, in its order.

    ``side`` is that of its pictures, `SMALL` or `LARGE` where shapes leave it open.
    """

    network: nn.Module
    name: str
    side: int
    tensors: Tensors

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of its pictures, [C, H, W]."""
        first = next(tensor for tensor in self.tensors.values() if tensor.ndim == 4)
        return first.shape[1], self.side, self.side

    @property
    def classes(self) -> int:
        """Rows of its last layer."""
        return len([*self.tensors.values()][-1])


def network(path: Path, tensors: Tensors, *, denoiser: bool = False) -> Recognised:
    """The classifier, or denoiser, of ``tensors``, which are those of ``path``; in evaluation mode.

    Raises:
        CheckpointError: It is none of those known, or has other tensors; names what they look like.
    """
    kinds = [_dncnn] if denoiser else [_resnet, _wide_resnet, _lenet, _densenet]
    own = {name: t for name, t in tensors.items() if not name.endswith(COUNTED)}
    for kind in kinds if all(t.numel() for t in own.values()) else []:
        try:
            with torch.device("meta"):  # shapes of a hostile file may claim any memory
                built = kind(own)
        except MISFIT:
            continue
        except CheckpointError as error:
            raise CheckpointError(f"{path}: {error}") from None
        names = built.network.state_dict()
        wanted = {name: [*t.shape] for name, t in names.items() if not name.endswith(COUNTED)}
        try:
            state_dict.check(path, built.tensors, wanted)
        except CheckpointError as error:
            raise CheckpointError(f"{error} (taken for a {built.name})") from None
        state = {name: built.tensors[name].detach().float().clone() for name in wanted}
        counted = {name: torch.zeros((), dtype=torch.int64) for name in names.keys() - wanted}
        built.network.load_state_dict(state | counted, assign=True)
        return built._replace(network=built.network.eval(), tensors=state)
    like = next((w for names, w in LOOKS.items() if any(re.match(names, n) for n in tensors)), "")
    ends = [f"{n[:40]} {[*tensors[n].shape]}" for n in [*[*tensors][:1], *[*tensors][1:][-1:]]]
    raise CheckpointError(
        f"{path}: {len(tensors)} tensors ({' … '.join(ends)}){like and f', as of {like}'}: none of "
        "ResNet, WideResNet, LeNet and the DenseNet of Jeong & Shin; build the network, load them "
        "and pass it to rrcm.smooth, or name timm's (--timm NAME --weights FILE)"
    )


def _count(tensors: Tensors, prefix: str) -> int:
    """How many numbered parts follow ``prefix``."""
    pattern = re.compile(rf"{re.escape(prefix)}(\d+)\.")
    return len({match[1] for name in tensors if (match := pattern.match(name))})


def _chain(**parts: nn.Module) -> nn.Sequential:
    return nn.Sequential(OrderedDict(parts))


class Dense(nn.Sequential):
    """A layer of DenseNet, Huang et al. (2017), arXiv:1608.06993."""

    def forward(self, x: Tensor) -> Tensor:
        """Channels of the input, then the new ones."""
        return torch.cat([x, super().forward(x)], dim=1)  # type: ignore[no-untyped-call]


class Denoising(nn.Sequential):
    """Predicts the noise, Zhang et al. (2017), arXiv:1608.03981."""

    def forward(self, x: Tensor) -> Tensor:
        """Pixels without it, not clipped."""
        return x - super().forward(x)  # type: ignore[no-untyped-call]


class Preactivated(nn.Module):
    """A block of a WideResNet; a shortcut of other channels, too, begins after the first ReLU."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.bn1, self.bn2 = nn.BatchNorm2d(before), nn.BatchNorm2d(after)
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        if before != after:
            self.convShortcut = nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """What the block adds to its shortcut, and this."""
        inner = self.bn1(x).relu()
        made: Tensor = self.conv2(self.bn2(self.conv1(inner)).relu())
        return made + (self.convShortcut(inner) if hasattr(self, "convShortcut") else x)


def _resnet(tensors: Tensors) -> Recognised:
    """A ResNet or ResNeXt as of torchvision, Cohen et al., or with pytorch-cifar's names."""
    own = {
        re.sub(r"^linear\.", "fc.", name.replace(".shortcut.", ".downsample.")): tensor
        for name, tensor in tensors.items()
    }
    width, channels, kernel, _ = own["conv1.weight"].shape
    deep, large = "layer1.0.conv3.weight" in own, kernel == 7
    numbers = range(1, 1 + _count(own, "layer"))
    layers = [_count(own, f"layer{stage}.") for stage in numbers]
    block: type[BasicBlock | Bottleneck] = Bottleneck if deep else BasicBlock
    last = f"0.bn{3 if deep else 2}.weight"
    planes = [len(own[f"layer{stage}.{last}"]) // block.expansion for stage in numbers]
    inside, each, *_ = own["layer1.0.conv2.weight"].shape
    groups = inside // each
    base = inside * 64 // (groups * planes[0]) if deep else 64
    if kernel not in (3, 7) or len(own["bn1.weight"]) != width or len(layers) > 4:
        raise ValueError
    if len(own) < len(tensors):
        raise CheckpointError("linear and fc, or shortcut and downsample, name one layer twice")
    stages, _ = make_blocks(
        (block,) * len(layers), (*planes,), (*layers,), width, cardinality=groups, base_width=base
    )
    name = f"ResNet-{2 + (3 if deep else 2) * sum(layers)}"
    name += f" {groups}x{base}d" * ((groups, base) != (1, 64))
    if "layer2.0.downsample.0.weight" not in own:
        name += " with shortcuts of zeros on both sides"  # shapes do not tell from zeros at one end
        for (_, stage), before, after in zip(stages[1:], planes, planes[1:], strict=False):
            half = (after - before) // 2
            pad = nn.ConstantPad3d((0, 0, 0, 0, half, after - before - half), 0.0)
            stage.get_submodule("0").downsample = nn.Sequential(nn.MaxPool2d(1, stride=2), pad)
    made = _chain(
        conv1=nn.Conv2d(channels, width, kernel, 1 + large, kernel // 2, bias=False),
        bn1=nn.BatchNorm2d(width),
        relu=nn.ReLU(),
        pool=nn.MaxPool2d(3, stride=2, padding=1) if large else nn.Identity(),
        **dict(stages),
        mean=nn.AdaptiveAvgPool2d(1),
        flat=nn.Flatten(),
        fc=nn.Linear(planes[-1] * block.expansion, len(own["fc.weight"])),
    )
    return Recognised(made, name, LARGE if large else SMALL, own)


def _wide_resnet(tensors: Tensors) -> Recognised:
    """As in PyTorch's ports, and RobustBench's, whose ``sub_block1`` is never called."""
    own = {name: t for name, t in tensors.items() if not name.startswith("sub_block1.")}
    width, channels, *_ = own["conv1.weight"].shape
    layers = [_count(own, f"block{stage}.layer.") for stage in (1, 2, 3)]
    parts: dict[str, nn.Module] = {"conv1": nn.Conv2d(channels, width, 3, padding=1, bias=False)}
    widths = [width]
    for stage, count in enumerate(layers, start=1):
        widths.append(len(own[f"block{stage}.layer.0.conv2.weight"]))
        blocks = [Preactivated(widths[-2], widths[-1], stride=1 if stage == 1 else 2)]
        blocks += [Preactivated(widths[-1], widths[-1], stride=1) for _ in range(count - 1)]
        parts[f"block{stage}"] = _chain(layer=nn.Sequential(*blocks))
    parts |= {"bn1": nn.BatchNorm2d(widths[-1]), "relu": nn.ReLU()}
    parts |= {"mean": nn.AdaptiveAvgPool2d(1), "flat": nn.Flatten()}
    if "fc.bias" not in own:
        raise CheckpointError(
            "a WideResNet whose last layer has no bias may normalise what it takes, as no tensor "
            "shows; build it, load the tensors and pass it to rrcm.smooth"
        )
    made = _chain(**parts, fc=nn.Linear(widths[-1], len(own["fc.weight"])))
    name = f"WideResNet-{4 + 2 * sum(layers)}-{widths[1] / width:g}"
    return Recognised(made, name, SMALL, own)


def _lenet(tensors: Tensors) -> Recognised:
    """Without padding, for pictures of 28 or 32 pixels; shapes do not tell from one with it."""
    first, second, hidden = (tensors[f"{n}.weight"].shape for n in ("conv1", "conv2", "fc1"))
    left = math.isqrt(hidden[1] // second[0])
    if (side := 4 * left + 12) not in LENETS:
        raise CheckpointError(
            f"a LeNet whose fc1 has {hidden[1]} inputs is for pictures of {side} pixels, or of "
            f"{4 * left} if its convolutions pad, which no tensor shows; build it, load the "
            "tensors and pass it to rrcm.smooth"
        )
    made = _chain(
        conv1=nn.Conv2d(first[1], first[0], 5), r1=nn.ReLU(), p1=nn.MaxPool2d(2),
        conv2=nn.Conv2d(first[0], second[0], 5), r2=nn.ReLU(), p2=nn.MaxPool2d(2),
        flat=nn.Flatten(), fc1=nn.Linear(hidden[1], hidden[0]), r3=nn.ReLU(),
        fc2=nn.Linear(hidden[0], len(tensors["fc2.weight"])),
    )  # fmt: skip
    return Recognised(made, "LeNet", side, tensors)


def _densenet(tensors: Tensors) -> Recognised:
    """A DenseNet without compression between its blocks."""
    width, channels, *_ = tensors["features.conv0.weight"].shape
    growth, inside, *_ = tensors["features.block1.layer1.brc_2.conv.weight"].shape

    def unit(before: int, after: int, kernel: int) -> nn.Module:
        convolution = nn.Conv2d(before, after, kernel, padding=kernel // 2, bias=False)
        return _chain(norm=nn.BatchNorm2d(before), relu=nn.ReLU(), conv=convolution)

    parts: dict[str, nn.Module] = {"conv0": nn.Conv2d(channels, width, 3, padding=1, bias=False)}
    depth = 4
    for block in range(1, 1 + _count(tensors, "features.block")):
        parts |= {f"pool{block}": nn.AvgPool2d(2)} if block > 1 else {}
        layers = parts[f"block{block}"] = nn.Sequential()
        for layer in range(1, 1 + _count(tensors, f"features.block{block}.layer")):
            two = {"brc_1": unit(width, inside, 1), "brc_2": unit(inside, growth, 3)}
            layers.add_module(f"layer{layer}", Dense(OrderedDict(two)))
            width, depth = width + growth, depth + 2
    parts |= {"norm_last": nn.BatchNorm2d(width), "relu": nn.ReLU()}
    parts |= {"pool": nn.AdaptiveAvgPool2d(1), "flat": nn.Flatten()}
    head = nn.Linear(width, len(tensors["classifier.weight"]))
    made = _chain(features=_chain(**parts), classifier=head)
    return Recognised(made, f"DenseNet-{depth}", SMALL, tensors)


def _dncnn(tensors: Tensors) -> Recognised:
    own = {name.removeprefix("dncnn."): tensor for name, tensor in tensors.items()}
    width, channels, *_ = own["0.weight"].shape
    depth = sum(tensor.ndim == 4 for tensor in own.values())
    layers: list[nn.Module] = [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
    for _ in range(depth - 2):
        inner = nn.Conv2d(width, width, 3, padding=1, bias=False)
        layers += [inner, nn.BatchNorm2d(width, eps=1e-4), nn.ReLU()]
    layers.append(nn.Conv2d(width, channels, 3, padding=1, bias=False))
    made = Denoising(*layers)
    return Recognised(made, f"DnCNN of {depth} layers of {width} channels", SMALL, own)
