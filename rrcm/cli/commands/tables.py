"""``rrcm report``, ``compare`` and ``derive``: tables of files that exist."""

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from rrcm.analysis import attacked, entries, pairing, report
from rrcm.analysis.entries import Entry
from rrcm.analysis.estimation import paired
from rrcm.analysis.gallery import certified as gallery
from rrcm.analysis.gallery import pair
from rrcm.analysis.presentation import linf, markup, tables
from rrcm.auditing import audit
from rrcm.auditing.findings import NOTE, Finding, Stated
from rrcm.certification import certify, tsv
from rrcm.certification import tables as published
from rrcm.certification.certify import DOWN, UP, one_minus, printed
from rrcm.certification.sampling import store
from rrcm.certification.truncation import truncate
from rrcm.certification.votes import records
from rrcm.cli import requests
from rrcm.cli.app import pages
from rrcm.cli.commands import best as of_best
from rrcm.cli.project import Project
from rrcm.config.defaults import CONFIDENCE, DRAWS
from rrcm.core.errors import DataError
from rrcm.core.ranges import inside, require
from rrcm.data.splits import shards
from rrcm.data.splits.shards import Split

RESULTS, SHARDS = Path("results"), Path("shards")
CLAIMS = f"""Chance alone leads to a claim, at any radius, in at most \
{one_minus(CONFIDENCE, UP, scale=tables.PERCENT)} % of tables (Holm). Images that do not tell A
and B apart do not prove that they are alike. All of it is about these two classifiers on images
like these, not about how they were trained."""


def report_files(
    files: list[Path], *, values: int | None = None, pictures: bool = False,
    out: Path | None, alpha: float | None, sigma: float | None
) -> str:  # fmt: skip
    """Write a report of files of any kind; return the table to show and the page's path.

    With ``pictures``, a page of those of each file, which are of the shards here, is beside it.
    """
    if alpha is not None:
        inside("--alpha", alpha)
    require(sigma is None or 0 < sigma < math.inf, f"--sigma: must be positive, got {sigma}")
    results = [read(path, alpha=alpha, sigma=sigma) for path in files]
    names = [entry.name for entry in results]
    if twins := [name for name in names if names.count(name) > 1]:
        raise DataError(f"{twins[0]}: two files of this name; a report tells them apart by name")
    out = out or Path(f"report-{names[0]}")
    both = zip(files, results, strict=True)
    splits = [_split(path, entry, "--pictures") for path, entry in both if pictures]
    shown: dict[str, Any] = {"radii": entries.default_radii(results), "confidence": CONFIDENCE}
    notes = entries.beyond(results, shown["radii"]) + _in_linf(results, values)
    report.write(results, out, subject=", ".join(names), notes=notes, **shown)
    table, false = tables.text(results, **shown), attacked.contradictions(results)
    lines = [*false, table, "", *notes, f"the report: {out / 'index.html'}"]
    for entry, split in zip(results, splits, strict=False):  # none, or one of each
        page = out / f"{entry.name}-pictures.html"
        lines.append(pages(gallery.write(page, entry, split, backend=None, files={})))
    return "\n".join(lines)


def _split(path: Path | str, entry: Entry, option: str) -> Split:
    """The images of votes, of the shards in this folder."""
    if entry.votes is None or not entry.votes[0].split:
        raise DataError(f"{path}: {option} needs votes (.jsonl) of a split of ./{SHARDS}")
    split = shards.read(SHARDS, entry.votes[0].split)
    if not store.are_of_these(*entry.votes, split):
        raise DataError(f"{path}: votes of other pictures than those of ./{SHARDS / split.name}")
    return split


