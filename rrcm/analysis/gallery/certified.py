"""A page of certified pictures: votes, answers, radii, and noisy copies that were drawn."""

import dataclasses
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from rrcm.analysis.entries import Entry
from rrcm.analysis.gallery import pages
from rrcm.analysis.gallery.pages import Card, Cards
from rrcm.analysis.presentation.votes import copies, most
from rrcm.certification.certify import DOWN, printed
from rrcm.certification.votes.counts import ABSTAIN, ImageVotes
from rrcm.certification.votes.records import Header, Row
from rrcm.core.errors import CertificateError, printable
from rrcm.core.labels import NO_CLASS, UNKNOWN
from rrcm.data.splits.shards import Split
from rrcm.inference.backend import Backend

PLACES = 4  # decimals of a radius
TENFOLD = 10  # so much more and less n and alpha radii are estimated at


def write(
    path: Path, entry: Entry, split: Split, *, backend: Backend | None, files: dict[int, str]
) -> list[Path]:
    """Write the page of ``entry``, and further ones as by `pages.write`; return their paths.

    The entry has its votes, and the columns of `certify.certify` in its table; ``split`` has all
    its images, and ``files`` names of some by their index. For ``backend`` see `cards`.
    """
    order, counts = informative(entry.table), entry.table.apply(verdict, axis=1).value_counts()
    card = cards(entry, split, order, backend=backend, files=files)
    return pages.write(path, "certified", [entry], order, card, counts=counts)


def informative(table: pd.DataFrame) -> list[int]:
    """Row numbers of a table of certificates, the most informative first, as the page says."""
    table = table.reset_index(drop=True)
    kinds = table.apply(verdict, axis=1).replace("answered", "right")
    near, far = ("right", "radius"), ("right", "-radius")
    return pages.in_turn(table, kinds, ("wrong", "-radius"), ("abstained", "-p_A"), near, far)


def verdict(line: Any) -> str:
    """Of a line of a table of certificates."""
    if line["predict"] == ABSTAIN:
        return "abstained"
    return "right" if line["correct"] else "wrong" if line["label"] != UNKNOWN else "answered"


def cards(
    entry: Entry, split: Split, order: list[int], *, backend: Backend | None, files: dict[int, str]
) -> Cards:
    """Cards of rows of ``entry``, whose page has them in ``order``.

    Those of the first page have the first noisy `copies` that were drawn, with the class of each by
    the ``backend`` that voted; without it they are shown without their classes.
    """
    assert entry.votes is not None
    (header, rows), lines = entry.votes, entry.table.to_dict("records")
    radii = _estimated(entry)
    drawn = {
        rows[i].idx: sum(rows[i].n0.values()) + sum(n for n, _ in rows[i].looks[-1:])
        for i in order[: pages.MOST]
    }
    encoded = partial(pages.encoded, first=True, sampled=True)
    noisy = copies(header, split, drawn, backend=backend, encoded=encoded)

    def card(i: int, on_first: bool) -> Card:
        idx = rows[i].idx
        return {
            "idx": idx,
            "name": printable(files.get(idx, f"image {idx}")),
            "label": named(header, rows[i].label),
            "radius": lines[i]["radius"],
            "shots": [["", pages.encoded(*split.pixels(split.idx == idx), first=on_first)]],
            "said": [answer(rows[i], lines[i], header)],
            "copies": [(shot, named(header, c)) for shot, c in noisy.get(idx, [])],
            "radii": radii(rows[i]),
        }

    return card


def answer(row: Row, line: dict[Any, Any], header: Header) -> dict[str, Any]:
    """What a classifier says of an image, as a part of its card."""
    votes = row.votes(len(header.classes))
    last = votes.counts[-1] if votes.draws else votes.selection
    drawn = f"{last.sum():,} draws"
    if votes.draws and float(bound := places(line["p_A"])):
        drawn += f" bound the probability of the class, at least {bound}"
    clean, why = named(header, line.get("clean", ABSTAIN)), printable(row.stop)
    return {
        "answer": named(header, line["predict"]),
        "verdict": verdict(line),
        "radius": "" if line["predict"] == ABSTAIN else places(line["radius"]),
        "draws": int(last.sum()),
        "votes": [(named(header, c), votes) for c, votes in most(last)],
        "more": [clean and f"without noise {clean}", f"{drawn}; the rule stopped: {why}"],
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
    header, alpha = entry.votes[0], entry.alpha or entry.votes[0].alpha
    ns = sorted({max(1, header.n // TENFOLD), header.n, header.n * TENFOLD})
    alphas = sorted({alpha / TENFOLD, alpha, min(0.5, alpha * TENFOLD)})
    judged = dataclasses.replace(header, certificate=entry.certificate, stop="none", stopping={})

    @cache
    def radius(n: int, hits: int, other: int, alpha: float) -> str:
        counts = np.array([[hits, min(n - hits, other)]])
        votes = ImageVotes(idx=0, selection=np.array([1, 0]), draws=(n,), counts=counts)
        found = 0.0
        with suppress(CertificateError):  # alpha is spent on the noise
            rule = dataclasses.replace(judged, n=n, alpha=alpha).rule()
            found = rule.claim.radius(votes, rule)
        return places(found) if found else "abstains"

    def table(row: Row) -> list[list[str]]:
        votes = row.votes(len(header.classes))
        if not votes.draws or header.classes[votes.c_A] == NO_CLASS:
            return []
        (drawn, hits), other = votes.history(votes.c_A)[-1], int(votes.runner_up[-1])
        lines = [["n", *(f"α = {alpha}" for alpha in alphas)]]
        for n in ns:
            share = hits * n // drawn, -(-other * n // drawn)
            lines.append([f"{n:,}", *(radius(n, *share, alpha) for alpha in alphas)])
        return lines

    return table
