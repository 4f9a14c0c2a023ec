"""``rrcm certify``: certification on demand.

Votes are kept under .rrcm/votes, named by a digest of all that defines them: the same request
resumes where it stopped, and another one starts afresh. Votes that are elsewhere already are
reused.
"""

import dataclasses
from pathlib import Path

import pandas as pd

from rrcm.analysis import entries
from rrcm.analysis.entries import Entry
from rrcm.analysis.gallery import certified as gallery
from rrcm.analysis.presentation import tables
from rrcm.certification import certify as certification
from rrcm.certification import checks, clean, plausibility
from rrcm.certification.sampling import drawing
from rrcm.certification.sampling.store import Store
from rrcm.certification.votes import reach, records
from rrcm.certification.votes.records import Header, Row
from rrcm.cli.app import pages
from rrcm.cli.classifiers import Opened, note
from rrcm.cli.commands import repeated
from rrcm.cli.project import Described, Project
from rrcm.cli.requests import Request
from rrcm.config.certification import Report
from rrcm.config.defaults import CONFIDENCE, DRAWS
from rrcm.core import locks
from rrcm.core.errors import printable, warn
from rrcm.core.files import require_place, write_text
from rrcm.core.ranges import require

VOTES, RESULTS = Store(Path(".rrcm/votes")), Path("results")
CLEAN = Path(".rrcm/clean")  # answers without noise
SHOWN = 5  # files left out that are listed individually


def certify(request: Request, project: Project, *, page: Path | None = None) -> str:
    """Certify the images of a request; return the table to show and the files written.

    A folder of pictures gets a page of them, which ``page`` names; others get one if it is given.
    """
    share = request.shard != "1/1"
    require(not (page and share), "--page: is of all pictures; leave it out with --shard")
    opened = request.source.opened(request.sample)
    header, rows, path = drawn(request, opened)
    if share:
        return (
            f"{len(rows)} images, share {header.shard}\nvotes: {path}\n"
            "the same command without --shard puts the shares together"
        )
    report = shown(request.report, header)
    entry, written = certified(request.certificates, header, rows, project)
    table, plain = entry.table, cleaned(header, rows, opened)
    if opened.files:
        table["file"] = table["idx"].map(opened.files)
    full = table if plain is None else table.assign(clean=plain)
    certification.write(full if header.foreign else table, written)  # a run's is that of its stage
    entry = dataclasses.replace(entry, table=full)
    page = page or (written.with_suffix(".html") if opened.files else None)
    pictures: list[str] = []
    if page:
        backend, files = opened.smoothed.backend, opened.files
        pictures = [pages(gallery.write(page, entry, opened.split, backend=backend, files=files))]
    before = ", all drawn before by the workflow" * (path in opened.votes)
    lines = [
        f"{tables.text([entry], radii=report.radii, confidence=report.confidence)}\n",
        f"{len(table)} images, n0 = {header.n0}, n = {header.n}, alpha = {header.alpha}; stopping "
        f"rule {header.stop}: {_effort(header, rows, table)}{before}",
        *_subset(header, opened),
        *reach.beyond(header, report.radii),
        f"the function: {header.backend} {header.precision} on {header.provider}",
        f"noise: {header.noise}, seed {header.seed}; --seed {header.seed} draws the same votes",
        *repeated.line(header, store_of(opened).files(), opened.split),
        *opened.notes,
        *_left_out(entry.name, opened),
        f"certificates: {written}",
        *pictures,
        f"votes: {path}",
    ]
    return "\n".join(lines)


def _subset(header: Header, opened: Opened) -> list[str]:
    """Return which images were taken, if not all: settings of a checkout may say so."""
    if header.subset == DRAWS.subset:
        return []
    many = f"{header.images:,} of {len(opened.split.idx):,} images"
    return [f"subset: {header.subset} takes {many}; --subset all takes all"]


def shown(report: Report | None, header: Header) -> Report:
    """Return what a table of votes shows: radii that are named, or those that draws reach."""
    return report or Report(radii=reach.shown(header), confidence=CONFIDENCE)


