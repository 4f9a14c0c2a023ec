"""Convolutions of 3 x 3 with a quarter of the products, by Winograd's algorithm in both directions.

A square of 4 x 4 neighbouring outputs takes 144 products for each channel. As a product of two
polynomials in two variables, evaluated at 6 x 6 points, it takes 36, of inputs and weights that
were transformed before, and the sums are transformed back (Lavin & Gray, 2016, arXiv:1509.09308).
The points are those of the smallest error in Barabasz et al. (2018), arXiv:1803.10986.

Images are ``[line, pixel, channel]`` with a border of zeros, one pixel wide, which nothing writes.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, NamedTuple

import torch

from rrcm.inference.lanes import kernels
from rrcm.inference.lanes.code import Code
from rrcm.inference.lanes.program import Program
from rrcm.inference.lanes.winograd import matrices

REACH, TILE, POOL = 3, 4, 2  # weights of a row, outputs of a square's, and pixels that are pooled
FINITE = (0.0, 1.0, -1.0, 0.5, -2.0)  # the points of each direction, beside infinity
INPUTS, WEIGHTS, SUMS = matrices(FINITE, REACH)
POINTS = [*itertools.product(range(len(FINITE) + 1), repeat=2)]
TOGETHER = 4  # squares that share a weight once it is read


class Images(NamedTuple):
    """``number`` images ``at`` a pointer, of ``side`` pixels, with their borders."""

    at: Any
    side: int
    number: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Convolution:
    """The sizes of a rectified convolution, which has as many outputs as pixels.

    With ``pool``, the maximum of 2 x 2 of them. ``side`` is that of an image, a multiple of `TILE`.
    """

    outputs: int
    channels: int
    side: int
    pool: bool

    @property
    def pooled(self) -> int:
        """The side of the output."""
        return self.side // POOL if self.pool else self.side

    @property
    def written(self) -> int:
        """The side of what a square becomes."""
        return TILE // POOL if self.pool else TILE


def bordered(side: int, channels: int) -> int:
    """Vectors of an image with its border."""
    return (side + 2) ** 2 * channels


def convolve(
    program: Program, part: Any, x: Images, *, to: Any = None, residual: Images | None = None
) -> Images:
    """The output of a trained `resnet9.Convolution`, in ``to`` if given, plus a ``residual``."""
    trained, code, across = part.conv, program.code, x.side // TILE
    sizes = Convolution(
        outputs=trained.out_channels, channels=trained.in_channels, side=x.side, pool=part.pool
    )
    y = program.buffer(x.number * bordered(sizes.pooled, sizes.outputs)) if to is None else to
    squares = x.number * across**2
    together = next(count for count in range(TOGETHER, 0, -1) if squares % count == 0)
    inputs = program.buffer(len(POINTS) * together * sizes.channels)
    sums = program.buffer(len(POINTS) * together * sizes.outputs)
    layer = kernels.dense(sizes.channels, sizes.outputs, places=together)
    weights = program.constant(_weights(trained, layer, program))
    none = program.constant(torch.zeros(sizes.outputs))
    bias = program.constant(trained.bias)

    def corner(square: Any, side: int, step: int, channels: int, border: int) -> Any:
        """Vectors before a square's first pixel, in images of ``side``."""
        image, place = code.divided(square, across**2)
        line, pixel = code.divided(place, across)
        lines = code.plus(code.times(line, step), border)
        pixels = code.plus(code.times(pixel, step), border)
        place = code.plus(code.times(lines, side + 2), pixels)
        images = code.times(image, bordered(side, channels))
        return code.plus(images, code.times(place, channels))

    with code.loop(squares // together) as turn:
        first = code.times(turn, together)
        with code.loop(together) as i:
            at = corner(code.plus(first, i), sizes.side, TILE, sizes.channels, 0)
            own = code.within(inputs, code.times(i, sizes.channels))
            program.call(_transform, sizes, together, to=[own, code.within(x.at, at)])
        with code.loop(len(POINTS)) as point:
            to_point = [
                code.within(sums, code.times(point, together * sizes.outputs)),
                code.within(inputs, code.times(point, together * sizes.channels)),
                code.at(weights, code.times(point, sizes.outputs * sizes.channels)),
            ]
            program.call(kernels.product, layer, to=[*to_point, none])
        with code.loop(together) as i:
            at = corner(code.plus(first, i), sizes.pooled, sizes.written, sizes.outputs, 1)
            own = code.within(sums, code.times(i, sizes.outputs))
            rest = [code.within(residual.at, at)] if residual else []
            program.call(_back, sizes, together, to=[code.within(y, at), own, bias, *rest])
    return Images(y, sizes.pooled, x.number)


def _weights(trained: Any, layer: kernels.Layer, program: Program) -> torch.Tensor:
    """The transformed weights of all points, packed."""
    weight = trained.weight.double()  # [output, channel, line, pixel]
    taps = [*itertools.product(range(REACH), repeat=2)]
    packed = []
    for p, q in POINTS:
        # Each sum in the same order on every processor, as no library's product of matrices is.
        sums = sum(float(WEIGHTS[p, k] * WEIGHTS[q, m]) * weight[:, :, k, m] for k, m in taps)
        assert isinstance(sums, torch.Tensor)
        packed.append(kernels.pack(layer, sums, program.machine.registers))
    return torch.cat(packed)


def _transform(code: Code, sizes: Convolution, together: int, pointers: Sequence[Any]) -> None:
    """``y`` [point, square, channel] of a square of ``x`` and the pixels around it."""
    y, x = pointers
    points, channels = len(INPUTS), sizes.channels
    with code.loop(channels) as channel:
        source, target = code.within(x, channel), code.within(y, channel)
        lines = []
        for i in range(points):
            places = [(i * (sizes.side + 2) + j) * channels for j in range(points)]
            values = [code.load(source, place) for place in places]
            lines.append([code.combined(row, values) for row in INPUTS])
        for q, column in enumerate(zip(*lines, strict=True)):
            for p, row in enumerate(INPUTS):
                place = (p * points + q) * together * channels
                code.store(code.combined(row, column), target, place)


def _back(code: Code, sizes: Convolution, together: int, pointers: Sequence[Any]) -> None:
    """A square of ``y``: sums ``x`` [point, square, output] back, pooled, plus the bias."""
    y, x, bias, *residual = pointers
    points, outputs, step = len(INPUTS), sizes.outputs, TILE // sizes.written
    with code.loop(outputs) as output:
        source, target = code.within(x, output), code.within(y, output)
        lines = []
        for p in range(points):
            places = [(p * points + q) * together * outputs for q in range(points)]
            values = [code.load(source, place) for place in places]
            lines.append([code.combined(row, values) for row in SUMS])
        columns = [*zip(*lines, strict=True)]
        square = [[code.combined(row, column) for column in columns] for row in SUMS]
        for i, j in itertools.product(range(sizes.written), repeat=2):
            window = itertools.product(range(step), repeat=2)
            best = reduce(code.maximum, [square[step * i + k][step * j + m] for k, m in window])
            value = code.maximum(code.number(0.0), code.add(best, code.spread(bias, output)))
            place = (i * (sizes.pooled + 2) + j) * outputs
            if residual:
                value = code.add(code.load(code.within(residual[0], output), place), value)
            code.store(value, target, place)
