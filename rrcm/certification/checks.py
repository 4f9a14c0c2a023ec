"""Checks a classifier before sampling: is it a function of each picture, and is it plausible?

A certificate holds for any deterministic function of the picture: the scores of a row must not
depend on other rows, nor on other threads, and must be the same every time. A random classifier of
ours is a function of the picture and of normal numbers passed to it.
"""

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from rrcm.certification.plausibility import TrialAnswers
from rrcm.certification.sampling import drift
from rrcm.certification.sampling.drift import ALONE, LARGEST, SAME_PLACE, same
from rrcm.certification.sampling.voting import BROKEN, NAN, is_defined, noise, trial_normals
from rrcm.certification.votes.records import Header
from rrcm.core.errors import BackendError, NoFunctionError
from rrcm.data.splits.shards import Split
from rrcm.inference.backend import Backend
from rrcm.inference.foreign import _scores as of_foreign

PICTURES = 64  # classified with and without noise
ROUNDING = 1e-2  # of a score, at another place of the batch: that of bfloat16, of 8 bits
SAME = 1e-6  # of a class's largest score: float32 rounding
SEVERAL = 16  # pictures that show whether a single score is a probability
DRAW = 2**32 - 1  # a draw of the noise that no sampling uses


def examine(backend: Backend, split: Split, header: Header) -> TrialAnswers:
    """Check a classifier; return its answers to some pictures of ``split``.

    One of ours is not checked for dependence between rows. One that gives votes instead of scores,
    1 for a class and 0 for all others, may answer the same every time.

    Raises:
        BackendError: A picture has no scores, they depend on more than it, or they are constant.
    """
    places, clean, noisy = _tried(split, header)
    batch_size = backend.fixed or min(header.batch_size, PICTURES)
    if header.foreign:
        rows = torch.arange(batch_size) % len(places)
        function(backend, noisy[rows], clean[rows])
    black_and_white = torch.stack([torch.zeros_like(clean[0]), torch.ones_like(clean[0])])
    plain, shaken, extreme = (
        _scores(backend, x, batch_size) for x in (clean, noisy, black_and_white)
    )
    _require_defined(plain, shaken)
    scores = torch.cat([plain, shaken, extreme[is_defined(extreme)]]).clamp(min=-LARGEST)
    votes_only = torch.equal(scores, F.one_hot(scores.argmax(1), scores.shape[1]).double())
    constant = scores.amax(0) - scores.amin(0) <= SAME * scores.abs().amax(0)
    if constant.all() and not votes_only:
        raise BackendError("the scores are the same whatever the picture; was anything trained?")
    return TrialAnswers(
        labels=split.labels[places].tolist(),
        plain=plain.argmax(1).tolist(),
        noisy=shaken.argmax(1).tolist(),
        brightest=float(clean.max()),
        unlike=backend.unlike(noisy),
    )


def unlike(backend: Backend, split: Split, header: Header) -> str:
    """How some pictures of ``split``, under noise, differ from those of training; empty if not."""
    return backend.unlike(_tried(split, header)[2])


def _tried(split: Split, header: Header) -> tuple[np.ndarray, Tensor, Tensor]:
    """Rows of some pictures, and these without and with noise, [B, C, H, W]."""
    places = np.unique(np.linspace(0, len(split.idx) - 1, PICTURES).astype(int))
    clean = torch.from_numpy(split.pixels(places))
    idx, draws = torch.from_numpy(split.idx[places]), torch.full((len(places),), DRAW)
    return places, clean, noise(header, split).noisy(clean, idx, draws)


