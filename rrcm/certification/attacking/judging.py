"""Judgement of pictures that any search has found: which of them are answered wrongly, how near?

A picture succeeds if the smoothed classifier certifies another class than the label for it, with
fresh noise. Abstention is no success.

Guarantee: the exact smoothed classifier has a wrong answer at the distance found, with probability
at least ``1 - alpha`` over the noise that judges, whatever the network and the search. The pictures
do not depend on that noise, and are judged from the farthest to the nearest until one fails: the
first that is not wrong passes with probability at most ``alpha``, and else ends it.
"""

import dataclasses
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rrcm.certification.answers import Answer, Answers
from rrcm.certification.attacking import expected
from rrcm.certification.certify import DIGITS, UP, printed
from rrcm.certification.sampling import store
from rrcm.certification.votes import records
from rrcm.certification.votes.counts import ABSTAIN
from rrcm.certification.votes.records import Header, Row
from rrcm.config.defaults import DRAWS
from rrcm.core import progress
from rrcm.core.errors import BackendError, DataError, VotesError
from rrcm.core.files import read_json, require_place, write_json
from rrcm.core.labels import UNKNOWN, named
from rrcm.data.splits.shards import Split
from rrcm.training.engine.draws import Draws

MAJORITY = 0.5
SHARE = 10  # of the draws that may judge a picture, one in so many sorts candidates before
Pools = Mapping[int, Sequence[np.ndarray]]  # candidates of an image, by its idx
Near = Callable[[Tensor, Row], Iterable[Tensor]]  # the pictures for an image [C, H, W] of a row


@dataclass(frozen=True, kw_only=True, slots=True)
class Finder:
    """What finds pictures, in words, and ``asked`` in numbers.

    ``near`` finds them for the votes of a header, at radii, with noise of a standard deviation, 0
    for the classifier without noise. They are ``ordered`` if it gives them from the farthest to the
    nearest. Another ``salt`` is other noise of the judgement.
    """

    said: str = ""
    asked: dict[str, Any]
    near: Callable[[Header, list[float], float], Near]
    ordered: bool = False
    salt: str = ""


def require(smoothed: Any, split: Split) -> None:
    """Refuse images or noise for which success has no meaning.

    Raises:
        BackendError: The noise of a `Smoothed` does not take any pixels.
        DataError: A label is unknown.
    """
    if (unknown := split.idx[split.labels == UNKNOWN]).size:
        raise DataError(f"labels: image {unknown[0]} has none, which an attack needs of each")
    if smoothed.draws.noise != DRAWS.noise:
        raise BackendError(f"attack: noise {smoothed.draws.noise} is for pixels on a grid alone")


def judged(
    smoothed: Any,
    split: Split,
    answers: Answers,
    finder: Finder,
    *,
    radii: list[float],
    path: Path | None,
    shown: bool,
) -> Answers:
    """Judge what is found near the images of ``answers``, which are in ``split``, on one thread.

    Returns the answers with what is ``attacked``, which is read from ``path`` and kept there, and
    beside it each `picture` that was found; from the first of these that is gone on, the search is
    repeated. Unless they are in order, pictures are `sifted`, and an image that the answers have
    wrong is its own only one.

    Raises:
        VotesError: ``path`` is of other images or settings.
    """
    header = answers.header
    asked, salt, near = [radii, finder.asked], finder.salt, finder.near(header, radii, header.sigma)

    def find(x: Tensor, row: Row, answer: Answer) -> Iterable[Tensor]:
        if finder.ordered:
            return near(x, row)
        wrong = answer.label not in (row.label, ABSTAIN)
        return [x] if wrong else sifted(smoothed, header, x, row, near(x, row))

    some = [] if len(answers) == header.images else [row.idx for row in answers.rows]
    of = json.dumps([*asked, records.fields(header), *some])
    kept: dict[str, Any] = {"of": of, "attacked": [], "attacked_to": []}
    if path is not None and path.exists():
        kept = read_json(path, VotesError)
    elif path is not None:
        require_place(path)
    if kept["of"] != of:
        raise VotesError(
            f"{path}: an attack of other answers, images or settings; give answers= that it was "
            "of, or remove it"
        )
    known = zip(kept["attacked"], answers.rows, strict=False)
    gone = (
        done
        for done, (apart, row) in enumerate(known)
        if path and apart is not None and not picture(path, row.idx).exists()
    )
    done, delay = next(gone, len(kept["attacked"])), 0.0 if shown else math.inf
    kept |= {name: kept[name][:done] for name in ("attacked", "attacked_to")}
    with progress.bar(len(answers), done, "attack", " images", delay=delay) as bar:
        for answer, row in list(zip(answers, answers.rows, strict=True))[done:]:
            torch.set_num_threads(1)  # sums are rounded alike on every machine and in every try
            x = _pixels(smoothed, split, row)
            nearest, distance, to = x, math.inf, ABSTAIN
            for point in find(x, row, answer):
                said = judge(smoothed, header, point.cpu().numpy(), idx=row.idx, salt=salt)
                if said.abstained or said.label == row.label:
                    break
                apart = float((point.double() - x.double()).norm())
                distance = float(printed(apart * (1 + 1e-12), UP, places=DIGITS))
                nearest, to = point, said.label
            if path and to != ABSTAIN:
                np.save(picture(path, row.idx), nearest.cpu().numpy())
            kept["attacked"].append(None if to == ABSTAIN else distance)
            kept["attacked_to"].append(to)
            if path is not None:
                write_json(path, kept)
            bar.update()
    found = {name: kept[name] for name in ("attacked", "attacked_to")}
    found["attacked"] = [math.nan if apart is None else apart for apart in found["attacked"]]
    return dataclasses.replace(answers, attacked=found)


