"""The inference form of ResNet-9 (rrcm/models/folding/resnet9.py) as a program."""

from collections.abc import Sequence
from functools import reduce
from typing import Any

from rrcm.core.errors import BackendError
from rrcm.inference.lanes import kernels
from rrcm.inference.lanes.code import Code
from rrcm.inference.lanes.program import Compiled, Machine, Program
from rrcm.inference.lanes.squares import TILE, Images, bordered, convolve

GROUPS = 4  # of images at a time, so that a weight of the last stage, once read, serves them all


def build(network: Any, shape: tuple[int, int, int], machine: Machine) -> Compiled:
    """The program of ``network``, a `Trunk`, for images of ``shape`` [C, H, W].

    Raises:
        BackendError: Squares of outputs do not fill the last stage.
    """
    channels, side, _ = shape
    encoder, head = network.encoder, network.head
    multiple = TILE * 2 ** len(encoder.stages)
    if side % multiple:
        raise BackendError(
            f"backend lanes runs ResNet-9 on images whose sides are a multiple of {multiple} "
            f"pixels, not {side}; torch and onnx run this one"
        )
    program = Program(machine, pixels=channels * side**2, classes=head.out_features, groups=GROUPS)
    x, padded = (program.buffer(count) for count in (program.pixels, bordered(side, channels)))
    *first, last = encoder.stages
    middle = bordered(side // 2 ** len(first), last.down.conv.in_channels)
    shared, features = program.buffer(GROUPS * middle), program.buffer(GROUPS * head.in_features)
    with program.code.loop(GROUPS) as group:
        images = program.code.within(program.images, program.code.times(group, program.pixels))
        program.call(kernels.lanes_of, program.pixels, to=[x, images])
        program.call(_model_space, channels, side, to=[padded, x])
        y = convolve(program, encoder.stem, Images(padded, side))
        own = program.code.within(shared, program.code.times(group, middle))
        for stage in first:
            y = _stage(program, stage, y, to=own if stage is first[-1] else None)
    y = _stage(program, last, Images(shared, y.side, GROUPS))
    program.call(_largest, GROUPS, y.side, head.in_features, to=[features, y.at])
    program.linear(head, y=program.scores, x=features, places=GROUPS)
    return program.compile()


def _stage(program: Program, stage: Any, x: Images, *, to: Any = None) -> Images:
    """The output of a stage, in ``to`` if it is given."""
    if not len(stage.block):
        return convolve(program, stage.down, x, to=to)
    down = convolve(program, stage.down, x)
    first, second = stage.block
    return convolve(program, second, convolve(program, first, down), to=to, residual=down)


def _model_space(code: Code, channels: int, side: int, pointers: Sequence[Any]) -> None:
    """``y``, an image with its border, of pixels ``x`` [channel, line, pixel] in [0, 1]."""
    y, x = pointers
    for channel in range(channels):
        with code.loop(side) as line, code.loop(side) as pixel:
            at = code.plus(code.times(line, side), pixel)
            given = code.load(x, code.plus(at, channel * side**2))
            value = code.fma(code.number(2.0), given, code.number(-1.0))
            place = code.plus(code.times(code.plus(line, 1), side + 2), code.plus(pixel, 1))
            code.store(value, y, code.plus(code.times(place, channels), channel))


def _largest(code: Code, images: int, side: int, channels: int, pointers: Sequence[Any]) -> None:
    """``y`` [image, channel]: the maximum of each channel of ``x``, images with their borders."""
    y, x = pointers
    with code.loop(images) as image, code.loop(channels) as channel:
        own = code.plus(code.times(image, bordered(side, channels)), channel)
        places = [
            ((line + 1) * (side + 2) + pixel + 1) * channels
            for line in range(side)
            for pixel in range(side)
        ]
        best = reduce(code.maximum, [code.load(x, code.plus(own, place)) for place in places])
        code.store(best, y, code.plus(code.times(image, channels), channel))
