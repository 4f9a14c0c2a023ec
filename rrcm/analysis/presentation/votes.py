"""What pages show of votes: the first noisy copies, and the classes with most votes."""

from collections.abc import Callable, Sequence

import numpy as np
from torch import Tensor

from rrcm.certification.sampling import voting
from rrcm.certification.sampling.batching import Job, Piece
from rrcm.certification.votes.records import Header
from rrcm.data.splits.shards import Split
from rrcm.inference.backend import Backend

COPIES = 8  # the first draws
SHOWN = 5  # classes whose votes are shown


def copies(
    header: Header,
    split: Split,
    drawn: Sequence[tuple[int, int]],
    *,
    backend: Backend,
    encoded: Callable[[np.ndarray], str],
) -> list[list[tuple[str, int]]]:
    """For places in ``split``, and how often they were ``drawn``, the first copies and classes.

    By the code that counted the votes.
    """
    found: list[list[tuple[str, int]]] = [[] for _ in drawn]
    pieces = [Piece(Job(row=place, bounds=()), 0, 0, min(COPIES, many)) for place, many in drawn]
    owners = iter(
        [own for own, piece in zip(found, pieces, strict=True) for _ in range(piece.size)]
    )

    def look(noisy: Tensor, _: Tensor | None, scores: Tensor) -> None:
        for x, c, own in zip(noisy.cpu().numpy(), scores.argmax(1).tolist(), owners, strict=False):
            own.append((encoded(x), c))

    noise, size = voting.noise(header, split), header.batch
    voting.counter(backend, split, noise=noise, batch_size=size, look=look)(pieces)
    return found


def most(counts: np.ndarray) -> list[tuple[int, int]]:
    """The classes with most of the votes [K], and how many these are."""
    order = np.argsort(-counts, kind="stable")[:SHOWN].tolist()
    return [(c, int(counts[c])) for c in order if counts[c]]
