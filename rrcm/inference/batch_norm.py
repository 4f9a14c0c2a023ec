"""What BatchNorm remembers of the pictures of a training, beside those that a network gets now.

Shapes and names of tensors do not show a stride, a pooling, an activation, or how pixels were
normalised. With another one, layers get inputs of other mean and variance than in training. So they
do under noise that was not in the training.
"""

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

FEWEST = 10  # pictures
# Between networks rebuilt rightly and wrongly: `python -m benchmarks.rebuilt`.
MEAN, SPREAD = 0.3, 0.45  # of a layer: in standard deviations; in logarithms of a variance


class Layer:
    """Sums of the inputs of a layer: mean and mean square of each channel, of each picture."""

    def __init__(self, name: str, norm: _BatchNorm) -> None:
        self.name, self.norm = name, norm
        self.means, self.squares = list[Tensor](), list[Tensor]()

    def __call__(self, _: nn.Module, inputs: tuple[Any, ...], __: Any) -> None:
        """As a forward hook."""
        values = inputs[0].double().unsqueeze(-1).flatten(2)  # [B, C, places]
        self.means.append(values.mean(2))
        self.squares.append(values.square().mean(2))

    @property
    def pictures(self) -> int:
        """How many it has seen."""
        return sum(map(len, self.means))

    def apart(self) -> tuple[float, float]:
        """How far the mean is from that of training, and the logarithm of the variance.

        The first is the root of the mean square over channels, in standard deviations of training,
        less the variance that so few pictures give it; the second the median of its size.
        """
        means, squares = torch.cat(self.means), torch.cat(self.squares)
        known: Any = self.norm
        then, now = known.running_var.double() + self.norm.eps, means.mean(0)
        chance = means.var(0) / len(means)
        shift = (((now - known.running_mean.double()).square() - chance) / then).mean()
        spread = (squares.mean(0) - now.square()).clamp_min(1e-12) + self.norm.eps
        return float(shift.clamp_min(0).sqrt()), float((spread / then).log().abs().median())


def unlike(layers: Iterable[Layer]) -> str:
    """Of the layer that is furthest from training, how far it is; empty if all are near."""
    found = [(layer, *layer.apart()) for layer in layers if layer.pictures >= FEWEST]
    far = max(found, key=lambda each: max(each[1] / MEAN, each[2] / SPREAD), default=None)
    if far is None or (far[1] <= MEAN and far[2] <= SPREAD):
        return ""
    layer, shift, spread = far
    return (
        f"the input of {layer.name} has not the mean and variance that it had in training: over "
        f"{layer.pictures} pictures the mean is {shift:.2f} standard deviations away, the variance "
        f"differs by a factor of {math.exp(spread):.2f}"
    )


@contextmanager
def observed(network: nn.Module) -> Iterator[list[Layer]]:
    """The layers of ``network`` that remember a training, while they watch their inputs.

    Others have no statistics, or those of the start.
    """
    layers = [
        Layer(name, module)
        for name, module in network.named_modules()
        if isinstance(module, _BatchNorm)
        and module.running_mean is not None
        and module.running_var is not None
        and not ((module.running_mean == 0).all() and (module.running_var == 1).all())
    ]
    handles = [layer.norm.register_forward_hook(layer) for layer in layers]
    try:
        yield layers
    finally:
        for handle in handles:
            handle.remove()
