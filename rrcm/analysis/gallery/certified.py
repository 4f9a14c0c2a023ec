"""A page of certified pictures: votes, answers, radii, and noisy copies that were drawn."""

import dataclasses
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from rrcm.analysis.entries import Entry
from rrcm.analysis.gallery import pages
from rrcm.analysis.gallery.pages import Card, Cards, by
from rrcm.certification.certify import DOWN, printed
from rrcm.certification.sampling import drawing, watched
from rrcm.certification.votes.counts import ABSTAIN, ImageVotes, Rule
from rrcm.certification.votes.records import Header, Row
from rrcm.core import progress, registry
from rrcm.core.errors import CertificateError, printable
from rrcm.core.labels import NO_CLASS, UNKNOWN
from rrcm.data.splits.shards import Split
from rrcm.inference.backend import Backend

COPIES = 8  # the first draws, of each picture of the first page
SHOWN = 5  # classes whose votes are shown
PLACES = 4  # decimals of a radius
TENFOLD = 10  # so much more and less n and alpha radii are estimated at


def write(
    path: Path, entry: Entry, split: Split, *, backend: Backend | None, files: dict[int, str]
) -> list[Path]:
    """Write the page of ``entry``, and further ones as by `pages.write`; return their paths.

    Args:
        path: The first page.
        entry: With its votes, and the columns of `certify.certify` in its table.
        split: Has all its images.
        backend: As of `cards`.
        files: Names of images by their index; others are called by that.
    """
    order, kinds = informative(entry.table), entry.table.apply(verdict, axis=1)
    card = cards(entry, split, order, backend=backend, files=files)
    shown = {"counts": kinds.value_counts(), "classified": backend is not None}
    return pages.write(path, "certified", [entry], order, card, **shown)


def informative(table: pd.DataFrame) -> list[int]:
    """Row numbers of a table of certificates, the most informative first, as the page says."""
    table = table.reset_index(drop=True)
    verdicts = table.apply(verdict, axis=1)
    wrong, none = table[verdicts == "wrong"], table[verdicts == "abstained"]
    others = table[~verdicts.isin(["wrong", "abstained"])]
    far, near = by(others, "radius", ascending=False), by(others, "radius")
    ranked = by(wrong, "radius", ascending=False), by(none, "p_A", ascending=False), near, far
    return pages.in_turn(*ranked)


def verdict(line: Any) -> str:
    """Of a line of a table of certificates."""
    if line["predict"] == ABSTAIN:
        return "abstained"
    return "right" if line["correct"] else "wrong" if line["label"] != UNKNOWN else "answered"


def cards(
    entry: Entry, split: Split, order: list[int], *, backend: Backend | None, files: dict[int, str]
) -> Cards:
    """Cards of rows of ``entry``, whose page has them in ``order``.

    Those of the first page have the first `COPIES` noisy copies that were drawn, with the class of
    each by the ``backend`` that voted; without it they are shown without their classes.
    """
    assert entry.votes is not None
    (header, rows), lines = entry.votes, entry.table.to_dict("records")
    place = {idx: place for place, idx in enumerate(split.idx.tolist())}
    first = [(rows[i], place[rows[i].idx]) for i in order[: pages.MOST]]
    drawn, radii = _copies(header, split, first, backend), _estimated(entry)

    def card(i: int, on_first: bool) -> Card:
        idx = rows[i].idx
        return {
            "idx": idx,
            "name": printable(files.get(idx, f"image {idx}")),
            "label": named(header, rows[i].label),
            "radius": lines[i]["radius"],
            "shots": [["", pages.encoded(split.pixels(place[idx]), first=on_first)]],
            "said": [answer(rows[i], lines[i], header)],
            "copies": drawn[idx] if on_first else [],
            "radii": radii(rows[i]),
        }

    return card


