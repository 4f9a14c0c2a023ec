"""Counts votes per image from batches of classifier scores, on the backend's device.

A ballot maps noisy pixels [B, C, H, W] to the `Counts` of each row: class votes, soft votes, or the
disagreements of two classifiers. `counter` draws the noise and sums rows over draws of an image.

Guarantee: a row's noise, and the normal numbers z of a random classifier, are functions of (seed,
image, draw), from two streams. So draws of a random classifier are independent of each other and of
the noise, as its certificate requires.
"""

from collections.abc import Callable
from dataclasses import dataclass
from operator import itemgetter
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from rrcm.certification.sampling.batching import CountPieces, Piece
from rrcm.certification.votes.counts import SOFT
from rrcm.core.errors import BackendError
from rrcm.data.splits.shards import Split


class Backend(Protocol):
    """The classifier as certification calls it; see rrcm/inference/backends/.

    ``sigma`` is the noise level that it classifies at, and that of the noise of its votes.
    ``normals`` is the shape of the standard normal numbers z that each row of a random classifier
    takes, () for a deterministic one.
    """

    sigma: float
    classes: list[str]
    weights: str
    provider: str
    device: torch.device
    normals: tuple[int, ...] = ()

    def scores(self, x: Tensor, z: Tensor | None = None) -> Tensor:
        """Scores [B, K] of noisy pixels [B, C, H, W] and ``z`` [B, *normals], all on ``device``.

        Callable from any thread. ``z`` is omitted where ``normals`` is ().
        """


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Counts:
    """Votes of single draws, or summed over draws, int64; ``+`` adds them.

    ``votes`` [..., K] per class. ``soft`` and ``squares`` [..., K]: class probabilities in whole
    steps of 1 / SOFT, and the squares of these steps; [..., 0] where there are no soft votes.
    ``nan`` [..., 1]: draws with a NaN score.
    """

    votes: Tensor
    soft: Tensor
    squares: Tensor
    nan: Tensor

    def apply(self, function: Callable[[Tensor], Tensor]) -> "Counts":
        """Apply ``function`` to each tensor."""
        return Counts(
            votes=function(self.votes),
            soft=function(self.soft),
            squares=function(self.squares),
            nan=function(self.nan),
        )

    def __add__(self, other: "Counts") -> "Counts":
        """Sums of counts of the same shapes."""
        return Counts(
            votes=self.votes + other.votes,
            soft=self.soft + other.soft,
            squares=self.squares + other.squares,
            nan=self.nan + other.nan,
        )


Ballot = Callable[[Tensor, Tensor | None], Counts]  # noisy pixels and z of B rows -> their counts


class Noise(Protocol):
    """The noise of votes, at its sigma and seed; see `procedure.noise`."""

    def noisy(self, x: Tensor, images: Tensor, draws: Tensor) -> Tensor:
        """Noisy pixels [B, C, H, W]: a draw of the noise of an image for each row of ``x``."""

    def normals(self, images: Tensor, draws: Tensor, shape: tuple[int, ...]) -> Tensor:
        """The normal numbers z [B, *shape] that go with these draws."""


def scores_of(backend: Backend, x: Tensor, z: Tensor | None) -> Tensor:
    """Scores of rows ``x`` and, where the classifier is random, ``z``."""
    return backend.scores(x) if z is None else backend.scores(x, z)


def trial_normals(backend: Backend, rows: int) -> Tensor | None:
    """Normal numbers [rows, *normals] for checks, unlike any draw's; None if none are needed."""
    if not backend.normals:
        return None
    generator = torch.Generator().manual_seed(0)
    return torch.randn(rows, *backend.normals, generator=generator).to(backend.device)


def hard(backend: Backend) -> Ballot:
    """One vote per row, for the class of the highest score; ties go to the lowest class."""

    def ballot(noisy: Tensor, z: Tensor | None = None) -> Counts:
        scores = scores_of(backend, noisy, z)
        return _counts(F.one_hot(scores.argmax(1), scores.shape[1]), _nan(scores))

    return ballot


