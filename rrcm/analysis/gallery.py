"""A page of certified pictures: their votes, answers and radii, and noisy copies that were drawn.

Each page is one file, which opens from a disk: it asks nothing of a network, and its
Content-Security-Policy lets nothing run but its own script. Names are data in it, and stay text.
"""

import base64
import dataclasses
import io
import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from hashlib import sha256
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jinja2
import numpy as np
import pandas as pd
import torch
from PIL import Image
from torch import Tensor

from rrcm.analysis import report
from rrcm.analysis.entries import Entry
from rrcm.certification.certify import DOWN, printed
from rrcm.certification.sampling import drawing, voting
from rrcm.certification.sampling.batching import Job, Piece
from rrcm.certification.votes.counts import ABSTAIN, ImageVotes, Rule
from rrcm.certification.votes.records import Header, Row
from rrcm.core import progress, registry
from rrcm.core.errors import CertificateError, printable
from rrcm.core.files import write_text
from rrcm.core.labels import NO_CLASS, UNKNOWN
from rrcm.data.splits.shards import Split
from rrcm.inference.backend import Backend

TEMPLATE = Path(__file__).with_name("gallery.html.jinja")
MOST = 200  # pictures of a page
COPIES = 8  # the first draws, of each picture of the first page
SHOWN = 5  # classes whose votes are shown
EXACT = 48 * 48  # pixels up to which the pictures of the first page are stored without loss
SIDE, FURTHER = 96, 64  # pixels of the longer side of others, on the first page and further ones
PLACES = 4  # decimals of a radius
TENFOLD = 10  # so much more and less n and alpha radii are estimated at

Radii = list[list[str]]  # for each n and alpha; empty where it would abstain
Estimate = Callable[[int, int, int], Radii]


def write(
    path: Path, entry: Entry, split: Split, *, backend: Backend | None, files: dict[int, str]
) -> list[Path]:
    """Write the page of ``entry``, and further ones beside it; return their paths.

    A page has at most `MOST` pictures, the most `informative` first. Those of the first page have
    the first `COPIES` noisy copies that were drawn of them, with the class of each.

    Args:
        path: The first page; the k-th is ``<stem>-<k>.html``.
        entry: With its votes, and the columns of `certify.certify` in its table.
        split: Has all its images.
        backend: The classifier that voted, which classifies the copies again; without it they are
            shown without their classes.
        files: Names of images by their index; others are called by that.
    """
    assert entry.votes is not None
    header, rows = entry.votes
    place = {idx: place for place, idx in enumerate(split.idx.tolist())}
    order, lines = informative(entry.table), entry.table.to_dict("records")
    pages = [order[first : first + MOST] for first in range(0, len(order), MOST)]
    paths = [path, *(path.with_name(f"{path.stem}-{k}.html") for k in range(2, len(pages) + 1))]
    drawn = _copies(header, split, [(rows[i], place[rows[i].idx]) for i in pages[0]], backend)
    ns, alphas, radii = estimated(entry, header)
    data: dict[str, Any] = {"n": ns, "alpha": [*map(str, alphas)]}
    data |= {"classes": [*map(printable, header.classes)], "classified": backend is not None}
    # The first page is written last, so that what it links to is there.
    for number, page in sorted(enumerate(pages), reverse=True):
        cards = []
        for i in page:
            idx, most = rows[i].idx, FURTHER if number else SIDE
            pixels = split.pixels(np.array([place[idx]]))[0]
            card = _card(rows[i], lines[i], header, radii)
            card["name"] = printable(files.get(idx, f"image {idx}"))
            card["image"] = _encoded(pixels, most=most, exact=number == 0)
            cards.append(card | {"copies": [] if number else drawn[idx]})
        write_text(paths[number], _page(entry, data | {"cards": cards}, number=number, paths=paths))
    return paths


def informative(table: pd.DataFrame) -> list[int]:
    """Row numbers of a table of certificates, the most informative first.

    In turn: the wrong answer with the largest radius, the abstention nearest to an answer, the
    other answer with the smallest radius, and that with the largest; then the next of each.
    """
    table = table.reset_index(drop=True)
    none = table["predict"] == ABSTAIN
    wrong = ~none & (table["label"] != UNKNOWN) & (table["correct"] == 0)
    turns = (
        (wrong, "radius", False),
        (none, "p_A", False),
        (~none & ~wrong, "radius", True),
        (~none & ~wrong, "radius", False),
    )
    ranked = [
        table[chosen].sort_values(column, ascending=ascending, kind="stable").index.tolist()
        for chosen, column, ascending in turns
    ]
    return [i for i in dict.fromkeys(chain(*zip_longest(*ranked))) if i is not None]


