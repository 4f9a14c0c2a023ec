"""Writes vector code: float32 arithmetic of whole registers, loops, and functions, for LLVM.

Nothing here may be reordered: there are no fast-math flags, and products and sums are fused only
where `Code.fma` says so. All operations have one IEEE 754 result, so every lane computes the same
bits whatever the width of a register.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from llvmlite import ir

FLOAT, INT, INDEX = ir.FloatType(), ir.IntType(32), ir.IntType(64)
POINTER = FLOAT.as_pointer()


class Code:
    """Instructions at the end of one function; values are LLVM's, of ``lanes`` floats each."""

    def __init__(self, function: ir.Function, *, lanes: int, registers: int) -> None:
        self.function, self.lanes, self.registers = function, lanes, registers
        self.builder = ir.IRBuilder(function.append_basic_block())
        self.vector = ir.VectorType(FLOAT, lanes)
        self.integers = ir.VectorType(INT, lanes)
        # The sum, the difference, the product and the quotient of two vectors
        self.add, self.subtract = self.builder.fadd, self.builder.fsub
        self.multiply, self.divide = self.builder.fmul, self.builder.fdiv

    # Addresses

    def index(self, value: Any) -> Any:
        """A Python integer as a value; values stay as they are."""
        return ir.Constant(INDEX, value) if isinstance(value, int) else value

    def plus(self, a: Any, b: Any) -> Any:
        """The sum of two indices."""
        if isinstance(a, int) and isinstance(b, int):
            return a + b
        return self.builder.add(self.index(a), self.index(b))

    def times(self, a: Any, b: Any) -> Any:
        """The product of two indices."""
        if isinstance(a, int) and isinstance(b, int):
            return a * b
        return self.builder.mul(self.index(a), self.index(b))

    def divided(self, a: Any, b: int) -> tuple[Any, Any]:
        """The quotient and the remainder of an index."""
        return tuple(f(a, self.index(b)) for f in (self.builder.udiv, self.builder.urem))

    def at(self, pointer: Any, offset: Any) -> Any:
        """``pointer`` moved by ``offset`` floats."""
        return self.builder.gep(pointer, [self.index(offset)], inbounds=True)

    def within(self, pointer: Any, vectors: Any) -> Any:
        """``pointer`` moved by ``vectors``."""
        return self.at(pointer, self.times(vectors, self.lanes))

    # Memory

    def load(self, pointer: Any, vectors: Any = 0, *, align: int | None = None) -> Any:
        """A vector from memory, aligned to its size or to ``align`` bytes."""
        place = self.builder.bitcast(self.within(pointer, vectors), self.vector.as_pointer())
        return self.builder.load(place, align=align or 4 * self.lanes)

    def store(self, value: Any, pointer: Any, vectors: Any = 0) -> None:
        """Write a vector to aligned memory."""
        place = self.builder.bitcast(self.within(pointer, vectors), self.vector.as_pointer())
        self.builder.store(value, place, align=4 * self.lanes)

    def spread(self, pointer: Any, offset: Any = 0) -> Any:
        """One float from memory in all lanes."""
        scalar = self.builder.load(self.at(pointer, offset), align=4)
        undefined = ir.Constant(self.vector, ir.Undefined)
        first = self.builder.insert_element(undefined, scalar, ir.Constant(INT, 0))
        zeros = ir.Constant(self.integers, [0] * self.lanes)
        return self.builder.shuffle_vector(first, undefined, zeros)

    # Arithmetic

    def number(self, value: float) -> Any:
        """A constant, rounded to float32, in all lanes."""
        return ir.Constant(self.vector, [value] * self.lanes)

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        """``a * b + c``, rounded once."""
        return self._intrinsic("fma", a, b, c)

    def sqrt(self, a: Any) -> Any:
        """The square root of each lane."""
        return self._intrinsic("sqrt", a)

    def maximum(self, a: Any, b: Any) -> Any:
        """The larger one of each lane; that of ``b`` if either is NaN."""
        return self.builder.select(self.builder.fcmp_ordered(">", a, b), a, b)

    def minimum(self, a: Any, b: Any) -> Any:
        """The smaller one of each lane; that of ``b`` if either is NaN."""
        return self.builder.select(self.builder.fcmp_ordered("<", a, b), a, b)

    def polynomial(self, coefficients: Sequence[float], x: Any) -> Any:
        """The polynomial with these coefficients, lowest power first, by Horner's rule."""
        value = self.number(coefficients[-1])
        for coefficient in reversed(coefficients[:-1]):
            value = self.fma(value, x, self.number(coefficient))
        return value

    def combined(self, factors: Sequence[float], values: Sequence[Any]) -> Any:
        """The sum of ``values`` times ``factors``, in order, without those of factor 0."""
        (first, value), *more = [
            (self.number(float(factor)), value)
            for factor, value in zip(factors, values, strict=True)
            if factor
        ]
        found = self.multiply(first, value)
        for factor, value in more:
            found = self.fma(factor, value, found)
        return found

    def scaled(self, value: Any, exponent: Any) -> Any:
        """``value`` times 2 to a whole ``exponent`` between -126 and 127."""
        whole = self.builder.fptosi(exponent, self.integers)
        bits = self.builder.shl(
            self.builder.add(whole, ir.Constant(self.integers, [127] * self.lanes)),
            ir.Constant(self.integers, [23] * self.lanes),
        )
        return self.multiply(value, self.builder.bitcast(bits, self.vector))

    def interleave(self, a: Any, b: Any, *, size: int, high: bool) -> Any:
        """Runs of ``size`` lanes from ``a`` and ``b`` in turn: their even runs, or the odd ones."""
        pick = []
        for start in range(0, self.lanes, 2 * size):
            first = start + size * high
            pick += [*range(first, first + size)]
            pick += [self.lanes + lane for lane in range(first, first + size)]
        return self.builder.shuffle_vector(a, b, ir.Constant(self.integers, pick))

    def _intrinsic(self, name: str, *values: Any) -> Any:
        kind = ir.FunctionType(self.vector, [self.vector] * len(values))
        name = f"llvm.{name}.v{self.lanes}f32"
        return self.builder.call(self.builder.module.declare_intrinsic(name, (), kind), values)

    # Control

    @contextmanager
    def loop(self, count: Any) -> Iterator[Any]:
        """Repeat what the block writes ``count`` times, at least once; gives the index."""
        with self._loop(count, []) as (index, _, _):
            yield index

    def reduce(
        self, count: int, initial: Sequence[Any], step: Callable[[Any, list[Any]], list[Any]]
    ) -> list[Any]:
        """Values after ``count`` times of ``step``, which maps an index and values to values."""
        if count == 1:
            return step(0, [*initial])
        with self._loop(count, initial) as (index, values, after):
            after += step(index, values)
        return after

    @contextmanager
    def _loop(self, count: Any, initial: Sequence[Any]) -> Iterator[tuple[Any, list[Any], Any]]:
        before = self.builder.block
        body, end = self.function.append_basic_block(), self.function.append_basic_block()
        self.builder.branch(body)
        self.builder.position_at_end(body)
        index = self.builder.phi(INDEX)
        values = [self.builder.phi(value.type) for value in initial]
        after: list[Any] = []
        yield index, values, after
        following = self.builder.add(index, ir.Constant(INDEX, 1))
        last = self.builder.block
        for phi, first, repeated in zip(
            [index, *values], [ir.Constant(INDEX, 0), *initial], [following, *after], strict=True
        ):
            phi.add_incoming(first, before)
            phi.add_incoming(repeated, last)
        more = self.builder.icmp_unsigned("<", following, self.index(count))
        self.builder.cbranch(more, body, end)
        self.builder.position_at_end(end)
