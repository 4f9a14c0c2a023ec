"""Convolutions of 5 x 5 with fewer products, by Winograd's algorithm along rows.

Four neighbouring outputs of a row take twenty products for each of its five lines and channels. As
a product of polynomials, evaluated at eight points, they take eight, of inputs and weights that
were transformed before, and the sums are transformed back (Lavin & Gray, 2016, arXiv:1509.09308).
Along rows only, and with these points, it rounds as little as the plain sums do.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rrcm.inference.lanes.code import Code
from rrcm.inference.lanes.kernels import Layer
from rrcm.inference.lanes.program import Program

REACH, TILE, POOL = 5, 4, 2  # weights of a row, outputs of a tile, and pixels that are pooled
FINITE = (0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5)  # the points, beside infinity
POINTS = len(FINITE) + 1
Matrix = NDArray[Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Convolution:
    """The sizes of a convolution of `REACH` x `REACH` that is pooled and rectified.

    ``size`` is that of its input, whose pixels have ``channels`` each.
    """

    outputs: int
    channels: int
    size: tuple[int, int]

    @property
    def pooled(self) -> tuple[int, int]:
        """The size of its output."""
        down, across = ((length - REACH + 1) // POOL for length in self.size)
        return down, across

    @property
    def is_tiled(self) -> bool:
        """Whether whole tiles give the outputs of a row, as `convolve` needs."""
        return self.pooled[1] * POOL % TILE == 0

    @property
    def tiles(self) -> int:
        """Tiles of a row."""
        return self.pooled[1] * POOL // TILE

    @property
    def lines(self) -> int:
        """Rows of sums."""
        return self.pooled[0] * POOL

    @property
    def inputs(self) -> int:
        """Vectors of the transformed inputs, at one point."""
        return self.size[0] * self.tiles * self.channels

    @property
    def sums(self) -> int:
        """Vectors of the sums, at one point."""
        return self.lines * self.tiles * self.outputs


def matrices(finite: tuple[float, ...], reach: int) -> tuple[Matrix, Matrix, Matrix]:
    """Those that transform P inputs [P, P], ``reach`` weights [P, reach] and sums [tile, P].

    P points are ``finite`` and infinity, and a tile has P - reach + 1 outputs. Of P numbers ``x``
    and weights ``w``, ``sums @ ((weights @ w) * (inputs @ x))`` are the sums of products of ``w``
    with its neighbours. ``inputs`` and ``sums`` are exact in float32.
    """
    others = [[b for b in finite if b != a] for a in finite]
    inputs = [[*np.poly(rest)[::-1], 0.0] for rest in others]
    weights = [
        [a**k / np.prod(np.subtract(a, rest)) for k in range(reach)]
        for a, rest in zip(finite, others, strict=True)
    ]
    last = len(finite) - reach + 1
    sums = [[*(a**k for a in finite), float(k == last)] for k in range(last + 1)]
    at_infinity = [0.0] * (reach - 1) + [1.0]
    return (
        np.array([*inputs, np.poly(finite)[::-1]]),
        np.array([*weights, at_infinity]),
        np.array(sums),
    )


INPUTS, WEIGHTS, SUMS = matrices(FINITE, REACH)


def convolve(program: Program, sizes: Convolution, trained: Any, *, y: Any, x: Any) -> None:
    """``y`` [place, output] of ``x`` [place, channel]: a ``trained`` Conv2d, pooled, rectified."""
    inputs, sums = (program.buffer(POINTS * part) for part in (sizes.inputs, sizes.sums))
    program.call(_transform, sizes, to=[inputs, x])
    line = sizes.tiles * sizes.channels
    layer = Layer(
        outputs=sizes.outputs,
        steps=((REACH, line), (sizes.channels, 1)),
        places=((1, 0), (sizes.lines * sizes.tiles, sizes.channels)),
    )
    weight = trained.weight.double().movedim(1, -1)  # [output, line, pixel, channel]
    # Each sum in the same order on every processor, as no library's product of matrices is.
    weights = sum(
        torch.from_numpy(column).view(-1, 1, 1, 1) * weight[:, :, k]
        for k, column in enumerate(WEIGHTS.T)
    )
    for point in range(POINTS):
        program.product(
            layer,
            weights[point].flatten(1),
            torch.zeros(sizes.outputs),
            y=program.code.within(sums, point * sizes.sums),
            x=program.code.within(inputs, point * sizes.inputs),
        )
    program.call(_pool, sizes, to=[y, sums, program.constant(trained.bias)])


def _transform(code: Code, sizes: Convolution, pointers: Sequence[Any]) -> None:
    """``y`` [point, line, tile, channel] of ``x`` [line, pixel, channel]."""
    y, x = pointers
    channels = sizes.channels
    with code.loop(sizes.size[0]) as line, code.loop(sizes.tiles) as tile:
        pixel = code.plus(code.times(line, sizes.size[1]), code.times(tile, TILE))
        place = code.plus(code.times(line, sizes.tiles), tile)
        with code.loop(channels) as channel:
            source, target = (
                code.within(part, code.plus(code.times(at, channels), channel))
                for part, at in ((x, pixel), (y, place))
            )
            values = [code.load(source, i * channels) for i in range(POINTS)]
            for point, row in enumerate(INPUTS):
                code.store(code.combined(row, values), target, point * sizes.inputs)


def _pool(code: Code, sizes: Convolution, pointers: Sequence[Any]) -> None:
    """``y`` [place, output]: sums ``x`` [point, line, tile, output] back, pooled, plus the bias."""
    y, x, bias = pointers
    outputs, line = sizes.outputs, sizes.tiles * sizes.outputs
    with code.loop(sizes.pooled[0]) as down, code.loop(sizes.tiles) as tile:
        first = code.plus(code.times(down, POOL * line), code.times(tile, outputs))
        place = code.times(code.plus(code.times(down, sizes.tiles), tile), TILE // POOL)
        with code.loop(outputs) as output:
            source = code.within(x, code.plus(first, output))
            to = code.within(y, code.plus(code.times(place, outputs), output))
            rows = []
            for i in range(POOL):
                at = [point * sizes.sums + i * line for point in range(POINTS)]
                values = [code.load(source, one) for one in at]
                rows.append([code.combined(row, values) for row in SUMS])
            for i in range(TILE // POOL):
                pooled = [row[POOL * i + j] for row in rows for j in range(POOL)]
                best = reduce(code.maximum, pooled)
                value = code.maximum(code.number(0.0), code.add(best, code.spread(bias, output)))
                code.store(value, to, i * outputs)