def estimated(entry: Entry, header: Header) -> tuple[list[int], list[float], Estimate]:
    """Numbers n, alphas, and a function of draws, votes for c_A and the runner-up: their radii.

    If as large a share of n draws votes alike, all drawn and judged once, as by the rule ``none``.
    An estimate, and no certificate; rounded down.
    """
    certificate, alpha = (
        registry.load("certificates", entry.certificate),
        entry.alpha or header.alpha,
    )
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
            return ""
        got = certificate.certify(votes, judge, sigma=header.sigma, alpha=left)
        return "" if got.label == ABSTAIN else printed(got.radius, DOWN, places=PLACES)

    @cache
    def radii(drawn: int, hits: int, other: int) -> Radii:
        table = []
        for n in ns:
            k = hits * n // drawn
            counts = np.array([[k, min(n - k, -(-other * n // drawn))]])
            votes = ImageVotes(idx=0, selection=np.array([1, 0]), draws=(n,), counts=counts)
            table.append([radius(votes, alpha) for alpha in alphas])
        return table

    return ns, alphas, radii


def _card(row: Row, line: dict[Any, Any], header: Header, radii: Estimate) -> dict[str, Any]:
    """What the page says of an image, as JSON; classes are numbers."""
    votes = row.votes(len(header.classes))
    last = votes.counts[-1] if votes.draws else votes.selection
    first = sorted(range(len(last)), key=lambda c: -last[c])[:SHOWN]
    verdict = "right" if line["correct"] else "wrong" if row.label != UNKNOWN else "answered"
    known = votes.draws and header.classes[votes.c_A] != NO_CLASS
    return {
        "idx": row.idx,
        "label": row.label,
        "answer": line["predict"],
        "radius": line["radius"],
        "shown": printed(line["radius"], DOWN, places=PLACES),
        "verdict": "abstained" if line["predict"] == ABSTAIN else verdict,
        "draws": int(last.sum()),
        "second": bool(votes.draws),
        "stop": printable(row.stop),
        "clean": line.get("clean", ABSTAIN),
        "votes": [[c, int(last[c])] for c in first if last[c]],
        "radii": radii(*votes.history(votes.c_A)[-1], int(votes.runner_up[-1])) if known else [],
    }


def _copies(
    header: Header, split: Split, images: Sequence[tuple[Row, int]], backend: Backend | None
) -> dict[int, list[tuple[str, int]]]:
    """The first copies that were drawn of rows at places of ``split``, by index: pixels and class.

    By the code that counted the votes. The class is -1 without ``backend``.
    """
    found: dict[int, list[tuple[str, int]]] = {row.idx: [] for row, _ in images}
    pieces = []
    for row, place in images:
        drawn = sum(row.n0.values()) + (row.looks[-1][0] if row.looks else 0)
        if drawn:
            pieces.append(Piece(Job(row=place, bounds=()), 0, 0, min(COPIES, drawn)))

    noise, size = voting.noise(header, split), header.batch

    def classify(some: list[Piece]) -> int:
        rows = [one.job.row for one in some for _ in range(one.size)]
        owners = iter(split.idx[rows].tolist())

        def look(noisy: Tensor, _: Tensor | None, scores: Tensor) -> None:
            classes = scores.argmax(1).tolist() if backend else [ABSTAIN] * len(noisy)
            for x, c, idx in zip(noisy.cpu().numpy(), classes, owners, strict=False):
                found[idx].append((_encoded(x, most=SIDE, exact=True, sampled=True), c))

        if backend:
            voting.counter(backend, split, noise=noise, batch_size=size, look=look)(some)
        else:
            x, draws = split.pixels(np.array(rows)), [d for one in some for d in range(one.size)]
            keys = torch.from_numpy(split.idx[rows]), torch.tensor(draws)
            look(noisy := noise.noisy(torch.from_numpy(x), *keys), None, noisy)
        return len(some)

    each = max(1, size // COPIES)  # pieces of a batch
    tasks = [pieces[first : first + each] for first in range(0, len(pieces), each)]
    with ThreadPoolExecutor(drawing.workers()) as pool:
        with progress.bar(len(pieces), 0, "page", " images", delay=2.0) as bar:
            for done in pool.map(classify, tasks):
                bar.update(done)
    return found


def _encoded(pixels: np.ndarray, *, most: int, exact: bool, sampled: bool = False) -> str:
    """Pixels [C, H, W], cut to [0, 1], as the base64 of a WebP picture of few bytes.

    ``exact``: small ones have no loss. Larger ones are scaled to at most ``most`` pixels a side,
    or ``sampled``: every k-th pixel is kept, as averages of noisy pixels have less noise.
    """
    array = np.rint(pixels.clip(0, 1) * 255).astype(np.uint8).transpose(1, 2, 0)
    picture = Image.fromarray(array[:, :, 0] if array.shape[2] == 1 else array)
    lossless = exact and picture.width * picture.height <= EXACT
    if not lossless:
        way = Image.Resampling.NEAREST if sampled else Image.Resampling.LANCZOS
        picture.thumbnail((most, most), way)
    file = io.BytesIO()
    picture.save(file, "WEBP", lossless=lossless, quality=80, method=2)
    return base64.b64encode(file.getvalue()).decode()


def _page(entry: Entry, data: dict[str, Any], *, number: int, paths: list[Path]) -> str:
    assert entry.votes is not None
    table = entry.table
    answered, right = table["predict"] != ABSTAIN, table["correct"] == 1
    wrong = answered & ~right & (table["label"] != UNKNOWN)
    counted = {"right": right, "wrong": wrong, "answered": answered & ~right & ~wrong}
    style = report.TEMPLATE.read_text(encoding="utf-8").partition("<style>")[2]
    html = jinja2.Template(
        TEMPLATE.read_text(encoding="utf-8"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
    ).render(
        alpha=entry.alpha,
        classified=data["classified"],
        copies=COPIES,
        counted={name: int(of.sum()) for name, of in (counted | {"abstained": ~answered}).items()},
        # In a script, only < could end it.
        data=json.dumps(data, separators=(",", ":")).replace("<", "\\u003c"),
        entry=entry,
        header=entry.votes[0],
        most=MOST,
        name=printable(entry.name),
        names=[quote(path.name) for path in paths],
        number=number,
        style=style.partition("</style>")[0],
        total=len(table),
    )
    for tag in ("style", "script"):
        _, _, after = html.partition(f"<{tag}>")
        digest = sha256(after.partition(f"</{tag}>")[0].encode()).digest()
        html = html.replace(f"OF-{tag}", base64.b64encode(digest).decode(), 1)
    return html
