"""Random numbers of a training step, a function of (seed, step) and of a row's place in the batch.

Each device draws for its rows of a batch the numbers that a single device would have drawn for
them, so that several processes train the same network as one.
"""

import hashlib
import math
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import torch
from torch import Tensor

BLOCK = 64  # rows per generator; more rows need fewer generators, but discard more numbers


def uniform_of(z: Tensor) -> Tensor:
    """Uniform numbers of variance 1 in place of normal ones: sqrt(3) (2 Phi(z) - 1)."""
    return math.sqrt(3) * torch.erf(z / math.sqrt(2))


class Draws:
    """Random numbers for rows ``first``, ``first`` + 1, … of the batch of step ``step``.

    The k-th call returns the same numbers for a row, whichever part of the batch is drawn. They
    differ between kinds of device.
    """

    def __init__(self, seed: int, step: int, *, first: int = 0, purpose: str = "loss") -> None:
        """``first`` is the place of this process's first row in the batch of all processes.

        Different ``purpose``s have independent numbers.
        """
        self._key, self._first, self._calls = f"{seed}/{step}/{purpose}", first, count(1)
        self.law = "gaussian"

    def normal(self, x: Tensor) -> Tensor:
        """Standard normal numbers with the shape [B, …], type and device of ``x``; see `of_law`."""
        z = self._rows(torch.randn, x.shape, x.dtype, x.device)
        return uniform_of(z) if self.law == "uniform" else z

    def of_law(self, noise: str) -> "Draws":
        """These draws, whose `normal` gives `uniform_of` its numbers if ``noise`` is uniform."""
        self.law = noise
        return self

    def uniform(self, x: Tensor, *shape: int) -> Tensor:
        """Uniform numbers in [0, 1), [B, *shape], with the type and device of ``x``."""
        return self._rows(torch.rand, (len(x), *shape), x.dtype, x.device)

    def integer(self, high: int) -> int:
        """A uniform integer below ``high``, the same for the whole batch."""
        return int(torch.randint(high, (), generator=self._generator(next(self._calls), 0, "cpu")))

    def pair(self, points: int, weights: Tensor | None) -> int:
        """Index n of a pair (n, n + 1) of ``points``, the same for the whole batch.

        Drawn in proportion to ``weights`` [points - 1], or uniformly without.
        """
        if weights is None:
            return self.integer(points - 1)
        generator = self._generator(next(self._calls), 0, "cpu")
        return int(torch.multinomial(weights.double().cpu(), 1, generator=generator))

    def _rows(
        self, draw: Callable[..., Tensor], shape: Sequence[int], dtype: torch.dtype, device: Any
    ) -> Tensor:
        rows, call = shape[0], next(self._calls)
        blocks = range(self._first // BLOCK, -(-(self._first + rows) // BLOCK))
        parts = [
            draw(BLOCK, *shape[1:], dtype=dtype, device=device, generator=generator)
            for block in blocks
            for generator in [self._generator(call, block, device)]
        ]
        start = self._first - BLOCK * blocks.start
        return torch.cat(parts)[start : start + rows]

    def _generator(self, call: int, block: int, device: torch.device | str) -> torch.Generator:
        digest = hashlib.sha256(f"{self._key}/{call}/{block}".encode()).digest()
        return torch.Generator(device).manual_seed(int.from_bytes(digest[:8], "big") >> 1)
