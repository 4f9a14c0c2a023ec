"""``rrcm report``, ``compare`` and ``derive``: tables from results that exist."""

import fnmatch
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rrcm.analysis import conclusions, entries, pairing, published, report, sources
from rrcm.analysis.entries import Entry
from rrcm.analysis.estimation import paired
from rrcm.analysis.estimation.truncation import truncate
from rrcm.analysis.presentation import pictures, tables
from rrcm.analysis.presentation.extras import Extras
from rrcm.certification import certify, tsv
from rrcm.certification.certify import UP, one_minus
from rrcm.certification.votes import records
from rrcm.cli import differences, requests
from rrcm.cli.commands import provenance
from rrcm.cli.stale import PAGE, Present
from rrcm.config.defaults import REPORT
from rrcm.config.sections import PARAMS
from rrcm.core.errors import ConfigError, DataError
from rrcm.core.ranges import require
from rrcm.core.registry import suggest
from rrcm.data.splits import shards

CONFIDENCE = REPORT.confidence  # confidence of intervals without a params.yaml
RESULTS = Path("results")
HTML = "index.html"


def overview(only: Sequence[str] = ()) -> str:
    """Return the certified-accuracy table of params.yaml's evaluations, and the page's path.

    Rows are described by their records; lines below the table name those that are stale. With
    patterns ``only``, the table of the evaluations that match one.
    """
    present = Present()
    whole = present.whole
    names = _matching(whole.evals, only)
    paths = [Path(f"certificates/{name}.csv") for name in names] + ([] if only else [PAGE])
    if missing := [path for path in paths if not path.exists()]:
        raise DataError(f"{missing[0]} is not here; `dvc repro` makes it, or `dvc pull` fetches it")
    found = present.evaluations(names)
    shown: dict[str, Any] = {"radii": whole.report.radii, "confidence": whole.report.confidence}
    said = differences.lines(((entry.name, entry.stale) for entry in found), stage="certify")
    if only:
        return "\n".join([tables.text(found, **shown), *said])
    if changed := present.page():
        said.append(differences.line(str(PAGE), changed, "`dvc repro report`"))
    return "\n".join([f"{tables.text(found, **shown)}\n", *said, f"the report: {PAGE}"])


def _matching(names: Iterable[str], only: Sequence[str]) -> list[str]:
    """Return the names that match a pattern, all without patterns.

    Raises:
        ConfigError: A pattern matches none.
    """
    known = [*names]
    if not only:
        return known
    for pattern in only:
        if not fnmatch.filter(known, pattern):
            raise ConfigError(
                f"--only {pattern}: no evaluation of {PARAMS} has such a name."
                f"{suggest(pattern, known)}"
            )
    return [name for name in known if any(fnmatch.fnmatchcase(name, each) for each in only)]


def page(out: Path, only: Sequence[str]) -> str:
    """Write the page of params.yaml's evaluations to ``out``; return the table and the page's path.

    It is that of the graph, with the versions and machines of ``provenance/``, the commit, and
    pictures if the certified split is here; with patterns ``only``, of those that match one.
    """
    present = Present()
    whole = present.whole
    found = present.evaluations(_matching(whole.evals, only))
    split = Path("shards", found[0].split)
    there = (split / "index.json").exists()
    extras = Extras(
        pictures=pictures.groups(found, shards.read(split.parent, split.name)) if there else [],
        versions=provenance.versions(),
        recorded=provenance.recorded(),
    )
    shown: dict[str, Any] = {"radii": whole.report.radii, "confidence": whole.report.confidence}
    report.write(
        found,
        out,
        subject=f"{whole.data.name}, {found[0].split} split · certificate: {found[0].certificate}",
        published=published.read(Path(f"presets/published/{whole.data.name}.csv")),
        extras=extras,
        **shown,
    )
    said = differences.lines(((entry.name, entry.stale) for entry in found), stage="certify")
    if not there:
        said.append(f"no pictures: {split} is not here; `dvc pull {split}` fetches it")
    return "\n".join([f"{tables.text(found, **shown)}\n", *said, f"the report: {out / HTML}"])


def report_files(
    files: list[Path], *, out: Path | None, alpha: float | None, sigma: float | None
) -> str:
    """Write a report of files of any kind; return the table to show and the page's path."""
    _require_level(alpha)
    require(sigma is None or sigma > 0, f"--sigma: must be positive, got {sigma}")
    found = [sources.read(path, alpha=alpha, sigma=sigma) for path in files]
    if twins := [entry.name for entry in found if _names(found).count(entry.name) > 1]:
        raise DataError(f"{twins[0]}: two files of this name; a report tells them apart by name")
    out = out or Path(f"report-{found[0].name}")
    shown: dict[str, Any] = {"radii": entries.default_radii(found), "confidence": CONFIDENCE}
    report.write(found, out, subject=", ".join(_names(found)), **shown)
    return f"{tables.text(found, **shown)}\n\nthe report: {out / HTML}"


