"""``rrcm attack``: certified and empirical robust accuracy of one classifier, side by side."""

import dataclasses
import math
from hashlib import sha256
from pathlib import Path
from typing import Any

from rrcm.analysis import attacked, report
from rrcm.analysis.gallery import attack as gallery
from rrcm.analysis.presentation import linf, markup, tables
from rrcm.certification import certify, openers
from rrcm.certification.answers import Answers
from rrcm.certification.attacking import expected, judging, pictures, search
from rrcm.certification.attacking.candidates import read
from rrcm.certification.attacking.search import Search
from rrcm.certification.certify import DIGITS
from rrcm.certification.smoothed import Smoothed
from rrcm.certification.votes import reach
from rrcm.cli.app import pages
from rrcm.cli.classifiers import Opened, note
from rrcm.cli.commands import on_demand, repeated
from rrcm.cli.project import Project
from rrcm.cli.requests import Request
from rrcm.core import locks
from rrcm.core.errors import BackendError, RrcmError, printable
from rrcm.core.files import write_csv


def attack(
    request: Request,
    project: Project,
    how: Search,
    *,
    base: bool = False,
    page: Path | None = None,
    **ways: Any,
) -> str:
    """Certify the images of a request and attack them; return the table and the files written.

    Pictures are found by ``how``, or by one of ``ways``: ``candidates``, ``surrogate`` or
    ``foolbox``, as the options are. ``base`` attacks the classifier without noise, too.
    """
    opened = request.source.opened(request.sample)
    smoothed, split = opened.smoothed, opened.split
    finder = _finder(opened, how, **ways)
    if base:
        expected.scores_of(smoothed)  # refuses a random one
    header, rows, votes = on_demand.drawn(request, opened)
    shown = on_demand.shown(request.report, header)
    chosen = dataclasses.asdict(shown)
    asked = sha256(f"{shown.radii} {finder.asked}{finder.salt}".encode()).hexdigest()[:8]
    path = on_demand.VOTES.path(header, f"-{asked}.attack.json")
    kept: dict[str, Any] = {"radii": shown.radii, "path": path, "shown": True}
    with locks.alone(path.with_suffix(".lock"), f"attack {opened.name}", say=note):
        found = judging.judged(smoothed, split, Answers(header, rows), finder, **kept)
    entry, written = on_demand.certified(request.certificates, header, rows, project)
    further = {"clean": on_demand.cleaned(header, rows, opened)} | found.attacked
    if base:
        near = finder.near(header, shown.radii, 0.0)
        further[attacked.BASE] = judging.unsmoothed(smoothed, split, rows, near)
    out = written.with_name(f"{entry.name}-attack-{asked}")
    entry = dataclasses.replace(entry, name=out.name, table=entry.table.assign(**further))
    certify.write(entry.table, out.with_name(f"{out.name}.csv"))
    values = math.prod(smoothed.shape)
    in_linf = linf.notes(shown.radii, values)
    report.write([entry], out, subject=opened.name, notes=in_linf, **chosen)
    numbers = attacked.numbers([entry], **chosen)
    numbers["linf"] = [linf.radius(r, values) for r in numbers["radius"]]
    write_csv(numbers, out / "attacked.csv", digits=f"%.{DIGITS}f")
    lines = [
        *attacked.contradictions([entry]),
        f"robust accuracy, % [{tables.percent_of(shown.confidence)} Wilson interval]\n",
        f"{markup.plain(attacked.table([entry], **chosen).drop(columns='method'), again=1)}\n",
        *in_linf,
        f"{len(rows)} images, alpha = {header.alpha}; {finder.said}",
        *repeated.line(header, on_demand.store_of(opened).files(), split),
        *repeated.attacks(header, on_demand.VOTES.folder),
        *reach.beyond(header, shown.radii),
        f"this table: {out / 'attacked.csv'}",
        f"certificates and distances: {out}.csv",
        f"the report: {out / 'index.html'}",
        f"votes: {votes}; the attack: {path}",
    ]
    if page := page or (out / "pictures.html" if opened.files else None):
        made = pictures.written(smoothed, split, found, kept=path, folder=out / "attacked")
        backend, files = smoothed.backend, opened.files
        paths = gallery.write(page, entry, split, made, backend=backend, files=files)
        lines.append(pages(paths))
    return "\n".join(lines)


def _finder(
    opened: Opened,
    how: Search,
    *,
    candidates: Path | None = None,
    surrogate: str | None = None,
    foolbox: str | None = None,
) -> judging.Finder:
    """What finds pictures; refuses what cannot, before anything is drawn."""
    smoothed, split = opened.smoothed, opened.split
    if candidates is not None:
        pools = read(candidates, smoothed, split)
        return judging.candidates(pools, f"candidates of {printable(str(candidates))}")
    if foolbox is not None:
        from rrcm.certification.attacking import library  # foolbox may be missing

        return library.finder(smoothed, split, foolbox, how)
    if surrogate is None:
        return search.finder(search.differentiable(smoothed, split), how)
    judging.require(smoothed, split)
    source = _surrogate(surrogate, smoothed)
    said = f"gradients of {printable(surrogate)} ({source.backend.weights[:8]})"
    return search.finder(search.differentiable(source, split), how, said)


def _surrogate(name: str, smoothed: Smoothed) -> Any:
    """The network ``name``, smoothed as the classifier that is attacked.

    Raises:
        BackendError: It takes other pictures, has other classes, or cannot be opened.
    """
    shape = smoothed.shape if ".py:" in name else None
    try:
        found: Any = openers.smooth(name, sigma=smoothed.sigma, shape=shape)
    except RrcmError as error:
        raise BackendError(f"--surrogate: {error}") from error
    ours, its = (f"{one.shape}, {len(one.backend.classes)} classes" for one in (smoothed, found))
    if ours != its:
        raise BackendError(f"--surrogate {name}: is of {its}; the attacked classifier of {ours}")
    return found
