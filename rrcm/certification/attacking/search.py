"""An attack on a smoothed classifier: how near a picture is one that it answers wrongly.

A certified radius is a lower bound of the distance at which the answer changes; this is an upper
one. Pictures are found by PGD at each radius and by DDN (rrcm/training/shared/attacks.py), on noise
of their own, and `judging` decides which of them succeed.
"""

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rrcm.certification.attacking import expected, judging
from rrcm.certification.votes.records import Header, Row
from rrcm.core.errors import BackendError
from rrcm.core.ranges import COPIES, positive
from rrcm.data.splits.shards import Split
from rrcm.models.trained.base.classifier import Unconditional
from rrcm.training.engine.draws import Draws
from rrcm.training.shared.losses import log_probabilities

WAY = 2.5  # length of all steps of PGD together, in radii
LONGER = 3  # DDN takes so many times the steps: its distance shrinks by 5 % in each
WITHIN = 1 - 1e-6  # share of a radius that is used: rounding must not lead out of it
SPLIT = 4  # distances that are judged for each radius, evenly between it and the one before
CHOOSING = 64  # noisy copies that choose among pictures


@dataclass(frozen=True, kw_only=True, slots=True)
class Search:
    """How long to search: noisy copies in each step, steps, and restarts with other copies.

    The first restart follows the loss of the label, the others the probabilities of further classes
    that are likely: only a class with most of the votes is certified.
    """

    copies: int = 16
    steps: int = 20
    restarts: int = 3

    def __post_init__(self) -> None:
        positive(self, "copies", "steps", "restarts", most=COPIES)


def finder(network: nn.Module, search: Search, said: str = "") -> judging.Finder:
    """Finds the `pictures` of what `differentiable` returns; with another network's, say so."""

    def near(header: Header, radii: list[float], sigma: float) -> judging.Near:
        def found(x: Tensor, row: Row) -> Iterator[Tensor]:
            draw = Draws(header.seed, row.idx, purpose="attack")
            return pictures(network, x, row.label, sigma, radii, search, draw)

        return found

    asked = dataclasses.asdict(search) | ({said: "with"} if said else {})
    what = f"PGD and DDN on {search.copies} noisy copies, {search.steps} steps"
    what += f", {search.restarts} restarts{said and f', {said}'}"
    return judging.Finder(said=what, asked=asked, near=near, ordered=True)


def differentiable(smoothed: Any, split: Split) -> nn.Module:
    """The network of a `Smoothed`, (pixels, sigma) to scores, to attack it on ``split``.

    Raises:
        BackendError: It has no gradients, or its noise does not take any pixels.
        DataError: A label is unknown.
    """
    judging.require(smoothed, split)
    function, has_gradients = expected.scores_of(smoothed)
    if not has_gradients:
        raise BackendError(
            "attack: this classifier has no gradients to follow, as an ONNX file has none; search "
            "without by --foolbox HopSkipJumpAttack, follow those of another network by "
            "--surrogate, or give --candidates"
        )
    return Unconditional(function)


def pictures(
    network: nn.Module,
    x: Tensor,
    label: int,
    sigma: float,
    radii: list[float],
    search: Search,
    draw: Draws,
) -> Iterator[Tensor]:
    """What is most likely misclassified of what is found near ``x`` [C, H, W].

    One picture for each distance, of ``radii`` and between them, from the farthest down to 0.
    """
    from rrcm.training.shared import attacks  # with timm, which takes seconds to import

    def noise(*copies: int) -> Tensor:
        return sigma * draw.normal(x.expand(math.prod(copies), *x.shape)).unflatten(0, copies)

    level, farthest = torch.tensor(sigma, device=x.device), max(radii)
    how: dict[str, Any] = {"sigma": level, "draw": draw}
    copies = noise(search.copies if sigma else 1, search.restarts)
    choosing = noise(CHOOSING if sigma else 1, 1)

    def pgd(aims: Tensor, radius: float) -> Tensor:
        steps, step, many = search.steps, WAY * radius / search.steps, x.expand(len(aims), *x.shape)
        own = copies[:, : len(aims)]
        path = attacks.pgd(network, many, aims, own, radius=radius, steps=steps, step=step, **how)
        return path[-1]

    y = torch.full((search.restarts,), label, device=x.device)
    odds = _odds(network, pgd(y[:1], farthest), choosing, level, label)
    targets = odds[0].topk(min(search.restarts, odds.shape[1]) - 1).indices
    aims = -nn.functional.one_hot(targets, odds.shape[1]).to(x)  # ascent of log p(target)
    aims = torch.cat([nn.functional.one_hot(y[:1], odds.shape[1]).to(x), aims])
    steps, many = LONGER * search.steps, x.expand(search.restarts, *x.shape)
    near = attacks.ddn(network, many, y, copies, radius=farthest, steps=steps, **how) - x
    length = near.flatten(1).norm(dim=1)
    near, length = near[length > 0], length[length > 0]
    radii = sorted({0.0, *radii})
    places = np.arange(SPLIT * len(radii) - SPLIT + 1) / SPLIT
    best = x
    for distance in np.interp(places, range(len(radii)), radii)[::-1].tolist():
        pool = [best[None], x + near * (distance / length)[:, None, None, None]]
        if distance in radii:
            pool.append(pgd(aims, distance))
        points = torch.cat(pool).clamp(0, 1)
        points = attacks.project(points, x.expand_as(points), radius=distance * WITHIN)
        best = points[_odds(network, points, choosing, level, label).amax(dim=1).argmax()]
        yield best


@torch.no_grad()
def _odds(network: nn.Module, points: Tensor, noise: Tensor, sigma: Tensor, label: int) -> Tensor:
    """Votes for classes other than ``label`` [P, K]; probabilities decide between equals."""
    p = log_probabilities(network, points + noise, sigma).exp()  # [m, P, K]
    odds = (nn.functional.one_hot(p.argmax(dim=2), p.shape[2]) + p / len(p)).mean(dim=0)
    odds[:, label] = -1
    return odds
