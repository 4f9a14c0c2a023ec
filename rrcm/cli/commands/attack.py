"""``rrcm attack``: certified and empirical robust accuracy of one classifier, side by side."""

import dataclasses
from hashlib import sha256

from rrcm.analysis import attacked, report
from rrcm.analysis.presentation import markup, tables
from rrcm.certification import certify
from rrcm.certification.answers import Answers
from rrcm.certification.attacking import search
from rrcm.certification.attacking.search import Search
from rrcm.certification.votes import reach
from rrcm.cli.classifiers import note
from rrcm.cli.commands import on_demand, repeated
from rrcm.cli.project import Project
from rrcm.cli.requests import Request
from rrcm.core import locks


def attack(request: Request, project: Project, how: Search) -> str:
    """Certify the images of a request and attack them; return the table and the files written."""
    opened = request.source.opened(request.sample)
    network = search.differentiable(opened.smoothed, opened.split)
    header, rows, votes = on_demand.drawn(request, opened)
    shown = on_demand.shown(request.report, header)
    radii, confidence = shown.radii, shown.confidence
    asked = sha256(f"{radii} {how}".encode()).hexdigest()[:8]
    path = on_demand.VOTES.path(header, f"-{asked}.attack.json")
    with locks.alone(path.with_suffix(".lock"), f"attack {opened.name}", say=note):
        found = search.attack(
            opened.smoothed, network, opened.split, Answers(header, rows),
            radii=radii, search=how, path=path, shown=True,
        )  # fmt: skip
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
        f"{len(rows)} images, alpha = {header.alpha}; PGD and DDN on {how.copies} noisy copies, "
        f"{how.steps} steps, {how.restarts} restarts",
        *on_demand.repetition(header, opened),
        *repeated.attacks(header, on_demand.VOTES.folder),
        *reach.beyond(header, radii),
        f"certificates and distances: {out}.csv",
        f"the report: {out / 'index.html'}",
        f"votes: {votes}; the attack: {path}",
    ]
    return "\n".join(lines)
