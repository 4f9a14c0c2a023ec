"""What somebody watches of a sampling: the looks of a stopping rule, and noisy copies."""

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from rrcm.certification.sampling import voting
from rrcm.certification.sampling.batching import Job, Piece
from rrcm.certification.votes.counts import ABSTAIN, History, ImageVotes, Rule
from rrcm.certification.votes.records import Header
from rrcm.data.splits.shards import Split
from rrcm.inference.backend import Backend

Watch = Callable[[ImageVotes, float], None]  # the votes so far, and the radius certified by them


class Watched(Rule):
    """Does all as ``rule``, and first shows each look to ``watch``, whose error ends all."""

    def __init__(self, rule: Rule, watch: Watch) -> None:
        self.cfg, self.looks, self.claim = rule.cfg, rule.looks, rule.claim
        self.rule, self.watch = rule, watch

    def stop(self, votes: ImageVotes) -> str | None:
        """The decision of the rule."""
        self.watch(votes, self.claim.radius(votes, self.rule))
        return self.rule.stop(votes)

    def complement(self, history: History, alpha: float) -> float:
        """The bound of the rule."""
        return self.rule.complement(history, alpha)

    def settles(self, radius: float) -> bool:
        """As the rule."""
        return self.rule.settles(radius)

    def describe(self) -> str:
        """As the rule."""
        return self.rule.describe()


def copies(
    backend: Backend | None, header: Header, split: Split, first: dict[int, int]
) -> Iterator[tuple[int, np.ndarray, int]]:
    """The ``first`` copies of images, by their places in ``split``, as they are drawn for votes.

    Yields the place, pixels [C, H, W] and the class by ``backend``, ABSTAIN without one.
    """
    places = np.array([place for place, many in first.items() for _ in range(many)])
    noise, seen = voting.noise(header, split), list[tuple[Tensor, Tensor]]()
    if backend is None:
        draws = torch.tensor([draw for many in first.values() for draw in range(many)])
        pixels, images = (torch.from_numpy(a) for a in (split.pixels(places), split.idx[places]))
        seen.append((noise.noisy(pixels, images, draws), torch.full(images.shape, ABSTAIN)))
    else:
        count = voting.counter(
            backend,
            split,
            noise=noise,
            batch_size=header.batch,
            look=lambda noisy, _, scores: seen.append((noisy.cpu(), scores.argmax(1))),
        )
        count([Piece(Job(row=place, bounds=()), 0, 0, many) for place, many in first.items()])
    noisy, classes = (torch.cat(each) for each in zip(*seen, strict=True))
    yield from zip(
        places.tolist(), noisy.numpy(), classes.tolist(), strict=False
    )  # batches are full
