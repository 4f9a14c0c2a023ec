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
    x, pooled = (
        program.buffer(count) for count in (program.pixels, math.prod(upper.pooled) * upper.outputs)
    )
    seen, hidden = (program.buffer(GROUPS * count) for count in (features, linear.out_features))
    with program.code.loop(GROUPS) as group:
        images = program.within(program.images, program.code.times(group, program.pixels))
        program.call(kernels.lanes_of, program.pixels, to=[x, images])
        _first(program, upper, first, y=pooled, x=x)
        own = program.within(seen, program.code.times(group, features))
        convolve = winograd.convolve if lower.is_tiled else _second
        convolve(program, lower, second, y=own, x=pooled)
    # Features are [place, channel] here and [channel, place] in the network.
    weight = linear.weight.unflatten(1, (second.out_channels, -1)).transpose(1, 2).flatten(1)
    layer = dense(features, linear.out_features, places=GROUPS, activation="relu")
    program.product(layer, weight, linear.bias, y=hidden, x=seen)
    layer = dense(linear.out_features, classes, places=GROUPS)
    program.product(layer, network.head.weight, network.head.bias, y=program.scores, x=hidden)
    return program.compile()


def _first(program: Program, sizes: Convolution, trained: Any, *, y: Any, x: Any) -> None:
    """A convolution of ``x`` [channel, line, pixel]."""
    height, width = sizes.size
    steps = ((sizes.channels, height * width), (REACH, width), (REACH, 1))
    direct = _direct(sizes, pixel=1, steps=steps)
    program.product(direct, trained.weight.flatten(1), trained.bias, y=y, x=x)


def _second(program: Program, sizes: Convolution, trained: Any, *, y: Any, x: Any) -> None:
    """A convolution of ``x`` [line, pixel, channel]."""
    line = sizes.size[1] * sizes.channels
    steps = ((REACH, line), (REACH * sizes.channels, 1))
    direct = _direct(sizes, pixel=sizes.channels, steps=steps)
    weight = trained.weight.permute(0, 2, 3, 1).flatten(1)
    program.product(direct, weight, trained.bias, y=y, x=x)


def _direct(sizes: Convolution, *, pixel: int, steps: kernels.Steps) -> Layer:
    """The convolution as a sum of products, of inputs whose pixels are ``pixel`` vectors apart."""
    (down, across), line = sizes.pooled, sizes.size[1] * pixel
    return Layer(
        outputs=sizes.outputs,
        steps=steps,
        places=((down, POOL * line), (across, POOL * pixel)),
        window=(0, pixel, line, line + pixel),
        activation="relu",
    )
