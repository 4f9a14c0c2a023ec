"""Asks a classifier again while votes are drawn: they are of one function, or void.

A batch that it was asked first must keep its scores, and a drawn picture must have those that it
has alone: what looks at the whole batch, as at its brightest pixel, may do so under noise alone.
"""

import time
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from rrcm.certification.sampling.voting import trial_normals
from rrcm.core.errors import NoFunctionError
from rrcm.inference.backend import Backend

SAME_PLACE = 1e-5  # of a score, at the same place, where kernels compute the same, bit for bit
ALONE = 5e-2  # in a batch of another size, for which kernels are others, in 16 and in 8 bits
ASKING = 0.05  # most of the time that goes into asking again
LARGEST = 1e30  # replaces infinite scores, of classes that are masked out

# The batch that each classifier was first asked, and its scores; others than then are a drift.
_FIRST: WeakKeyDictionary[Any, tuple[Tensor, Tensor]] = WeakKeyDictionary()


def remember(backend: Backend, x: Tensor) -> Tensor:
    """Ask for the `scores` of a batch ``x`` for the first time, and remember them."""
    first = scores(backend, x, trial_normals(backend, len(x)))
    _FIRST[backend] = x, first
    return first


def known(backend: Backend) -> bool:
    """Whether it was asked a batch already."""
    return backend in _FIRST


def require_none(backend: Backend) -> float:
    """Ask a classifier the batch that is remembered again; return the seconds it took.

    A network that has copies for several threads is asked as often, and answers by each.

    Raises:
        NoFunctionError: The scores are others.
    """
    start = time.perf_counter()
    x, first = _FIRST[backend]
    z = trial_normals(backend, len(x))
    for _ in range(backend.copies):
        if not same(first, scores(backend, x, z), SAME_PLACE):
            raise NoFunctionError(
                "the classifier has changed since it was checked: the same batch gets other "
                "scores, so that its votes are not those of one function, and none are kept; it "
                "keeps state between calls, or was trained or loaded meanwhile"
            )
    return time.perf_counter() - start


class AloneCheck:
    """Asks a classifier for rows of drawn batches by themselves, in `ASKING` of the time.

    What a batch changes for a share q of its rows escapes m such questions with probability
    (1 - q)^m, about.
    """

    def __init__(self, backend: Backend) -> None:
        self.backend, self.began = backend, time.perf_counter()
        self.asked, self.seconds = 0, 0.0

    def __call__(self, x: Tensor, z: Tensor | None, scores: Tensor) -> None:
        """Ask for rows of a batch ``x`` whose ``scores`` are known, while there is time.

        Raises:
            NoFunctionError: A row has other scores among copies of itself.
        """
        while (start := time.perf_counter()) >= self.began + self.seconds / ASKING:
            row, self.asked = self.asked % len(x), self.asked + 1
            rows = torch.full((self.backend.fixed or 1,), row)
            own = self.backend.scores(x[rows], None if z is None else z[rows])[:1]
            if not same(scores[row : row + 1].cpu().double(), own.cpu().double(), ALONE):
                raise NoFunctionError(
                    "a noisy picture's scores depend on the other pictures of its batch, and no "
                    "votes are kept: each must be classified by itself; a step such as `if x.max() "
                    "> 1` looks at all of them"
                )
            self.seconds += time.perf_counter() - start


def scores(backend: Backend, x: Tensor, z: Tensor | None) -> Tensor:
    """Scores [B, K] of a batch on the CPU, float64."""
    with torch.inference_mode():
        return backend.scores(x.to(backend.device), z).cpu().double()


def same(scores: Tensor, others: Tensor, share: float) -> bool:
    """Whether scores [B, K] differ by a ``share`` of their size at most, or are NaN in both.

    The size of a score is its own, with that of the winning score of its row, and of a typical row.
    So a class that is masked out, by a score of -1e9, has a size that no other class has.
    """
    scores, others = (each.clamp(-LARGEST, LARGEST) for each in (scores, others))
    winning = scores.amax(1, keepdim=True).abs()
    size = scores.abs() + winning + winning.nanmedian() if len(scores) else scores
    near = (scores - others).abs() <= share * size
    return bool((near | (scores.isnan() & others.isnan())).all())
