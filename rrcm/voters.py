"""Voters: what a batch of noisy pixels adds to the counts of its images, on the backend's device.

A voter maps noisy pixels [B, C, H, W], and normal numbers for a classifier that is random, to
what each row adds, int64 [B, columns]; the last column counts scores that are no numbers.

Guarantee: both are a function of (seed, image, draw) alone, in streams of their own. So draws of a
random classifier are independent of each other and of their noise, as its certificate asks.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from rrcm.engine import Count, Piece
from rrcm.errors import BackendError
from rrcm.evidence import SOFT
from rrcm.shards import Split


class Backend(Protocol):
    """What the certifier sees of a classifier; see rrcm/backends/.

    ``normals`` is the shape of the standard normal numbers z that a row asks for, () for none.
    """

    classes: list[str]
    weights: str
    provider: str
    device: torch.device
    normals: tuple[int, ...] = ()

    def scores(self, x: Tensor, z: Tensor | None = None) -> Tensor:
        """Scores [B, K] of noisy pixels [B, C, H, W] and ``z`` [B, *normals], all on ``device``.

        Any thread may ask. Without normals, ``z`` is not given.
        """


Voter = Callable[[Tensor, Tensor | None], Tensor]


def ask(backend: Backend, x: Tensor, z: Tensor | None) -> Tensor:
    """Scores of rows ``x`` and, where the classifier is random, ``z``."""
    return backend.scores(x) if z is None else backend.scores(x, z)


def example(backend: Backend, rows: int) -> Tensor | None:
    """Normal numbers [rows, *normals] to try a classifier with, that no draw has; None for none."""
    if not backend.normals:
        return None
    generator = torch.Generator().manual_seed(0)
    return torch.randn(rows, *backend.normals, generator=generator).to(backend.device)


def hard(backend: Backend) -> Voter:
    """A vote for the class of the highest score, the lowest such class: [B, K + 1]."""

    def vote(noisy: Tensor, z: Tensor | None = None) -> Tensor:
        scores = ask(backend, noisy, z)
        return torch.cat([_hard(scores), _nan(scores)], dim=1)

    return vote


def soft(backend: Backend, *, beta: float) -> Voter:
    """The vote, each class's probability in steps of 1 / SOFT, and its square: [B, 3 K + 1].

    Probabilities are softmax(beta * scores), rounded down, so that their sums are exact.
    """

    def vote(noisy: Tensor, z: Tensor | None = None) -> Tensor:
        scores = ask(backend, noisy, z)
        return torch.cat([_soft(scores, beta), _nan(scores)], dim=1)

    return vote


def prefixes(backend: Backend, *, beta: float) -> Voter:
    """The columns of `soft`, or of `hard` for 0, of each prefix: [B, k (K or 3 K) + 1].

    ``backend`` was opened with ``prefixes``, so that its scores are [B, k, K].
    """

    def vote(noisy: Tensor, z: Tensor | None = None) -> Tensor:
        scores = ask(backend, noisy, z)
        ballots = [_soft(s, beta) if beta else _hard(s) for s in scores.unbind(dim=1)]
        return torch.cat([*ballots, _nan(scores.flatten(1))], dim=1)

    return vote


def disagreement(backend: Backend, other: Backend) -> Voter:
    """Whether two functions vote alike on a noisy input, and whether not: [B, 2 + 1].

    Functions that are random are given the same normal numbers.
    """

    def vote(noisy: Tensor, z: Tensor | None = None) -> Tensor:
        first = ask(backend, noisy, z)
        second = ask(other, noisy.to(other.device), None if z is None else z.to(other.device))
        unlike = first.argmax(1) != second.argmax(1).to(first.device)
        nan = _nan(first) | _nan(second).to(first.device)
        return torch.cat([F.one_hot(unlike.long(), 2), nan], dim=1)

    return vote


def _hard(scores: Tensor) -> Tensor:
    return F.one_hot(scores.argmax(1), scores.shape[1])


def _soft(scores: Tensor, beta: float) -> Tensor:
    steps = ((beta * scores.double()).softmax(dim=1) * SOFT).nan_to_num().long()
    return torch.cat([_hard(scores), steps, steps**2], dim=1)


def _nan(scores: Tensor) -> Tensor:
    return scores.isnan().any(dim=1, keepdim=True).long()


def counting(
    voter: Voter,
    split: Split,
    *,
    noise: ModuleType,
    sigma: float,
    seed: int,
    batch_size: int,
    device: torch.device,
    normals: tuple[int, ...] = (),
) -> Count:
    """What `engine.run` calls: counts of pieces, in batches of ``batch_size`` rows on ``device``.

    Rows that no piece fills repeat the first image, and are counted for none. ``normals`` is the
    shape of the normal numbers that the voter is given for each row, drawn for this draw alone.

    Raises:
        BackendError: A score is NaN; names the image.
    """

    def count(pieces: list[Piece]) -> np.ndarray:
        if device.type == "cpu" and torch.get_num_threads() != 1:
            torch.set_num_threads(1)  # of this thread; there is a worker for each core
        places = np.array([piece.job.row for piece in pieces])
        x, idx = (_there(array, device) for array in (split.pixels(places), split.idx[places]))
        owner, draws, counted = _there(_rows(pieces, batch_size), device)
        counts = None
        for first in range(0, len(owner), batch_size):
            batch = slice(first, first + batch_size)
            source = owner[batch]
            whose = idx[source], draws[batch]
            noisy = noise.noisy(
                x[source], sigma, seed=seed, images=whose[0], draws=whose[1], white=split.white
            )
            z = noise.normals(seed, *whose, normals) if normals else None
            add = voter(noisy, z) * counted[batch, None]
            if counts is None:
                counts = torch.zeros(len(pieces), add.shape[1], dtype=torch.int64, device=device)
            counts.index_add_(0, source, add)
        found = counts.cpu().numpy()  # the only wait for the device
        if found[:, -1].any():
            image = split.idx[places[found[:, -1].argmax()]]
            raise BackendError(
                f"NaN scores for image {image} at sigma {sigma:g}; the weights or the runtime are "
                "broken"
            )
        return found[:, :-1]

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


def _there(array: np.ndarray, device: torch.device) -> Tensor:
    tensor = torch.from_numpy(array)
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


def rows_are_alone(backend: Backend, x: Tensor) -> bool:
    """Whether a row's scores are the same bits at another place of a batch, beside other rows."""
    half = torch.arange(len(x)).flip(0) // 2  # rows of the first half, twice, and so moved
    with torch.inference_mode():
        x, z = x.to(backend.device), example(backend, len(x))
        scores = ask(backend, x, z)
        return all(
            torch.equal(scores[rows], ask(backend, x[rows], None if z is None else z[rows]))
            for rows in (half, len(x) - 1 - half)
        )
