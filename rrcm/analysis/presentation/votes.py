"""What pages show of votes: the first noisy copies, and the classes with most votes."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rrcm.certification.sampling import drawing, voting
from rrcm.certification.sampling.batching import Job, Piece
from rrcm.certification.votes.counts import ABSTAIN
from rrcm.certification.votes.records import Header
from rrcm.data.splits.shards import Split
from rrcm.inference.backend import Backend

COPIES = 8  # the first draws
SHOWN = 5  # classes whose votes are shown
BLIND: Any = SimpleNamespace(classes=[""], device=torch.device("cpu"), normals=())  # no classifier
BLIND.scores = lambda noisy, _: torch.zeros(len(noisy), 1)


def copies(
    header: Header,
    split: Split,
    drawn: dict[int, int],
    *,
    backend: Backend | None,
    encoded: Callable[[np.ndarray], str],
) -> dict[int, list[tuple[str, int]]]:
    """The first `COPIES` of the draws of images, of which ``drawn`` has the number, by index.

    By the code that counted the votes, with the class of each; -1 without ``backend``.
    """
    places = {idx: int(np.flatnonzero(split.idx == idx)[0]) for idx in drawn}
    pieces = [Piece(Job(row=places[i], bounds=()), 0, 0, min(COPIES, drawn[i])) for i in drawn]
    found: dict[int, list[tuple[str, int]]] = {idx: [] for idx in drawn}
    noise, size = voting.noise(header, split), header.batch

    def count(some: list[Piece]) -> None:
        owners = iter([split.idx[one.job.row] for one in some for _ in range(one.size)])

        def look(noisy: Tensor, _: Tensor | None, scores: Tensor) -> None:
            classes = scores.argmax(1).tolist() if backend else [ABSTAIN] * len(noisy)
            for x, c, idx in zip(noisy.cpu().numpy(), classes, owners, strict=False):
                found[int(idx)].append((encoded(x), c))

        voting.counter(backend or BLIND, split, noise=noise, batch_size=size, look=look)(some)

    each = max(1, size // COPIES)  # pieces of a batch
    batches = [pieces[first : first + each] for first in range(0, len(pieces), each)]
    with ThreadPoolExecutor(drawing.workers()) as pool:
        list(pool.map(count, batches))
    return found


def most(counts: np.ndarray) -> list[tuple[int, int]]:
    """The classes with most of the votes [K], and how many these are."""
    order = np.argsort(-counts, kind="stable")[:SHOWN].tolist()
    return [(c, int(counts[c])) for c in order if counts[c]]
