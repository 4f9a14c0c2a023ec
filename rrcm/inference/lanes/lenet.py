"""The inference form of LeNet (rrcm/models/folding/lenet.py) as a program."""

import math
from typing import Any

from rrcm.inference.lanes import kernels, winograd
from rrcm.inference.lanes.kernels import Layer, dense
from rrcm.inference.lanes.program import Compiled, Machine, Program
from rrcm.inference.lanes.winograd import POOL, REACH, Convolution

GROUPS = 4  # of images at a time, so that a weight of the linear layer, once read, serves them all


def build(network: Any, shape: tuple[int, int, int], machine: Machine) -> Compiled:
    """The program of ``network``, a `Trunk`, for images of ``shape`` [C, H, W]."""
    channels, height, width = shape
    classes = network.head.out_features
    program = Program(machine, pixels=channels * height * width, classes=classes, groups=GROUPS)
    first, second = network.convolutions
    upper = Convolution(outputs=first.out_channels, channels=channels, size=(height, width))
    lower = Convolution(outputs=second.out_channels, channels=first.out_channels, size=upper.pooled)
    linear, features = network.linear, math.prod(lower.pooled) * lower.outputs
    x = program.buffer(program.pixels)
    pooled = program.buffer(math.prod(upper.pooled) * upper.outputs)
    seen, hidden = (program.buffer(GROUPS * count) for count in (features, linear.out_features))
    with program.code.loop(GROUPS) as group:
        images = program.code.within(program.images, program.code.times(group, program.pixels))
        program.call(kernels.lanes_of, program.pixels, to=[x, images])
        _direct(program, upper, first, y=pooled, x=x, last=False)
        own = program.code.within(seen, program.code.times(group, features))
        convolve = winograd.convolve if lower.is_tiled else _direct
        convolve(program, lower, second, y=own, x=pooled)
    # Features are [place, channel] here and [channel, place] in the network.
    weight = linear.weight.unflatten(1, (second.out_channels, -1)).transpose(1, 2).flatten(1)
    layer = dense(features, linear.out_features, places=GROUPS, activation="relu")
    program.product(layer, weight, linear.bias, y=hidden, x=seen)
    program.linear(network.head, y=program.scores, x=hidden, places=GROUPS)
    return program.compile()


def _direct(
    program: Program, sizes: Convolution, trained: Any, *, y: Any, x: Any, last: bool = True
) -> None:
    """As `winograd.convolve`, by the plain sums of products; or ``x`` [channel, line, pixel]."""
    (height, width), (down, across), channels = sizes.size, sizes.pooled, sizes.channels
    pixel = channels if last else 1
    line = width * pixel
    near = ((REACH, line), (REACH * channels, 1))
    layer = Layer(
        outputs=sizes.outputs,
        steps=near if last else ((channels, height * width), (REACH, width), (REACH, 1)),
        places=((down, POOL * line), (across, POOL * pixel)),
        window=(0, pixel, line, line + pixel),
        activation="relu",
    )
    weight = trained.weight.permute(0, 2, 3, 1) if last else trained.weight
    program.product(layer, weight.flatten(1), trained.bias, y=y, x=x)
