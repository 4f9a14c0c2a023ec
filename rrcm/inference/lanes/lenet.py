"""The inference form of LeNet (rrcm/models/folding/lenet.py) as a program."""

from typing import Any

from rrcm.inference.lanes import kernels
from rrcm.inference.lanes.kernels import Layer, dense
from rrcm.inference.lanes.program import Compiled, Machine, Program

GROUPS = 4  # of images at a time, so that a weight of the linear layer, once read, serves them all
POOL = 2


def build(network: Any, shape: tuple[int, int, int], machine: Machine) -> Compiled:
    """The program of ``network``, a `Trunk`, for images of ``shape`` [C, H, W]."""
    channels, height, width = shape
    first, second = network.convolutions
    classes = network.head.out_features
    program = Program(machine, pixels=channels * height * width, classes=classes, groups=GROUPS)
    x = program.buffer(program.pixels)
    side = first.kernel_size[0]
    planes = _convolution(
        first.out_channels,
        (height, width),
        side,
        pixel=1,
        steps=((channels, height * width), (side, width), (side, 1)),
    )
    pooled = program.buffer(_outputs(planes))
    inner = first.out_channels
    below = (planes.places[0][0], planes.places[1][0])
    deeper = _convolution(
        second.out_channels,
        below,
        side,
        pixel=inner,
        steps=((side, below[1] * inner), (side * inner, 1)),
    )
    features = _outputs(deeper)
    seen, hidden = (
        program.buffer(GROUPS * features),
        program.buffer(GROUPS * network.linear.out_features),
    )
    with program.code.loop(GROUPS) as group:
        images = program.within(program.images, program.code.times(group, program.pixels))
        program.call(kernels.lanes_of, program.pixels, to=[x, images])
        program.product(planes, first.weight.flatten(1), first.bias, y=pooled, x=x)
        last = second.weight.permute(0, 2, 3, 1).flatten(1)
        own = program.within(seen, program.code.times(group, features))
        program.product(deeper, last, second.bias, y=own, x=pooled)
    linear = network.linear
    # Features are [place, channel] here and [channel, place] in the network.
    weight = linear.weight.unflatten(1, (second.out_channels, -1)).transpose(1, 2).flatten(1)
    layer = dense(features, linear.out_features, places=GROUPS, activation="relu")
    program.product(layer, weight, linear.bias, y=hidden, x=seen)
    layer = dense(linear.out_features, classes, places=GROUPS)
    program.product(layer, network.head.weight, network.head.bias, y=program.scores, x=hidden)
    return program.compile()


def _convolution(
    outputs: int, size: tuple[int, int], side: int, *, pixel: int, steps: kernels.Steps
) -> Layer:
    """A convolution, pooled and rectified, of ``size`` pixels that are ``pixel`` vectors apart."""
    down, across = ((length - side + 1) // POOL for length in size)
    line = size[1] * pixel
    return Layer(
        outputs=outputs,
        steps=steps,
        places=((down, POOL * line), (across, POOL * pixel)),
        window=(0, pixel, line, line + pixel),
        activation="relu",
    )


def _outputs(layer: Layer) -> int:
    """Vectors of its output."""
    return layer.places[0][0] * layer.places[1][0] * layer.outputs