def function(backend: Backend, x: Tensor, clean: Tensor) -> None:
    """Refuse a classifier that is not a function of each picture.

    ``x`` is a noisy batch [B, C, H, W], ``clean`` the same without noise. Differences as small as
    rounding pass, as kernels may round by the position in a batch, and by its size. Further calls
    run on several threads at a time, as sampling does. What it answered is remembered for `drift`.

    Raises:
        NoFunctionError: Scores change between calls, with other pictures of the batch, or with
            their number, or something is computed of a whole batch.
        BackendError: There are no scores.
    """
    z = trial_normals(backend, len(x))
    first = drift.remember(backend, x)
    if not is_defined(first).all():
        _require_defined(drift.scores(backend, clean, z), first)
    if not same(first, drift.scores(backend, x, z), SAME_PLACE):
        raise NoFunctionError(
            "the same batch gave other scores when it was asked again: there is randomness inside, "
            "such as dropout, or state that a call changes, and nothing can be certified; export "
            "the network after eval()"
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
        moved, *others = pool.map(partial(drift.scores, backend), batches, normals)
    agree = [same(first, moved.flip(0), ROUNDING)]
    for kept, scores in zip(halves, others, strict=True):
        agree.append(same(first[kept], scores[kept], SAME_PLACE))
    if not all(agree):
        raise NoFunctionError(
            "a picture's scores depend on the other pictures of its batch, or on those on other "
            "threads, and nothing can be certified; batch norm is training, or quantisation takes "
            "its scale from the batch: export after eval(), with static scales, or with a fixed "
            "batch of 1"
        )
    for rows in () if backend.fixed else sorted({1, 2, half} - {0}):
        alone = drift.scores(backend, x[:rows], None if z is None else z[:rows])
        if not same(first[:rows], alone, ALONE):
            raise NoFunctionError(
                f"a picture's scores among {rows} differ from those among {len(x)}, and nothing "
                "can be certified: each picture must be classified by itself"
            )
    if backend.combines and len(x) > 1:
        raise NoFunctionError(
            f"{backend.combines} is computed of all pictures of a batch together, so that others "
            "may decide, however rarely, how a picture is classified, and nothing can be "
            "certified: compute it of each, take it out if it only checks, or have the classifier "
            "asked for one picture at a time, by batch=1 or --batch-size 1"
        )


def of_grey(backend: Backend, shape: tuple[int, int, int], *, rows: int) -> None:
    """Check what was trained elsewhere by `function` on ``rows`` grey pictures of ``shape``.

    Raises:
        BackendError: As of `function`; or its two scores are made of one number that is no logit,
            or its scores are the highest of more classes.
    """
    generator = torch.Generator().manual_seed(0)
    grey = torch.full((rows, *shape), 0.5)
    function(backend, grey + backend.sigma * torch.randn(grey.shape, generator=generator), grey)
    more = torch.randn(max(1, SEVERAL // rows), *grey.shape, generator=generator)
    level = torch.rand(*more.shape[:2], shape[0], 1, 1, generator=generator)  # of each channel
    noisy = (level + backend.sigma * more).to(backend.device)
    noisy = noisy if backend.fixed else noisy[:, :SEVERAL]
    classes = len(backend.classes) - bool(backend.count_nan)
    scores = torch.cat([backend.scores(batch) for batch in noisy])[:, :classes]
    (of_foreign.refuse_no_logit if classes == 2 else of_foreign.refuse_ranked)(scores)


def _require_defined(plain: Tensor, noisy: Tensor) -> None:
    """Refuse scores [B, K] of pictures without and with noise of which a row has no class.

    Raises:
        BackendError: Says whether it is the noise.
    """
    odd = next((scores for scores in (plain, noisy) if not is_defined(scores).all()), None)
    if odd is None:
        return
    what = "NaN" if odd.isnan().any() else "infinite"
    if odd is plain:
        raise BackendError(f"scores are {what}; {BROKEN}")
    raise BackendError(
        f"scores are {what} under noise, and not without it: noisy pixels leave [0, 1], where a "
        f"square root has no value; clamp what it needs within the network. Or: {NAN}"
    )


def _scores(backend: Backend, x: Tensor, batch_size: int) -> Tensor:
    """Scores, computed in batches of ``batch_size``, as some classifiers take no other size."""
    rows = torch.arange(len(x) + -len(x) % batch_size) % len(x)
    z = trial_normals(backend, batch_size)
    scores = [drift.scores(backend, x[batch], z) for batch in rows.split(batch_size)]
    return torch.cat(scores)[: len(x)]