def certified(
    certificates: list[str], header: Header, rows: list[Row], project: Project
) -> tuple[Entry, Path]:
    """Return votes as an entry of a table, and where its certificates are to be written."""
    described = Described(model=header.run, method="")
    if not header.foreign:
        described = project.described(header)
    about = dataclasses.asdict(described)
    name = _written_as(header, certificates)
    entry = entries.from_votes(name, header, rows, certificates=certificates)
    entry = dataclasses.replace(entry, sigma_train=about.pop("sigma"), **about)
    return entry, RESULTS / f"{name}.csv"


def cleaned(header: Header, rows: list[Row], opened: Opened) -> list[int] | None:
    """Return the answers without noise, found once for the same pictures; see `clean.column`.

    Warns of what they and the votes show to be implausible.
    """
    path = CLEAN / f"{clean.identity(header)}.json"
    backend, split = opened.smoothed.backend, opened.split
    plain = clean.column(backend, split, header, rows, path=path)
    unlike = checks.unlike(backend, split, header)
    warn(plausibility.of_votes(header, rows, plain=plain, unlike=unlike))
    return plain


def store_of(opened: Opened) -> Store:
    """Return the votes that lie here, and those that are elsewhere already."""
    return dataclasses.replace(VOTES, others=opened.votes)


def _effort(header: Header, rows: list[Row], table: pd.DataFrame) -> str:
    drawn = int(table["n"].sum()) + header.n0 * sum(bool(row.n0) for row in rows)
    most = len(table) * (header.n0 + header.n)
    return f"{drawn:,} draws, {100 * drawn / most:.3g} % of all"


def _left_out(name: str, opened: Opened) -> list[str]:
    """Return lines on the files that were not used; all are listed in a separate file."""
    if not opened.left_out:
        return []
    path = _left_out_file(name)
    lines = [printable(line) for line in opened.left_out]
    write_text(path, "".join(f"{line}\n" for line in lines))
    some = [f"left out: {line}" for line in lines[:SHOWN]]
    count, total = len(opened.left_out), len(opened.left_out) + len(opened.files)
    return [*some, f"left out: {count} of {total} files, listed in {path}"]


def drawn(request: Request, opened: Opened) -> tuple[Header, list[Row], Path]:
    """Return the votes of a request and their file, drawn unless they exist."""
    wanted, store = header_of(request, opened), store_of(opened)
    title = f"certify {opened.name}" + (f" {wanted.shard}" if wanted.shard != "1/1" else "")
    path = store.path(wanted)
    if not store.find(wanted):
        with locks.alone(path.with_suffix(".lock"), title, say=note):
            if not store.find(wanted):  # by the process that we waited for
                _prepare(request, wanted, opened)
                drawing.run(
                    opened.smoothed.backend,
                    wanted,
                    opened.split,
                    journal=path.with_suffix(".journal"),
                    path=path,
                    title=title,
                    earlier=store.files(),
                    budget_start=request.budget_start,
                )
    path = store.find(wanted) or path
    return *records.read(path), path


def _prepare(request: Request, wanted: Header, opened: Opened) -> None:
    """Refuse what cannot be certified before it is drawn, and say what a trial found."""
    certification.require(wanted, certificates=request.certificates)
    longest = _left_out_file(_written_as(wanted, request.certificates))  # of the names of files
    require_place(longest)
    tried = checks.examine(opened.smoothed.backend, opened.split, wanted)
    note(plausibility.fact(tried, sigma=wanted.sigma))
    warn(plausibility.warnings(tried, classes=wanted.classes, sigma=wanted.sigma))


def header_of(request: Request, opened: Opened) -> Header:
    """Return the definition of the votes that a request asks for.

    The noise for image files is fresh unless the request has a seed: somebody who knows the noise
    can construct an image whose certificate is false.
    """
    header = opened.smoothed.header(
        opened.split, run=opened.name, shard=request.shard, budget=request.budget
    )
    if header.foreign and not request.seeded:
        return dataclasses.replace(header, seed=VOTES.seed(header, opened.split))
    return header


def _written_as(header: Header, certificates: list[str]) -> str:
    """Return the name of a request's files: all that options can change is in a digest."""
    parts = [header.run, f"e{header.sigma:.12g}", f"n{header.n}", header.stop]
    parts += [records.digest(dataclasses.replace(header, shard="1/1"))[:8]]
    parts += certificates if certificates != [DRAWS.certificate] else []
    return "-".join([*parts, f"a{header.alpha}"])


def _left_out_file(name: str) -> Path:
    return RESULTS / f"{name}-left-out.txt"