def derive(
    path: Path,
    *,
    n: int | None,
    alpha: float | None,
    certificates: list[str],
    out: Path | None,
) -> str:
    """Certify stored votes again: fewer draws, another alpha, or another certificate."""
    _require_level(alpha)
    header, rows = records.read(path)
    header, rows = truncate(header, rows, header.n if n is None else n)
    entry = sources.from_votes(path.stem, header, rows, alpha=alpha, certificates=certificates)
    out = out or RESULTS / f"{path.stem}-n{header.n}-a{entry.alpha:g}.csv"
    (tsv if out.suffix == ".tsv" else certify).write(entry.table, out)
    shown = tables.text([entry], radii=entries.default_radii([entry]), confidence=CONFIDENCE)
    return (
        f"{shown}\n\n{len(entry.table)} images, n0 = {header.n0}, n = {header.n}, "
        f"alpha = {entry.alpha}; "
        f"stopping rule {header.stop}, laid out for {header.certificate} at alpha = "
        f"{header.alpha}; nothing was drawn\n"
        f"{_choice(entry, fewer=n is not None)}certificates: {out}"
    )


def _choice(entry: Entry, *, fewer: bool) -> str:
    """Return a warning about choosing among several n, which costs alpha."""
    if not fewer:
        return ""
    return (
        f"Whoever looks at m tables of these votes and publishes one has made m tests: certify at "
        f"--alpha {entry.alpha} / m, and all of them hold at {entry.alpha}.\n"
    )


def compare(first: str, second: str, *, radii: str | None) -> str:
    """Compare two classifiers in pairs on the same images; return tests and conclusions."""
    a, b = _source(first), _source(second)
    entries.require_alike([a, b])
    if not pairing.same_images(a, b):
        differ = "pictures" if paired.same_images(a.table, b.table) else "`idx` or `label`"
        raise DataError(
            f"{first} and {second} are not of the same images in the same order, their {differ} "
            "differ; a comparison in pairs needs them"
        )
    differing, unknown = pairing.differing(a, b), pairing.assumed(a, b)
    chosen = requests.parse_radii(radii) if radii else entries.default_radii([a, b])
    found = paired.compare(a.judged, b.judged, radii=chosen, confidence=CONFIDENCE)
    apart = paired.acr_difference(a.judged, b.judged, confidence=CONFIDENCE)
    alike = paired.agreement(a.table, b.table)
    lines = [
        *([f"settings that differ: {'; '.join(differing.values())}"] if differing else []),
        *([f"assumed alike, as not both record it: {', '.join(unknown)}"] if unknown else []),
        f"A: {_named(first, a)}, σ = {entries.sigma(a)}",
        f"B: {_named(second, b)}, σ = {entries.sigma(b)}",
        *differences.lines([(entry.name, entry.stale) for entry in (a, b)], stage="certify"),
        f"{len(a.table)} images; the same answer on {100 * alike:.1f} %",
        "",
        tables.pair_table(found, a, b).to_string(index=False),
        "",
        f"ACR {tables.acr(a)} and {tables.acr(b)}: A − B = {tables.acr_difference(apart, a, b)} "
        f"({tables.percent_of(CONFIDENCE)} BCa bootstrap of the differences by image)",
        "",
        *(_no_conclusion(differing) if differing else _conclusion(found, a, b)),
    ]
    if None not in (a.sigma, b.sigma) and a.sigma != b.sigma:
        lines.append("They are smoothed at different σ: each may be better at radii of its own.")
    return "\n".join(lines)


def _no_conclusion(differing: Iterable[str]) -> list[str]:
    return [
        "Nothing about the classifiers follows: the certificates were made with another "
        f"{', '.join(differing)}, which may be why they differ."
    ]


def _conclusion(found: list[paired.Comparison], a: Entry, b: Entry) -> list[str]:
    """Return the conclusions that the tests allow, in words."""
    undecided = [c.radius for c in found if any(e.undecided([c.radius])[0] for e in (a, b))]
    found = [c for c in found if c.radius not in undecided]
    level, chance = 1 - CONFIDENCE, one_minus(CONFIDENCE, UP, scale=tables.PERCENT)
    claims = conclusions.claims(
        ((c.radius, c.difference.value, c.p_holm) for c in found), level=level
    )
    lines = [
        f"{letter} certifies more images at r = {conclusions.radii(better)}: chance alone leads to "
        f"such a claim, at any radius, in at most {chance} % of tables (Holm)."
        for letter, better in (("A", claims.first), ("B", claims.second))
        if better
    ]
    if claims.open:
        lines.append(
            f"At r = {conclusions.radii(claims.open)} these {len(a.judged)} images do not tell A "
            "and B apart; that is no proof that they are alike."
        )
    if undecided:
        lines.append(
            f"At r = {conclusions.radii(undecided)} drawing stopped before every image was "
            "decided: nothing follows there."
        )
    lines.append(
        "This is about these two classifiers on images like these, not about how they were trained."
    )
    return lines


def _source(name: str) -> Entry:
    """Read an evaluation of params.yaml by name, or a file."""
    if Path(name).is_file():
        return sources.read(Path(name))
    present = Present() if PARAMS.exists() else None
    if present is None or name not in present.whole.evals:
        known = ", ".join(present.whole.evals) if present else "not here"
        raise DataError(f"{name}: neither a file nor an evaluation of params.yaml ({known})")
    certificates, drawn = Path(f"certificates/{name}.csv"), Path(f"votes/{name}.jsonl")
    if missing := [path for path in (certificates, drawn) if not path.exists()]:
        raise DataError(f"{missing[0]} is not here; `dvc repro certify@{name}` makes it")
    (entry,) = present.evaluations([name])
    return entry


def _named(source: str, entry: Entry) -> str:
    return f"{source} (stale)" if entry.stale else source


def _require_level(alpha: float | None) -> None:
    require(alpha is None or 0 < alpha < 1, f"--alpha: must lie in (0, 1), got {alpha}")


def _names(found: list[Entry]) -> list[str]:
    return [entry.name for entry in found]
