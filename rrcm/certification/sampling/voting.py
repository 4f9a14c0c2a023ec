"""Counts votes per image from batches of classifier scores, on the backend's device.

Guarantee: a row's noise, and the normal numbers z of a random classifier, are functions of (seed,
image, draw), from two streams. So draws of a random classifier are independent of each other and of
the noise, as its certificate requires.
"""

import queue
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from rrcm.certification.sampling.batching import CountPieces, Piece
from rrcm.certification.sampling.normals import normals
from rrcm.certification.votes.records import Header
from rrcm.core import registry
from rrcm.core.errors import BackendError
from rrcm.data.splits.shards import Split
from rrcm.inference.backend import Backend
from rrcm.noise import streams

BROKEN = "the weights or the runtime are broken"
NAN = (
    "if the noise alone makes a few of them, --count-nan, in Python count_nan=True, counts them as "
    f"votes for no class; else {BROKEN}"
)

Look = Callable[[Tensor, Tensor | None, Tensor], None]  # at a batch, its normal numbers and scores


@dataclass(frozen=True, slots=True)
class BoundNoise:
    """A file of rrcm/certification/distributions/, bound to one sigma, key and pixel grid."""

    component: ModuleType
    sigma: float
    key: int
    max_value: int

    def noisy(self, x: Tensor, images: Tensor, draws: Tensor) -> Tensor:
        """Pixels [B, C, H, W] with noise added: row b has draw ``draws[b]`` of ``images[b]``."""
        return self.component.noisy(
            x, self.sigma, seed=self.key, images=images, draws=draws, max_value=self.max_value
        )

    def normals(self, images: Tensor, draws: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Normal numbers [B, *shape] for a random classifier, in a stream of their own."""
        return normals(self.key, images, draws, shape, stream=streams.RANDOMISE)


def noise(header: Header, split: Split) -> BoundNoise:
    """The noise that ``header`` defines, for pixels of ``split``."""
    component = registry.load("distributions", header.noise)
    return BoundNoise(component, header.sigma, header.noise_key, split.max_value)


def trial_normals(backend: Backend, rows: int) -> Tensor | None:
    """Normal numbers [rows, *normals] for checks, unlike any draw's; None if none are needed."""
    if not backend.normals:
        return None
    generator = torch.Generator().manual_seed(0)
    return torch.randn(rows, *backend.normals, generator=generator).to(backend.device)


def batch(split: Split, size: int) -> Tensor:
    """Pixels of the first ``size`` images, repeated if there are fewer."""
    rows = torch.arange(size) % len(split.idx)
    return torch.from_numpy(split.pixels(rows.numpy()))


def is_defined(scores: Tensor) -> Tensor:
    """Whether each row of scores [B, K] has a class, [B]: none is NaN, and the highest is finite.

    Classes that an overflow lifts to infinity would tie. One at -inf is masked out, and never wins.
    """
    return scores.amax(1).isfinite()  # NaN, where a score is


def ballots(scores: Tensor) -> Tensor:
    """One vote per row of scores [B, K], int64 [B, K + 1]: for the highest, the lowest of equals.

    The last column is 1 where the row has no class (`is_defined`).
    """
    votes = F.one_hot(scores.argmax(1), scores.shape[1])
    return torch.cat([votes, ~is_defined(scores)[:, None]], dim=1)


def counter(
    backend: Backend, split: Split, *, noise: BoundNoise, batch_size: int, look: Look | None = None
) -> CountPieces:
    """The function that `batching.run` calls: the votes of each piece, int64 [K].

    Batches have ``batch_size`` rows on the device of ``backend``; rows that no piece fills repeat
    the first image and are not counted. A random classifier gets fresh normal numbers for each row.
    ``look`` is called with each batch and its scores.

    Raises:
        BackendError: A row has no class (`is_defined`), the image of which is named; or a batch
            does not fit into memory.
    """
    device = backend.device

    @in_memory(split, batch_size)
    def count(pieces: list[Piece]) -> list[np.ndarray]:
        if device.type == "cpu" and torch.get_num_threads() != 1:
            torch.set_num_threads(1)  # of this thread; there is a worker for each core
        places = np.array([piece.job.row for piece in pieces])
        x, idx = (_on(device, array) for array in (split.pixels(places), split.idx[places]))
        owner, draws, counts = _on(device, _rows(pieces, batch_size))
        totals = torch.zeros(len(pieces), len(backend.classes) + 1, dtype=torch.int64).to(device)
        for first in range(0, len(owner), batch_size):
            batch = slice(first, first + batch_size)
            piece = owner[batch]
            keys = idx[piece], draws[batch]
            noisy = noise.noisy(x[piece], *keys)
            z = noise.normals(*keys, backend.normals) if backend.normals else None
            scores = backend.scores(noisy, z)
            if look:
                look(noisy, z, scores)
            totals.index_add_(0, piece, ballots(scores) * counts[batch, None])
        votes = totals.cpu().numpy()  # the only wait for the device
        if (nan := votes[:, -1]).any():
            image = split.idx[places[int(nan.argmax())]]
            why = BROKEN if backend.count_nan is None else NAN
            raise BackendError(f"NaN scores for image {image} under noise, or infinite ones; {why}")
        return list(votes[:, :-1])

    return count


@contextmanager
def in_memory(split: Split, rows: int) -> Iterator[None]:
    """Say which batch it is that does not fit into memory.

    Raises:
        BackendError: Names its size, where memory was refused within the block.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:  # PyTorch's of a CPU is a RuntimeError
        if isinstance(error, RuntimeError) and "allocat" not in str(error).lower():
            raise
        sides = " x ".join(map(str, split.images.shape[1:]))
        raise BackendError(
            f"batch_size: {rows:,} pictures of {sides} do not fit into memory; give less"
        ) from None


@contextmanager
def threads_restored() -> Iterator[None]:
    """Give the caller's PyTorch its threads back: votes are computed on one thread each.

    Not for `answer`: other requests of a server may be at work, and another number of threads would
    round their scores differently.
    """
    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)


def taking_turns(counters: Sequence[CountPieces], *, workers: int) -> CountPieces:
    """One function of those of several devices, to each of which it hands ``workers`` calls."""
    free: queue.SimpleQueue[CountPieces] = queue.SimpleQueue()
    for each in [*counters] * workers:
        free.put(each)

    def count(pieces: list[Piece]) -> Sequence[np.ndarray]:
        each = free.get()
        try:
            return each(pieces)
        finally:
            free.put(each)

    return count


def _rows(pieces: list[Piece], batch_size: int) -> np.ndarray:
    """For each row of whole batches its piece, its draw, and whether it counts, int64 [3, rows]."""
    sizes = np.array([piece.size for piece in pieces])
    rows = int(sizes.sum())
    table = np.zeros((3, rows + -rows % batch_size), dtype=np.int64)
    table[0, :rows] = np.arange(len(pieces)).repeat(sizes)
    table[1, :rows] = np.concatenate([np.arange(p.first, p.first + p.size) for p in pieces])
    table[2, :rows] = 1
    return table


def _on(device: torch.device, array: np.ndarray) -> Tensor:
    tensor = torch.from_numpy(array)
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)
