"""Draws some kept votes again: they are those of the classifier that is here, or not reused.

A network is told from another by its tensors and operations. A number in its Python, as the
confidence at which it ends early, is in neither, and may decide for few pictures.
"""

from collections.abc import Iterable

import numpy as np

from rrcm.certification.sampling import voting
from rrcm.certification.sampling.batching import Job, Piece
from rrcm.certification.votes.records import Header, Row
from rrcm.core.errors import VotesError
from rrcm.data.splits.shards import Split
from rrcm.inference.backend import Backend

KIND = "foreign/module"  # other classifiers are known by their file's bytes
DRAWS = 200  # at least, of whole selections of n0
ROUNDED = 0.01  # of these, which may go to another class where two scores nearly tie


def require_same(
    backend: Backend, header: Header, split: Split, rows: Iterable[Row], *, where: str
) -> None:
    """Refuse ``rows`` of ``header`` if the PyTorch network ``backend`` has other votes.

    Selections are drawn again, first of images whose winner has fewest votes. A network that is
    another for a share q of the draws of these passes with a probability of (1 - q)^200, about, or
    where that moves no more votes than rounding.

    Raises:
        VotesError: More than `ROUNDED` of their draws go to other classes; ``where`` the votes are.
    """
    drawn = sorted((row for row in rows if row.n0), key=lambda row: max(row.n0.values()))
    if header.backend != KIND or not drawn:
        return
    some = drawn[: -(-DRAWS // header.n0)]
    places = {idx: place for place, idx in enumerate(split.idx.tolist())}
    count = voting.counter(
        backend, split, noise=voting.noise(header, split), batch_size=header.batch
    )
    again = count([Piece(Job(row=places[row.idx], bounds=()), 0, 0, header.n0) for row in some])
    kept = [row.votes(len(header.classes)).selection for row in some]
    moved = [int(np.abs(now - then).sum()) // 2 for now, then in zip(again, kept, strict=True)]
    if sum(moved) > max(1, ROUNDED * header.n0 * len(some)):
        row = some[int(np.argmax(moved))]
        raise VotesError(
            f"{where}: votes of another classifier: drawn again, {max(moved)} of the first "
            f"{header.n0} votes of image {row.idx} go to other classes; give another file"
        )
