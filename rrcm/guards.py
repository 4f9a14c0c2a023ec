"""Guards: what is wrong with somebody's classifier, found before hours are spent on drawing.

A certificate holds for whatever function was sampled, as long as it is one: a row's scores must
depend on that row alone, and be the same every time. A classifier of ours that is random is such a
function of the picture and of normal numbers that it is given.
"""

from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from rrcm.errors import BackendError
from rrcm.plausibility import Tried
from rrcm.shards import Split
from rrcm.voters import Backend, ask, example

PICTURES = 64  # on which answers are counted
ROUNDING = 2e-3  # of the range of scores: what float16 may lose, and no dependence is as small as
LARGEST = 1e30  # instead of infinite scores, of classes that are ruled out
SAME = 1e-6  # of the largest score: what float32 may lose
DRAW = 2**32 - 1  # of the noise: one that no sampling makes


def examine(
    backend: Backend,
    split: Split,
    *,
    noise: ModuleType,
    sigma: float,
    seed: int,
    batch_size: int,
    ours: bool = False,
) -> Tried:
    """A classifier's answers to some pictures of ``split``, once it has passed the guards.

    Of one that is ``ours`` it is known that a row's scores depend on that row alone.

    Raises:
        BackendError: The scores are no function of the picture alone, are NaN, or do not depend on
            it at all.
    """
    places = np.unique(np.linspace(0, len(split.idx) - 1, PICTURES).astype(int))
    clean = torch.from_numpy(split.pixels(places))
    noisy = noise.noisy(
        clean,
        sigma,
        seed=seed,
        images=torch.from_numpy(split.idx[places]),
        draws=torch.full((len(places),), DRAW),
        white=split.white,
    )
    if not ours:
        function(backend, noisy[torch.arange(batch_size) % len(places)])
    black_and_white = torch.stack([torch.zeros_like(clean[0]), torch.ones_like(clean[0])])
    scores = _scores(backend, torch.cat([clean, noisy, black_and_white]), batch_size)
    if float((scores.amax(0) - scores.amin(0)).max()) <= SAME * float(_finite(scores).abs().max()):
        raise BackendError("the scores are the same whatever the picture; was anything trained?")
    plain, shaken = scores[: len(places)], scores[len(places) : -2]
    return Tried(
        labels=split.labels[places].tolist(),
        plain=plain.argmax(1).tolist(),
        noisy=shaken.argmax(1).tolist(),
    )


def function(backend: Backend, x: Tensor) -> None:
    """Refuse a classifier that is no function of each picture alone; ``x`` is a batch [B, C, H, W].

    Differences that rounding makes are let pass: of kernels that differ by the place in a batch.

    Raises:
        BackendError: Says whether the same batch gave other scores, or other batch mates did.
    """
    z = example(backend, len(x))
    first = _ask(backend, x, z)
    scale = ROUNDING * float(_finite(first).max() - _finite(first).min())
    if not torch.allclose(first, _ask(backend, x, z), rtol=0, atol=scale):
        raise BackendError(
            "the same batch gave other scores when it was asked again: there is randomness inside, "
            "such as dropout, and nothing can be certified; export the network after eval()"
        )
    half = len(x) // 2
    moved = _ask(backend, x.flip(0), None if z is None else z.flip(0)).flip(0)
    agree = [torch.allclose(first, moved, rtol=0, atol=scale)]
    for alone in (slice(None, half), slice(half, None)):
        mates = torch.ones_like(x)  # as unlike the others as pixels can be
        mates[1::2] = 0
        mates[alone] = x[alone]
        found = _ask(backend, mates, z)[alone]
        agree.append(torch.allclose(first[alone], found, rtol=0, atol=scale))
    if not all(agree):
        raise BackendError(
            "a picture's scores depend on the other pictures of its batch, and nothing can be "
            "certified; batch norm is training, or quantisation takes its scale from the "
            "batch: export after eval(), with static scales, or with a fixed batch of 1"
        )


def _ask(backend: Backend, x: Tensor, z: Tensor | None) -> Tensor:
    with torch.inference_mode():
        scores = ask(backend, x.to(backend.device), z).cpu()
    if scores.isnan().any():
        raise BackendError("scores are NaN; the weights or the runtime are broken")
    return scores.double().clamp(-LARGEST, LARGEST)


def _finite(scores: Tensor) -> Tensor:
    return scores.masked_fill(scores.abs() == LARGEST, 0)


def _scores(backend: Backend, x: Tensor, batch_size: int) -> Tensor:
    """Scores in batches of one size, which may be the only one that the classifier takes."""
    rows = torch.arange(len(x) + -len(x) % batch_size) % len(x)
    z = example(backend, batch_size)
    return torch.cat([_ask(backend, x[batch], z) for batch in rows.split(batch_size)])[: len(x)]