def answer(row: Row, line: dict[Any, Any], header: Header) -> dict[str, Any]:
    """What a classifier says of an image, as a part of its card."""
    votes = row.votes(len(header.classes))
    last = votes.counts[-1] if votes.draws else votes.selection
    first = sorted(range(len(last)), key=lambda c: -last[c])[:SHOWN]
    drawn = f"{int(last.sum()):,} draws"
    if votes.draws:
        drawn += f" bound the probability of the class, at least {places(line['p_A'])}"
    clean = named(header, line.get("clean", ABSTAIN))
    return {
        "answer": named(header, line["predict"]),
        "verdict": verdict(line),
        "radius": "" if line["predict"] == ABSTAIN else places(line["radius"]),
        "draws": int(last.sum()),
        "votes": [[named(header, c), int(last[c])] for c in first if last[c]],
        "more": [f"without noise {clean}"] * bool(clean)
        + [f"{drawn}; the rule stopped: {printable(row.stop)}"],
    }


def named(header: Header, c: int) -> str:
    """The name of a class; nothing for an abstention, or an unknown label."""
    return printable(header.classes[c]) if c >= 0 else ""


def places(bound: float, direction: str = DOWN) -> str:
    """A bound as a page shows it."""
    return printed(bound, direction, places=PLACES)


def _estimated(entry: Entry) -> Callable[[Row], list[list[str]]]:
    """A function of the votes of an image: a table of its radii at other n and alpha.

    If as large a share of n draws votes for c_A, and for the runner-up, all drawn and judged once,
    as by the rule ``none``. An estimate, and no certificate; rounded down.
    """
    assert entry.votes is not None
    header, certificate = entry.votes[0], registry.load("certificates", entry.certificate)
    alpha = entry.alpha or header.alpha
    ns = sorted({max(1, header.n // TENFOLD), header.n, header.n * TENFOLD})
    alphas = sorted({alpha / TENFOLD, alpha, min(0.5, alpha * TENFOLD)})

    @cache
    def rule(n: int, alpha: float) -> tuple[Rule, float]:
        asked = dataclasses.replace(header, n=n, alpha=alpha, stop="none", stopping={})
        return asked.rule(), asked.alpha_left(alpha)

    def radius(votes: ImageVotes, alpha: float) -> str:
        try:
            judge, left = rule(votes.draws[-1], alpha)
        except CertificateError:  # alpha is spent on the noise
            return "abstains"
        got = certificate.certify(votes, judge, sigma=header.sigma, alpha=left)
        return "abstains" if got.label == ABSTAIN else places(got.radius)

    @cache
    def radii(drawn: int, hits: int, other: int) -> list[list[str]]:
        table = [["n", *(f"α = {alpha}" for alpha in alphas)]]
        for n in ns:
            k = hits * n // drawn
            counts = np.array([[k, min(n - k, -(-other * n // drawn))]])
            votes = ImageVotes(idx=0, selection=np.array([1, 0]), draws=(n,), counts=counts)
            table.append([f"{n:,}", *(radius(votes, alpha) for alpha in alphas)])
        return table

    def of(row: Row) -> list[list[str]]:
        votes = row.votes(len(header.classes))
        if not votes.draws or header.classes[votes.c_A] == NO_CLASS:
            return []
        return radii(*votes.history(votes.c_A)[-1], int(votes.runner_up[-1]))

    return of


def _copies(
    header: Header, split: Split, images: Sequence[tuple[Row, int]], backend: Backend | None
) -> dict[int, list[tuple[str, str]]]:
    """The first copies that were drawn of rows at places of ``split``, by index: pixels and class.

    By the code that counted the votes. The class is empty without ``backend``.
    """
    found: dict[int, list[tuple[str, str]]] = {row.idx: [] for row, _ in images}
    first = [
        (place, min(COPIES, drawn))
        for row, place in images
        if (drawn := sum(row.n0.values()) + (row.looks[-1][0] if row.looks else 0))
    ]

    def draw(some: list[tuple[int, int]]) -> int:
        for place, noisy, c in watched.copies(backend, header, split, dict(some)):
            shot = pages.encoded(noisy, first=True, sampled=True)
            found[int(split.idx[place])].append((shot, named(header, c)))
        return len(some)

    each = max(1, header.batch // COPIES)  # images of a batch
    tasks = [first[start : start + each] for start in range(0, len(first), each)]
    with ThreadPoolExecutor(drawing.workers()) as pool:
        with progress.bar(len(first), 0, "page", " images", delay=2.0) as bar:
            for done in pool.map(draw, tasks):
                bar.update(done)
    return found
