"""``rrcm attack``: certified and empirical robust accuracy of one classifier, side by side."""

import dataclasses
from hashlib import sha256
from pathlib import Path

from rrcm.analysis import attacked, report
from rrcm.analysis.gallery import attack as gallery
from rrcm.analysis.presentation import markup, tables
from rrcm.certification import certify
from rrcm.certification.answers import Answers
from rrcm.certification.attacking import judging, pictures, search
from rrcm.certification.attacking.candidates import read
from rrcm.certification.attacking.search import Search
from rrcm.certification.votes import reach
from rrcm.cli.app import pages
from rrcm.cli.classifiers import note
from rrcm.cli.commands import on_demand, repeated
from rrcm.cli.project import Project
from rrcm.cli.requests import Request
from rrcm.core import locks
from rrcm.core.errors import printable


def attack(
    request: Request,
    project: Project,
    how: Search,
    candidates: Path | None = None,
    *,
    page: Path | None = None,
) -> str:
    """Certify the images of a request and attack them; return the table and the files written.

    With a folder of ``candidates`` these are judged, and nothing is searched.
    """
    opened = request.source.opened(request.sample)
    smoothed, split = opened.smoothed, opened.split
    if candidates is None:
        network = search.differentiable(smoothed, split)
    else:
        pools = read(candidates, smoothed, split)
    header, rows, votes = on_demand.drawn(request, opened)
    shown = on_demand.shown(request.report, header)
    radii, confidence = shown.radii, shown.confidence
    what = repr(how) if candidates is None else judging.of(pools)
    asked = sha256(f"{radii} {what}".encode()).hexdigest()[:8]
    path = on_demand.VOTES.path(header, f"-{asked}.attack.json")
    with locks.alone(path.with_suffix(".lock"), f"attack {opened.name}", say=note):
        answers = Answers(header, rows)
        if candidates is None:
            found = search.attack(
                smoothed, network, split, answers, radii=radii, search=how, path=path, shown=True
            )
            done = f"PGD and DDN on {how.copies} noisy copies, {how.steps} steps"
            done += f", {how.restarts} restarts"
        else:
            found = judging.candidates(smoothed, split, answers, pools, path=path, shown=True)
            done = f"{sum(map(len, pools.values()))} candidates of {printable(str(candidates))}"
    entry, written = on_demand.certified(request.certificates, header, rows, project)
    further = {"clean": on_demand.cleaned(header, rows, opened)} | found.attacked
    out = written.with_name(f"{entry.name}-attack-{asked}")
    entry = dataclasses.replace(entry, name=out.name, table=entry.table.assign(**further))
    certify.write(entry.table, out.with_name(f"{out.name}.csv"))
    report.write([entry], out, subject=opened.name, radii=radii, confidence=confidence)
    table = attacked.table([entry], radii=radii, confidence=confidence).drop(columns="method")
    lines = [
        *attacked.contradictions([entry]),
        f"robust accuracy, % [{tables.percent_of(confidence)} Wilson interval]\n",
        f"{markup.plain(table, again=1)}\n",
        f"{len(rows)} images, alpha = {header.alpha}; {done}",
        *on_demand.repetition(header, opened),
        *repeated.attacks(header, on_demand.VOTES.folder),
        *reach.beyond(header, radii),
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
