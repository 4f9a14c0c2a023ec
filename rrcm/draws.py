"""The randomness of a training step: a function of (seed, step) and of a row's place in the batch.

Devices that share a batch draw for their own rows what one device would have drawn for all of them,
so that two processes train the network that one would.
"""

import hashlib

import torch
from torch import Tensor

BLOCK = 64  # rows that share a generator: few to start for a device, few to draw for nothing


class Draws:
    """Random numbers for rows ``first``, ``first`` + 1, … of the batch of step ``step``.

    Every call draws anew; the k-th call gives the same numbers whatever part of the batch the rows
    are, but for the kind of device.
    """

    def __init__(self, seed: int, step: int, *, first: int = 0, purpose: str = "loss") -> None:
        """``first`` is the place of this process's first row in the batch of all of them.

        Numbers for one ``purpose`` are independent of those for another.
        """
        self._key, self._first, self._calls = f"{seed}/{step}/{purpose}", first, 0

    def normal(self, x: Tensor) -> Tensor:
        """Standard normal numbers of the shape [B, …], type and device of ``x``."""
        return self._rows(torch.randn, x.shape, x.dtype, x.device)

    def uniform(self, x: Tensor, *shape: int) -> Tensor:
        """Uniform numbers in [0, 1), [B, *shape], for the rows of ``x``, on its device."""
        return self._rows(torch.rand, (len(x), *shape), x.dtype, x.device)

    def integer(self, high: int) -> int:
        """A uniform whole number below ``high``, one for the whole batch."""
        return int(torch.randint(high, (), generator=self._generator(self._next(), 0, "cpu")))

    def pair(self, points: int, weights: Tensor | None) -> int:
        """n, of which ``points`` n and n + 1 are compared, one for the whole batch.

        With probability in proportion to ``weights`` [points - 1], or each alike.
        """
        if weights is None:
            return self.integer(points - 1)
        generator = self._generator(self._next(), 0, "cpu")
        return int(torch.multinomial(weights.double().cpu(), 1, generator=generator))

    def _rows(self, draw, shape, dtype, device) -> Tensor:  # noqa: ANN001 (torch.randn, torch.rand)
        rows, call = shape[0], self._next()
        blocks = range(self._first // BLOCK, -(-(self._first + rows) // BLOCK))
        parts = [
            draw(BLOCK, *shape[1:], dtype=dtype, device=device, generator=generator)
            for block in blocks
            for generator in [self._generator(call, block, device)]
        ]
        start = self._first - BLOCK * blocks.start
        return torch.cat(parts)[start : start + rows]

    def _next(self) -> int:
        self._calls += 1
        return self._calls

    def _generator(self, call: int, block: int, device: torch.device | str) -> torch.Generator:
        digest = hashlib.sha256(f"{self._key}/{call}/{block}".encode()).digest()
        return torch.Generator(device).manual_seed(int.from_bytes(digest[:8], "big") >> 1)
