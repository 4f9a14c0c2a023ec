"""The layers of small networks, each for one group of images: a lane of a register is an image.

Activations are ``[place, feature, lane]``: a place is a token or a pixel. A product then needs no
sums across lanes, and softmax, normalisation and pooling are the plain formulas. A tile of outputs
stays in registers while all inputs are multiplied into it, in the order of the inputs; so an output
has the same bits in every tile, whatever the number of registers. A NaN among the inputs of an
image makes its scores NaN.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Literal

import torch
from torch import Tensor

from rrcm.inference.lanes.code import Code

UNROLLED = 8  # most products of an output in one turn of a loop
LATENCY, PORTS = 4, 2  # cycles of a fused multiply-add, and how many begin in one; loads the same
# exp(r) for |r| <= ln(2) / 2, relative error 6e-8, and (Phi(x) - 1/2) / x for |x| <= 5.5 in
# 2 (x / 5.5)^2 - 1: interpolation at Chebyshev's points, rounded to float32
EXP = (1.0, 1.0, 0.5, 0.16666667, 0.041666217, 0.0083332835, 0.001394859, 0.0001990758)
LOG2_E, LN_2 = 1.4426950408889634, (0.693145751953125, 1.4286067653e-6)  # the first part is exact
LOWEST = -87.0  # where exp is almost the smallest normal number
ROUND = 1.5 * 2**23  # adding and subtracting it rounds to a whole number
PHI = (
    *(0.12855193, -0.064172566, 0.047737453, -0.038784284, 0.032072764),
    *(-0.026139572, 0.020351376, -0.014567367, 0.010260161, -0.007866469),
    *(0.004582319, -0.0010611821, 0.0007429544, -0.0014251382, 0.00062671665),
)
FURTHEST = 5.5  # Phi is 1 beyond, to float32

Activation = Literal["", "relu", "gelu"]
Pair = tuple[int, int]
Steps = tuple[Pair, ...]
More = Callable[[Any, Any, list[Any]], list[Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Layer:
    """A product of weights with the inputs of each output place.

    ``steps`` are nested loops over the inputs of a place, outermost first, each as its length and
    stride in vectors; the weights [outputs, inputs] have this order. ``places`` are outer and inner
    loops over output places, likewise: length and stride in the input. ``window`` are the strides
    whose outputs are pooled into one, [0] for no pooling. ``starts``: a bias of its own for each
    place.
    """

    outputs: int
    steps: Steps
    places: tuple[Pair, Pair]
    window: tuple[int, ...] = (0,)
    activation: Activation = ""
    starts: bool = False


def dense(inputs: int, outputs: int, *, places: int = 1, **how: Any) -> Layer:
    """A linear layer at each of ``places``; ``how`` is the activation of a `Layer`."""
    steps, over = ((inputs, 1),), ((1, 0), (places, inputs))
    return Layer(outputs=outputs, steps=steps, places=over, **how)


def pack(layer: Layer, weight: Tensor, registers: int) -> Tensor:
    """Weights [outputs, inputs] in the order in which `product` reads them."""
    rows, _ = tile(layer, registers)
    return torch.cat([part.T.flatten() for part in weight.split(rows)])


def tile(layer: Layer, registers: int) -> Pair:
    """Outputs and places of a tile that fits into registers, the fastest by a count of cycles."""
    unit, (_, (places, _)) = len(layer.window), layer.places
    best, found = float("inf"), (1, 1)
    for rows in range(1, min(layer.outputs, registers) + 1):
        for columns in range(1, min(places, registers) + 1):
            if (rows + 1) * columns * unit + 1 > registers:
                break
            cycles = sum(
                max(r * c * unit / PORTS, (r + c * unit) / PORTS, LATENCY) * m * n
                for r, m in _cut(layer.outputs, rows)
                for c, n in _cut(places, columns)
            )
            if cycles <= best:
                best, found = cycles, (rows, columns)
    return found


def _cut(length: int, size: int) -> list[Pair]:
    """Tiles of ``size`` and the rest, each as its size and the number of such tiles."""
    parts = (size, length // size), (length % size, 1)
    return [(part, count) for part, count in parts if part * count]


def product(code: Code, layer: Layer, pointers: Sequence[Any]) -> None:
    """``y = activation(weight @ x + bias) (+ residual)``: [places, outputs, lane].

    ``pointers`` are y, x, the packed weights, the bias, and the residual if there is one.
    """
    y, x, weight, bias, *rest = pointers
    (outer, outer_stride), (inner, inner_stride) = layer.places
    rows, columns = tile(layer, code.registers)
    inputs = math.prod(length for length, _ in layer.steps)
    with code.loop(outer) as line:
        across = code.times(line, outer_stride)
        for width, place in _tiles(code, inner, columns):
            origin = code.within(x, code.plus(across, code.times(place, inner_stride)))
            output = code.plus(code.times(line, inner), place)
            for height, first in _tiles(code, layer.outputs, rows):
                own = code.at(weight, code.times(first, inputs))
                to = [y, origin, own, bias, *rest]
                _tile(code, layer, (height, width), first, output, to)


def _tiles(code: Code, length: int, size: int) -> Iterator[tuple[int, Any]]:
    """Loops over full tiles and over the rest: their size, and where one begins."""
    start = 0
    for part, count in _cut(length, size):
        with code.loop(count) as turn:
            yield part, code.plus(start, code.times(turn, part))
        start += part * count


def _tile(
    code: Code, layer: Layer, shape: Pair, first: Any, output: Any, pointers: Sequence[Any]
) -> None:
    """One tile of `product`: outputs from ``first`` on, of places from ``output`` on."""
    (rows, columns), (y, x, weight, bias, *residual) = shape, pointers
    _, (_, stride) = layer.places
    spots = [(column, at) for column in range(columns) for at in layer.window]

    def start(row: int, column: int) -> Any:
        offset = code.plus(first, row)
        if layer.starts:
            place = code.plus(output, column)
            offset = code.plus(code.times(place, layer.outputs), offset)
        return code.spread(bias, offset)

    sums = [start(row, column) for row in range(rows) for column, _ in spots]
    near = [column * stride + at for column, at in spots]

    def more(k: Any, offset: Any, sums: list[Any]) -> list[Any]:
        values = [code.load(x, code.plus(offset, at)) for at in near]
        added = []
        for row in range(rows):
            factor = code.spread(weight, code.plus(code.times(k, rows), row))
            for i, value in enumerate(values):
                added.append(code.fma(factor, value, sums[row * len(values) + i]))
        return added

    sums = nested(code, unrolled(layer.steps), sums, more)
    for row in range(rows):
        for column in range(columns):
            at = (row * columns + column) * len(layer.window)
            value = reduce(code.maximum, sums[at : at + len(layer.window)])
            if layer.activation == "relu":
                value = code.maximum(code.number(0.0), value)
            elif layer.activation == "gelu":
                value = gelu(code, value)
            place = code.plus(output, column)
            to = code.plus(code.times(place, layer.outputs), code.plus(first, row))
            if residual:
                value = code.add(code.load(residual[0], to), value)
            code.store(value, y, to)


def unrolled(steps: Steps) -> Steps:
    """The same loops, the last of which is short enough to be written out."""
    *outer, (length, stride) = steps
    part = next(n for n in range(min(UNROLLED, length), 0, -1) if length % n == 0)
    return (*outer, (length // part, part * stride), (part, stride))


def nested(
    code: Code, steps: Steps, values: list[Any], more: More, k: Any = 0, offset: Any = 0
) -> list[Any]:
    """Values after ``more(number, offset, values)`` for each step of nested loops, in order."""
    (length, stride), inner = steps[0], steps[1:]

    def step(i: Any, carried: list[Any]) -> list[Any]:
        number = code.plus(code.times(k, length), i)
        place = code.plus(offset, code.times(i, stride))
        if inner:
            return nested(code, inner, carried, more, number, place)
        return more(number, place, carried)

    if inner:
        return code.reduce(length, values, step)
    for i in range(length):
        values = step(i, values)
    return values


@dataclass(frozen=True, kw_only=True, slots=True)
class Pairs:
    """Sums of products of activations: ``c[i, j] = sum over k of a[i, k] b[j, k]``.

    Strides are in vectors.
    """

    shape: tuple[int, int, int]  # of i, j and k
    a: Pair  # strides of i and k
    b: Pair  # strides of j and k
    c: int  # stride of i; that of j is 1


def pairs(code: Code, sizes: Pairs, pointers: Sequence[Any]) -> None:
    """Compute `Pairs`; ``pointers`` are c, a and b."""
    c, a, b = pointers
    height, width, _ = sizes.shape
    side = 4 if code.registers > 16 else 2
    for rows, i in _tiles(code, height, side):
        left = code.within(a, code.times(i, sizes.a[0]))
        for columns, j in _tiles(code, width, 4):
            above = code.within(b, code.times(j, sizes.b[0]))
            to = code.within(c, code.plus(code.times(i, sizes.c), j))
            _pairs_tile(code, sizes, (rows, columns), left, above, to)


def _pairs_tile(code: Code, sizes: Pairs, shape: Pair, a: Any, b: Any, c: Any) -> None:
    """The sums of a few rows ``a`` with a few rows ``b``, from ``c`` on."""
    rows, columns = shape

    def several(pointer: Any, count: int, strides: Pair, k: Any) -> list[Any]:
        each, along = strides
        at = code.times(k, along)
        return [code.load(pointer, code.plus(at, n * each)) for n in range(count)]

    def more(k: Any, _: Any, sums: list[Any]) -> list[Any]:
        ours, theirs = several(a, rows, sizes.a, k), several(b, columns, sizes.b, k)
        products = [(p, q) for p in ours for q in theirs]
        return [code.fma(p, q, s) for (p, q), s in zip(products, sums, strict=True)]

    zeros = [code.number(0.0)] * (rows * columns)
    for n, value in enumerate(nested(code, unrolled(((sizes.shape[2], 0),)), zeros, more)):
        code.store(value, c, n // columns * sizes.c + n % columns)


def softmax(code: Code, rows: int, width: int, pointers: Sequence[Any]) -> None:
    """Softmax of each of ``rows`` rows of ``width`` vectors, in place."""
    (s,) = pointers
    with code.loop(rows) as row:
        line = code.within(s, code.times(row, width))

        def larger(k: Any, best: list[Any]) -> list[Any]:
            return [code.maximum(best[0], code.load(line, k))]

        (top,) = code.reduce(width, [code.load(line)], larger)

        def exponent(k: Any, total: list[Any]) -> list[Any]:
            value = exp(code, code.subtract(code.load(line, k), top))
            code.store(value, line, k)
            return [code.add(total[0], value)]

        (total,) = code.reduce(width, [code.number(0.0)], exponent)
        scale = code.divide(code.number(1.0), total)
        with code.loop(width) as k:
            code.store(code.multiply(code.load(line, k), scale), line, k)


def normalise(code: Code, places: int, width: int, eps: float, pointers: Sequence[Any]) -> None:
    """``y``: each place of ``x`` minus its mean over features, over its standard deviation."""
    y, x = pointers
    with code.loop(places) as place:
        source, target = (code.within(part, code.times(place, width)) for part in (x, y))
        share = code.number(1.0 / width)

        def total(_: Any, offset: Any, sums: list[Any]) -> list[Any]:
            first, *others = sums
            return [*others, code.add(first, code.load(source, offset))]

        mean = code.multiply(_four(code, width, total), share)

        def squares(_: Any, offset: Any, sums: list[Any]) -> list[Any]:
            first, *others = sums
            value = code.subtract(code.load(source, offset), mean)
            return [*others, code.fma(value, value, first)]

        variance = code.multiply(_four(code, width, squares), share)
        deviation = code.sqrt(code.add(variance, code.number(eps)))
        scale = code.divide(code.number(1.0), deviation)
        with code.loop(width) as k:
            value = code.subtract(code.load(source, k), mean)
            code.store(code.multiply(value, scale), target, k)


def _four(code: Code, width: int, more: More) -> Any:
    """A sum over features, kept in four parts, because an addition waits for the one before it."""
    a, b, c, d = nested(code, unrolled(((width, 1),)), [code.number(0.0)] * 4, more)
    return code.add(code.add(a, b), code.add(c, d))


def exp(code: Code, x: Any) -> Any:
    """exp(x) for x <= 0, to 1e-7 of it."""
    x = code.maximum(code.number(LOWEST), x)
    shifted = code.fma(x, code.number(LOG2_E), code.number(ROUND))
    whole = code.subtract(shifted, code.number(ROUND))
    rest = x
    for part in LN_2:
        rest = code.fma(whole, code.number(-part), rest)
    return code.scaled(code.polynomial(EXP, rest), whole)


def gelu(code: Code, x: Any) -> Any:
    """``x Phi(x)``, the exact GELU: to 1e-7 of x, or to 2e-7 below -1."""
    x = code.maximum(code.number(-FURTHEST), x)
    near = code.minimum(code.number(FURTHEST), x)
    u = code.fma(code.multiply(near, near), code.number(2 / FURTHEST**2), code.number(-1.0))
    phi = code.fma(near, code.polynomial(PHI, u), code.number(0.5))
    return code.multiply(x, phi)


def fill(code: Code, count: int, pointers: Sequence[Any]) -> None:
    """``y``: each of ``count`` numbers in all lanes."""
    y, numbers = pointers
    with code.loop(count) as k:
        code.store(code.spread(numbers, k), y, k)


def lanes_of(code: Code, pixels: int, pointers: Sequence[Any]) -> None:
    """``y`` [pixels, lane] of one image after the other, ``x`` [lane, pixels]: a transposition."""
    y, x = pointers
    lanes = code.lanes

    def block(start: Any) -> None:
        starts = [code.at(x, code.plus(start, image * pixels)) for image in range(lanes)]
        rows = [code.load(one, align=4) for one in starts]
        size = lanes // 2
        while size:
            turned = [*rows]
            for i in range(lanes):
                if not i & size:
                    a, b = rows[i], rows[i + size]
                    turned[i] = code.interleave(a, b, size=size, high=False)
                    turned[i + size] = code.interleave(a, b, size=size, high=True)
            rows, size = turned, size // 2
        for i, row in enumerate(rows):
            code.store(row, y, code.plus(start, i))

    with code.loop(pixels // lanes) as turn:
        block(code.times(turn, lanes))
    if pixels % lanes:
        block(pixels - lanes)  # overlaps the one before
