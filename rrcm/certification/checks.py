"""Checks a classifier before sampling: is it a function of each picture, and is it plausible?

A certificate holds for any deterministic function of the picture: the scores of a row must not
depend on other rows, nor on other threads, and must be the same every time. A random classifier of
ours is a function of the picture and of normal numbers passed to it.
"""

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import ModuleType

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from rrcm.certification.plausibility import TrialAnswers
from rrcm.certification.sampling.voting import Backend, scores_of, trial_normals
from rrcm.core.errors import BackendError
from rrcm.data.splits.shards import Split

PICTURES = 64  # classified with and without noise
ROUNDING = 1e-2  # of a score, at another place of the batch: that of bfloat16, of 8 bits
SAME_PLACE = 1e-5  # of a score, at the same place, where kernels compute the same, bit for bit
LARGEST = 1e30  # replaces infinite scores, of classes that are masked out
SAME = 1e-6  # of a class's largest score: float32 rounding
DRAW = 2**32 - 1  # a draw of the noise that no sampling uses


def examine(
    backend: Backend,
    split: Split,
    *,
    noise: ModuleType,
    sigma: float,
    seed: int,
    batch_size: int,
    ours: bool = False,
) -> TrialAnswers:
    """Check a classifier; return its answers to some pictures of ``split``.

    A classifier that is ``ours`` is not checked for dependence between rows. One that gives votes
    instead of scores, 1 for a class and 0 for all others, may answer the same every time.

    Raises:
        BackendError: The scores are NaN, depend on more than the picture, or are constant.
    """
    places = np.unique(np.linspace(0, len(split.idx) - 1, PICTURES).astype(int))
    clean = torch.from_numpy(split.pixels(places))
    noisy = noise.noisy(
        clean,
        sigma,
        seed=seed,
        images=torch.from_numpy(split.idx[places]),
        draws=torch.full((len(places),), DRAW),
        max_value=split.max_value,
    )
    if not ours:
        function(backend, noisy[torch.arange(batch_size) % len(places)])
    black_and_white = torch.stack([torch.zeros_like(clean[0]), torch.ones_like(clean[0])])
    scores = _scores(backend, torch.cat([clean, noisy, black_and_white]), batch_size)
    votes_only = torch.equal(scores, F.one_hot(scores.argmax(1), scores.shape[1]).double())
    constant = scores.amax(0) - scores.amin(0) <= SAME * scores.abs().amax(0)
    if constant.all() and not votes_only:
        raise BackendError("the scores are the same whatever the picture; was anything trained?")
    plain, shaken = scores[: len(places)], scores[len(places) : -2]
    return TrialAnswers(
        labels=split.labels[places].tolist(),
        plain=plain.argmax(1).tolist(),
        noisy=shaken.argmax(1).tolist(),
    )


def function(backend: Backend, x: Tensor) -> None:
    """Refuse a classifier that is not a function of each picture; ``x`` is a batch [B, C, H, W].

    Differences as small as rounding pass, as kernels may round by the position in a batch. Further
    calls run on several threads at a time, as sampling does.

    Raises:
        BackendError: Scores change between calls, or with the other pictures of the batch.
    """
    z = trial_normals(backend, len(x))
    first = _finite_scores(backend, x, z)
    if not _same(first, _finite_scores(backend, x, z), SAME_PLACE):
        raise BackendError(
            "the same batch gave other scores when it was asked again: there is randomness inside, "
            "such as dropout, and nothing can be certified; export the network after eval()"
        )
    half = len(x) // 2
    halves = slice(None, half), slice(half, None)
    batches = [x.flip(0)]
    for kept in halves:
        mixed = torch.ones_like(x)  # black and white pictures, unlike any noisy one
        mixed[1::2] = 0
        mixed[kept] = x[kept]
        batches.append(mixed)
    normals = [None if z is None else z.flip(0), z, z]
    with ThreadPoolExecutor(len(batches)) as pool:
        moved, *others = pool.map(partial(_finite_scores, backend), batches, normals)
    agree = [_same(first, moved.flip(0), ROUNDING)]
    for kept, scores in zip(halves, others, strict=True):
        agree.append(_same(first[kept], scores[kept], SAME_PLACE))
    if not all(agree):
        raise BackendError(
            "a picture's scores depend on the other pictures of its batch, or on those on other "
            "threads, and nothing can be certified; batch norm is training, or quantisation takes "
            "its scale from the batch: export after eval(), with static scales, or with a fixed "
            "batch of 1"
        )


def _same(scores: Tensor, others: Tensor, share: float) -> bool:
    """Whether scores [B, K] differ by a ``share`` of their size at most.

    The size of a score is its own, with that of the winning score of its row, and of a typical row.
    So a class that is masked out, by a score of -1e9, has a size that no other class has.
    """
    winning = scores.amax(1, keepdim=True).abs()
    size = scores.abs() + winning + winning.median() if len(scores) else scores
    return bool(((scores - others).abs() <= share * size).all())


def _finite_scores(backend: Backend, x: Tensor, z: Tensor | None) -> Tensor:
    with torch.inference_mode():
        scores = scores_of(backend, x.to(backend.device), z).cpu()
    if scores.isnan().any():
        raise BackendError("scores are NaN; the weights or the runtime are broken")
    return scores.double().clamp(-LARGEST, LARGEST)


def _scores(backend: Backend, x: Tensor, batch_size: int) -> Tensor:
    """Scores, computed in batches of ``batch_size``, as some classifiers take no other size."""
    rows = torch.arange(len(x) + -len(x) % batch_size) % len(x)
    z = trial_normals(backend, batch_size)
    return torch.cat([_finite_scores(backend, x[batch], z) for batch in rows.split(batch_size)])[
        : len(x)
    ]