def read(path: Path, *, alpha: float | None = None, sigma: float | None = None) -> Entry:
    """Read an entry: votes in ``.jsonl``, else a table of any origin, as `tables.scan` reads it.

    Votes are certified by Cohen et al.'s bound, at ``alpha`` or else at the alpha of their stopping
    rule. Other files contain neither alpha nor sigma: the arguments give them, or they are unknown.

    Raises:
        RrcmError: The file is missing, not of the kind that its suffix promises, or contradicts the
            arguments.
    """
    if path.suffix == ".jsonl":
        header, rows = records.read(path)
        _require_agreed(path, audit.otherwise(header, Stated(sigma=sigma)))
        return entries.from_votes(path.stem, header, rows, alpha=alpha)
    table, name = published.read(path), published.name(path)
    if (stated := Stated(alpha=alpha, sigma=sigma)) != Stated():  # it takes a second
        _require_agreed(path, audit.of_table(path, table, stated).findings)
    entry = Entry(name=name, model="", method=name, sigma=sigma, table=table, alpha=alpha)
    return entry if entry.norm == "l2" else replace(entry, method=f"{name} ({entry.norm} radii)")


def _require_agreed(path: Path, findings: list[Finding]) -> None:
    """Refuse a file that contradicts the options, by what an audit finds."""
    for one in findings:
        if one.of_stated and one.level != NOTE:
            raise DataError(f"{path}: {one.text}; leave the option out, or give the file's value")


def derive(
    path: Path,
    *,
    n: int | None,
    alpha: float | None,
    certificates: list[str],
    out: Path | None,
    top: int | None = None,
    values: int | None = None,
) -> str:
    """Certify stored votes again: fewer draws, another alpha, another certificate, or top-k."""
    if alpha is not None:
        inside("--alpha", alpha)
    if top is not None:
        require(not certificates, "--top: is a certificate of its own; leave --certificate out")
        require(top > 0, f"--top: must be 1 or more, got {top}")
        require(out is None or out.suffix != ".tsv", f"--top: {out} cannot say it; write a .csv")
        certificates = [f"top{top}"]
    header, rows = records.read(path)
    header, rows = truncate(header, rows, header.n if n is None else n)
    how: dict[str, Any] = {"top": top} if top else {"certificates": certificates}
    entry = entries.from_votes(path.stem, header, rows, alpha=alpha, **how)
    of_l2 = entry.norm == "l2" or out is None or out.suffix != ".tsv"
    require(of_l2, f"--out: {out} cannot say that its radii are {entry.norm}; write a .csv")
    certificates = certificates or [entry.certificate]
    named = [] if certificates == [DRAWS.certificate] else certificates
    digest = records.digest(header)[:8]  # votes elsewhere may have files of the same name
    parts = [path.stem, digest, f"n{header.n}", *named, f"a{entry.alpha:g}"]
    out = out or RESULTS / f"{'-'.join(parts)}.csv"
    notes = "".join(f"{line}\n" for line in _in_linf([entry], values))
    (tsv if out.suffix == ".tsv" else certify).write(entry.table, out)
    shown = tables.text([entry], radii=entries.default_radii([entry]), confidence=CONFIDENCE)
    unmarked = (
        f"warning: {out} has no ≥, a TSV does not say that drawing stopped early; a .csv does\n"
    )
    choice = (
        f"Whoever looks at m tables of these votes and publishes one has made m tests: certify at "
        f"--alpha {entry.alpha} / m, and all of them hold at {entry.alpha}.\n"
    )
    return (
        f"{shown}\n\n{len(entry.table)} images, n0 = {header.n0}, n = {header.n}, "
        f"alpha = {entry.alpha}, certificate {', '.join(certificates)}; "
        f"stopping rule {header.stop}, laid out for {header.certificate} at alpha = "
        f"{header.alpha}; nothing was drawn\n"
        f"{notes}{choice if n or top else ''}"
        f"{unmarked if out.suffix == '.tsv' and entry.cut_short else ''}certificates: {out}"
    )


def _in_linf(found: list[Entry], values: int | None) -> list[str]:
    """A line with the radii of a table in L-infinity, for images of ``values`` values, if any."""
    other = [entry.name for entry in found if entry.norm != "l2"]
    require(values is None or not other, f"--linf: {other} have radii of another norm than l2")
    shown = tables.worth_showing(found, entries.default_radii(found))
    return [] if values is None else linf.notes(shown, values)