def picture(path: Path, idx: int) -> Path:
    """The file of the nearest success for an image, of an attack that is kept in ``path``."""
    return path.with_name(f"{path.name}-{idx}.npy")


def judge(smoothed: Any, header: Header, pixels: np.ndarray, *, idx: int, salt: str) -> Answer:
    """The answer by which a picture near the image ``idx`` of ``header`` is judged.

    Another ``salt`` is other noise.
    """
    draws = dataclasses.replace(
        smoothed.draws,
        n=header.n,
        n0=max(header.n0, header.n // SHARE),  # near the boundary, few choose the wrong class
        alpha=header.alpha,
        stop=DRAWS.stop,
        stopping={"radii": [0.0]},
        certificate=DRAWS.certificate,
    )
    seed = int.from_bytes(sha256(f"{header.seed}/judge{salt}".encode()).digest()[:8], "big")
    torch.set_num_threads(1)  # sums are rounded alike on every machine and in every try
    return dataclasses.replace(smoothed, draws=draws).answer(pixels, idx=idx, seed=seed)


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


def candidates(pools: Pools, said: str = "") -> Finder:
    """Finds the pictures of ``pools``, float32 [C, H, W] in [0, 1].

    The noise that judges depends on them: those that were changed after a judgement get fresh
    noise.
    """
    digest, many = of(pools), sum(map(len, pools.values()))
    asked = {f"candidates {digest[:8]}": many}

    def given(x: Tensor, row: Row) -> list[Tensor]:
        return [torch.from_numpy(picture).to(x.device) for picture in pools.get(row.idx, ())]

    return Finder(said=f"{many} {said}", asked=asked, near=lambda *_: given, salt=f"/{digest}")


def sifted(
    smoothed: Any, header: Header, x: Tensor, row: Row, pool: Iterable[Tensor]
) -> list[Tensor]:
    """Those of ``pool`` that no nearer one beats, from the farthest to the nearest.

    That is on other noise than that which judges: by it the classifier answers them wrongly, and
    the farther one is, the more votes for a wrong class it has. So a picture that fails hides no
    better one behind it.
    """
    pool = sorted(pool, key=lambda point: float((point.double() - x.double()).norm()))
    digest = of({row.idx: [point.cpu().numpy() for point in pool]})
    draw = Draws(header.seed, row.idx, purpose=f"candidates {digest}")
    best, kept = MAJORITY, list[Tensor]()
    shares = _shares(smoothed, pool, row.label, header.n, draw)
    for point, share in zip(pool, shares, strict=True):
        if share > best:
            kept, best = [point, *kept], share
    return kept


def unsmoothed(smoothed: Any, split: Split, rows: list[Row], near: Near) -> list[float]:
    """How near is a picture, of ``near`` or the image, that is wrong without noise, [N]; or NaN."""
    distances = []
    for row in rows:
        x = _pixels(smoothed, split, row)
        pool = torch.stack([x, *near(x, row)])
        wrong = expected.plain(smoothed.backend, pool).argmax(dim=1) != row.label
        apart = (pool.double() - x.double()).flatten(1).norm(dim=1)[wrong]
        distances.append(min(apart.tolist(), default=math.nan))
    return distances


def of(pools: Pools) -> str:
    """A digest of candidates."""
    each = {i: [sha256(one.tobytes()).hexdigest() for one in pools[i]] for i in sorted(pools)}
    return sha256(repr([*each.items()]).encode()).hexdigest()


def _pixels(smoothed: Any, split: Split, row: Row) -> Tensor:
    (x,) = split.pixels(split.idx == row.idx)
    return torch.from_numpy(x).to(smoothed.backend.device)


@torch.no_grad()
def _shares(smoothed: Any, pool: list[Tensor], label: int, n: int, draw: Draws) -> list[float]:
    """The share of the likeliest class but ``label``, for each picture, all with the same noise."""
    backend, size = smoothed.backend, smoothed.draws.batch_size
    votes = torch.zeros(len(pool), len(backend.classes), device=backend.device)
    rounds = -(-max(1, n // SHARE) // size)
    for _ in range(rounds if pool else 0):
        noise = backend.sigma * draw.normal(pool[0].expand(size, *pool[0].shape))
        z = draw.normal(noise.new_empty(size, *backend.normals)) if backend.normals else None
        for place, point in enumerate(pool):
            best = backend.scores(point + noise, z).argmax(dim=1)
            votes[place] += nn.functional.one_hot(best, votes.shape[1]).sum(dim=0)
    shares = votes[:, : len(named(backend.classes))] / (rounds * size)
    shares[:, label] = 0
    return shares.amax(dim=1).tolist()