def soft(backend: Backend, *, beta: float) -> Ballot:
    """The vote of `hard`, and probabilities softmax(beta * scores) in steps of 1 / SOFT.

    They are rounded down to whole steps, so that sums over draws are exact.
    """

    def ballot(noisy: Tensor, z: Tensor | None = None) -> Counts:
        scores = scores_of(backend, noisy, z)
        steps = ((beta * scores.double()).softmax(dim=1) * SOFT).nan_to_num().long()
        return _counts(F.one_hot(scores.argmax(1), scores.shape[1]), _nan(scores), steps)

    return ballot


def disagreement(backend: Backend, other: Backend) -> Ballot:
    """Whether two classifiers agree on a noisy input: votes [B, 2] for yes and no.

    Random classifiers get the same normal numbers.
    """

    def ballot(noisy: Tensor, z: Tensor | None = None) -> Counts:
        first = scores_of(backend, noisy, z)
        there = None if z is None else z.to(other.device)
        second = scores_of(other, noisy.to(other.device), there).to(first.device)
        unlike = first.argmax(1) != second.argmax(1)
        return _counts(F.one_hot(unlike.long(), 2), _nan(first) | _nan(second))

    return ballot


def _counts(votes: Tensor, nan: Tensor, steps: Tensor | None = None) -> Counts:
    steps = votes[:, :0] if steps is None else steps
    return Counts(votes=votes, soft=steps, squares=steps**2, nan=nan)


def _nan(scores: Tensor) -> Tensor:
    return scores.isnan().any(dim=1, keepdim=True).long()


def counter(
    ballot: Ballot,
    split: Split,
    *,
    noise: Noise,
    batch_size: int,
    device: torch.device,
    normals: tuple[int, ...] = (),
) -> CountPieces:
    """The function that `batching.run` calls: the `Counts` of each piece, on the CPU.

    Batches have ``batch_size`` rows on ``device``; rows that no piece fills repeat the first image
    and are not counted. ``normals`` is the shape of z, which is drawn afresh for each row.

    Raises:
        BackendError: A score is NaN; names the image.
    """

    def count(pieces: list[Piece]) -> list[Counts]:
        if device.type == "cpu" and torch.get_num_threads() != 1:
            torch.set_num_threads(1)  # of this thread; there is a worker for each core
        places = np.array([piece.job.row for piece in pieces])
        x, idx = (_on(device, array) for array in (split.pixels(places), split.idx[places]))
        owner, draws, counted = _on(device, _rows(pieces, batch_size))
        totals: Counts | None = None
        for first in range(0, len(owner), batch_size):
            batch = slice(first, first + batch_size)
            piece = owner[batch]
            keys = idx[piece], draws[batch]
            noisy = noise.noisy(x[piece], *keys)
            z = noise.normals(*keys, normals) if normals else None
            summed = _per_piece(ballot(noisy, z), piece, counted[batch, None], len(pieces))
            totals = summed if totals is None else totals + summed
        assert totals is not None  # pieces have rows
        totals = totals.apply(Tensor.cpu)  # the only wait for the device
        if bool(totals.nan.any()):
            image = split.idx[places[int(totals.nan[:, 0].argmax())]]
            raise BackendError(
                f"NaN scores for image {image}; the weights or the runtime are broken"
            )
        return [totals.apply(itemgetter(i)) for i in range(len(pieces))]

    return count


def _per_piece(rows: Counts, piece: Tensor, counted: Tensor, pieces: int) -> Counts:
    """Sums [pieces, ...] of the rows [B, ...] of each ``piece`` [B] that are ``counted`` [B, 1]."""

    def summed(values: Tensor) -> Tensor:
        return values.new_zeros(pieces, values.shape[1]).index_add_(0, piece, values * counted)

    return rows.apply(summed)


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


def is_batch_invariant(backend: Backend, x: Tensor) -> bool:
    """Whether a row's scores have the same bits at another place of a batch, among other rows."""
    half = torch.arange(len(x)).flip(0) // 2  # rows of the first half, each twice, at other places
    with torch.inference_mode():
        x, z = x.to(backend.device), trial_normals(backend, len(x))
        scores = scores_of(backend, x, z)
        return all(
            torch.equal(scores[rows], scores_of(backend, x[rows], None if z is None else z[rows]))
            for rows in (half, len(x) - 1 - half)
        )
