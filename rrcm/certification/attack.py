"""An attack on a smoothed classifier: how near a picture is one that it answers wrongly.

A certified radius is a lower bound of the distance at which the answer changes; this is an upper
one. Pictures are found by PGD at each radius and by DDN (rrcm/training/shared/attacks.py), on noise
of their own. Whether one succeeds is decided by the smoothed classifier with fresh noise: it
certifies another class than the label. Abstention is no success.

Guarantee: the exact smoothed classifier has a wrong answer at the distance found, with probability
at least ``1 - alpha`` over the noise that judges, whatever the network and the search. The pictures
do not depend on that noise, and are judged from the farthest to the nearest until one fails: the
first that is not wrong passes with probability at most ``alpha``, and else ends it.
"""

import dataclasses
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rrcm.certification.answers import Answers
from rrcm.certification.certify import DIGITS, UP, printed
from rrcm.certification.sampling import store
from rrcm.certification.votes import records
from rrcm.certification.votes.counts import ABSTAIN
from rrcm.certification.votes.records import Row
from rrcm.config.defaults import DRAWS
from rrcm.core import progress
from rrcm.core.errors import BackendError, DataError, VotesError
from rrcm.core.files import read_json, require_place, write_json
from rrcm.core.labels import UNKNOWN
from rrcm.core.ranges import COPIES, positive
from rrcm.data.splits.shards import Split
from rrcm.models.trained import purified
from rrcm.models.trained.base.classifier import Unconditional
from rrcm.training.engine.draws import Draws
from rrcm.training.shared import attacks
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


def attack(
    smoothed: Any,
    network: nn.Module,
    split: Split,
    answers: Answers,
    *,
    radii: list[float],
    search: Search,
    path: Path | None,
    shown: bool,
) -> Answers:
    """Attack a `Smoothed` on the images of ``answers``, which are in ``split``, on one thread.

    ``network`` is what `differentiable` returns for it. Returns the answers with what is
    ``attacked``, which is read from ``path`` and kept there; a picture that succeeds within its
    certified radius is kept as ``<path>-<idx>.npy``.

    Raises:
        VotesError: ``path`` is of other images or settings.
    """
    header = answers.header
    some = [] if len(answers) == header.images else [row.idx for row in answers.rows]
    of = json.dumps([radii, dataclasses.asdict(search), records.fields(header), *some])
    kept: dict[str, Any] = {"of": of, "attacked": [], "attacked_to": []}
    if path is not None and path.exists():
        kept = read_json(path, VotesError)
    elif path is not None:
        require_place(path)
    if kept["of"] != of:
        raise VotesError(f"{path}: an attack on other images or with other settings; remove it")
    draws = dataclasses.replace(
        smoothed.draws,
        n=header.n,
        n0=max(header.n0, header.n // 10),  # near the boundary, few draws choose the wrong class
        alpha=header.alpha,
        stop=DRAWS.stop,
        stopping={"radii": [0.0]},
        certificate=DRAWS.certificate,
    )
    judge = dataclasses.replace(smoothed, draws=draws)
    seed = int.from_bytes(sha256(f"{header.seed}/judge".encode()).digest()[:8], "big")
    place = {idx: place for place, idx in enumerate(split.idx.tolist())}
    done, delay = len(kept["attacked"]), 0.0 if shown else math.inf
    with progress.bar(len(answers), done, "attack", " images", delay=delay) as bar:
        for answer, row in list(zip(answers, answers.rows, strict=True))[done:]:
            torch.set_num_threads(1)  # sums are rounded alike on every machine and in every try
            x = torch.from_numpy(split.pixels(place[row.idx])).to(smoothed.backend.device)
            draw = Draws(header.seed, row.idx, purpose="attack")
            nearest, distance, to = x, math.inf, ABSTAIN
            for point in pictures(network, x, row.label, header.sigma, radii, search, draw):
                said = judge.answer(point.cpu().numpy(), idx=row.idx, seed=seed)
                if said.abstained or said.label == row.label:
                    break
                apart = float((point.double() - x.double()).norm())
                distance = float(printed(apart * (1 + 1e-12), UP, places=DIGITS))
                nearest, to = point, said.label
            if path and answer.label == row.label and answer.robust_at(distance):
                np.save(f"{path}-{row.idx}.npy", nearest.cpu().numpy())
            kept["attacked"].append(None if to == ABSTAIN else distance)
            kept["attacked_to"].append(to)
            if path is not None:
                write_json(path, kept)
            bar.update()
    found = {name: kept[name] for name in ("attacked", "attacked_to")}
    found["attacked"] = [math.nan if apart is None else apart for apart in found["attacked"]]
    return dataclasses.replace(answers, attacked=found)


def together(answers: Answers, split: Split) -> tuple[Answers, Split]:
    """Answers and the images they are of, both with the labels that either has.

    Raises:
        DataError: They are of other images, or a label of one is another one of the other.
    """
    then = {row.idx: row.label for row in answers.all_rows}
    theirs = np.array([then.get(idx, UNKNOWN) for idx in split.idx.tolist()])
    labels = np.where(split.labels == UNKNOWN, theirs, split.labels)
    header, split = answers.header, dataclasses.replace(split, labels=labels)
    differ = (theirs != UNKNOWN) & (theirs != labels)
    if differ.any() or not store.are_of_these(header, answers.all_rows, split):
        part = "; give all images of the slice's answers" * (len(answers) < len(then))
        raise DataError(f"attack: the answers are of other images or labels{part}")
    if (theirs == labels).all():
        return answers, split
    known = dict(zip(split.idx.tolist(), labels.tolist(), strict=True))
    header = dataclasses.replace(header, pixels=store.identity(split, header.subset))

    def labelled(rows: list[Row]) -> list[Row]:
        return [dataclasses.replace(row, label=known[row.idx]) for row in rows]

    rows, all_rows = labelled(answers.rows), labelled(answers.all_rows)
    return dataclasses.replace(answers, header=header, rows=rows, all_rows=all_rows), split


def differentiable(smoothed: Any, split: Split) -> nn.Module:
    """The network of a `Smoothed`, (pixels, sigma) to scores, to attack it on ``split``.

    Raises:
        BackendError: It has no gradients, or its noise does not take any pixels.
        DataError: A label is unknown.
    """
    if (split.labels == UNKNOWN).any():
        raise DataError("attack: the label of each image is needed")
    if smoothed.draws.noise != DRAWS.noise:
        raise BackendError(f"attack: noise {smoothed.draws.noise} is for pixels on a grid alone")
    backend, function = smoothed.backend, smoothed.backend.function
    if smoothed.trained is not None and not backend.normals:
        loaded: Any = purified.load(smoothed.trained)[0]
        function = loaded.fix(backend.sigma).to(backend.device, torch.float32)
    grey = torch.full((1, *smoothed.shape), 0.5, device=backend.device, requires_grad=True)
    if function is None or not function(grey).requires_grad:
        raise BackendError(
            "attack: this classifier has no gradients to follow, as an ONNX file has none; attack "
            "a PyTorch network, a timm network or a run of a checkout"
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

    def noise(*copies: int) -> Tensor:
        return sigma * draw.normal(x.expand(math.prod(copies), *x.shape)).unflatten(0, copies)

    level, farthest = torch.tensor(sigma, device=x.device), max(radii)
    how: dict[str, Any] = {"sigma": level, "draw": draw}
    copies, choosing = noise(search.copies, search.restarts), noise(CHOOSING, 1)

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
