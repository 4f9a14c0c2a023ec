"""Voters: what a batch of noisy pixels adds to the counts of its images, on the backend's device.

A voter maps noisy pixels [B, C, H, W] to what each row adds, int64 [B, columns]; the last column
counts scores that are no numbers.
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
    """What the certifier sees of a classifier; see rrcm/backends/."""

    classes: list[str]
    weights: str
    provider: str
    device: torch.device

    def scores(self, x: Tensor) -> Tensor:
        """Scores [B, K] of noisy pixels [B, C, H, W], both on ``device``; any thread may ask."""


Voter = Callable[[Tensor], Tensor]


def hard(backend: Backend) -> Voter:
    """A vote for the class of the highest score, the lowest such class: [B, K + 1]."""

    def vote(noisy: Tensor) -> Tensor:
        scores = backend.scores(noisy)
        return torch.cat([_hard(scores), _nan(scores)], dim=1)

    return vote


def soft(backend: Backend, *, beta: float) -> Voter:
    """The vote, each class's probability in steps of 1 / SOFT, and its square: [B, 3 K + 1].

    Probabilities are softmax(beta * scores), rounded down, so that their sums are exact.
    """

    def vote(noisy: Tensor) -> Tensor:
        scores = backend.scores(noisy)
        return torch.cat([_soft(scores, beta), _nan(scores)], dim=1)

    return vote


def prefixes(backend: Backend, *, beta: float) -> Voter:
    """The columns of `soft`, or of `hard` for 0, of each prefix: [B, k (K or 3 K) + 1].

    ``backend`` was opened with ``prefixes``, so that its scores are [B, k, K].
    """

    def vote(noisy: Tensor) -> Tensor:
        scores = backend.scores(noisy)
        ballots = [_soft(s, beta) if beta else _hard(s) for s in scores.unbind(dim=1)]
        return torch.cat([*ballots, _nan(scores.flatten(1))], dim=1)

    return vote


def disagreement(backend: Backend, other: Backend) -> Voter:
    """Whether two functions vote alike on a noisy input, and whether not: [B, 2 + 1]."""

    def vote(noisy: Tensor) -> Tensor:
        first, second = backend.scores(noisy), other.scores(noisy.to(other.device))
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
) -> Count:
    """What `engine.run` calls: counts of pieces, in batches of ``batch_size`` rows on ``device``.

    Rows that no piece fills repeat the first image, and are counted for none.

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
            noisy = noise.noisy(
                x[source],
                sigma,
                seed=seed,
                images=idx[source],
                draws=draws[batch],
                white=split.white,
            )
            add = voter(noisy) * counted[batch, None]
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
        x = x.to(backend.device)
        scores = backend.scores(x)
        return all(
            torch.equal(scores[rows], backend.scores(x[rows])) for rows in (half, len(x) - 1 - half)
        )