def compare(
    names: list[str],
    project: Project,
    *,
    radii: str | None,
    best: bool = False,
    page: Path | None = None,
) -> str:
    """Compare two classifiers in pairs on the same images; return tests and conclusions.

    Each is a file, or the name of an evaluation. One may have more images than the other. ``best``
    corrects the best of any number for having been chosen by its images. ``page`` shows those on
    which two differ at a radius, which are of the shards here.
    """
    require(not (page and best), "--page: is of two classifiers; leave --best out")
    found = [
        read(Path(name))
        if Path(name) == published.STDIN or Path(name).is_file()
        else project.evaluation(name)
        for name in names
    ]
    if best:
        return of_best.best(dict(zip(names, found, strict=True)), radii=radii)
    if len(found) != 2:
        raise DataError(f"{len(found)} classifiers; two are compared, the best of more by --best")
    first, second = names
    splits = [_split(name, one, "--page") for name, one in zip(names, found, strict=True) if page]
    entries.require_alike(found)
    a, b = pairing.on_shared(*found)
    if not pairing.same_images(a, b):
        differ = "pictures" if pairing.same_files(a, b) else "names of files"
        differ = differ if paired.same_images(a.table, b.table) else "`idx` or `label`"
        raise DataError(
            f"{first} and {second} are not of the same images in the same order, their {differ} "
            "differ; a comparison in pairs needs all images of the smaller table in the other"
        )
    chosen = requests.parse_radii(radii) if radii else entries.default_radii([a, b])
    numbers = tables.comparison(a, b, radii=chosen, confidence=CONFIDENCE)
    decided = numbers[~numbers["undecided"]]
    undecided = tables.undecided_table(numbers)
    apart = "difference unknown, as drawing stopped early"
    if difference := tables.acr_difference(a, b, confidence=CONFIDENCE):
        sure = tables.percent_of(CONFIDENCE)
        apart = f"A − B = {difference} ({sure} BCa bootstrap of the differences by image)"
    so_far = ", by the draws that were made" * any(one.undecided([0.0])[0] for one in (a, b))
    alike = printed(paired.agreement(a.table, b.table), DOWN, places=1, scale=tables.PERCENT)
    table = tables.comparison_table([a, b], numbers).drop(columns=["σ", "A", "B"], errors="ignore")
    lines = [
        f"A: {_named(first, a)}, σ = {entries.sigma(a)}",
        f"B: {_named(second, b)}, σ = {entries.sigma(b)}",
        *project.remarks([a, b]),
        *(
            f"{name}: {len(one.table):,} of its {len(whole.table):,} images"
            for name, one, whole in zip("AB", (a, b), found, strict=True)
            if len(one.table) < len(whole.table)
        ),
        f"{len(a.table)} images; the same answer on {alike} %{so_far}",
        "",
        *_in_pairs(table, decided, undecided),
        f"ACR {tables.acr(a)} and {tables.acr(b)}: {apart}",
        "",
    ]
    if len(decided):
        level = 1 - CONFIDENCE
        lines.append(pairing.conclusion(a, b, numbers, labels=("A", "B"), level=level))
    if len(undecided):
        lines.append(
            f"At r = {', '.join(undecided['r'])} drawing stopped before every image was decided: "
            "nothing follows there."
        )
    lines.append(CLAIMS)
    if page and len(table):
        decided_at = decided["radius"].tolist()
        paths = pair.write(page, (a, b), splits[0], radii=decided_at, tests=table)
        lines.append(pages(paths))
    elif page:
        lines.append("pictures: none, as no image differs at a radius that was decided")
    return "\n".join(lines)


def _in_pairs(table: pd.DataFrame, decided: pd.DataFrame, undecided: pd.DataFrame) -> Iterator[str]:
    """Yield the table of tests, and apart from it what is not decided."""
    if len(table):
        yield markup.plain(table, again=1) + "\n"
    elif len(undecided) == 0:
        yield "no radius at which any image differs\n"
    elif len(decided):
        yield f"no image differs at r = {pairing.radii(decided['radius'])}\n"
    if len(undecided):
        so_far = "by the draws that were made, before every image was decided:"
        yield f"{so_far}\n{markup.plain(undecided, again=1)}\n"


def _named(source: str, entry: Entry) -> str:
    radii = f" ({entry.norm} radii)" if entry.norm != "l2" else ""
    radii += f" (top {entry.top})" * bool(entry.top)
    return f"{source}{radii}{' (stale)' if entry.stale else ''}"
