"""``rrcm certify`` and ``rrcm merge``: certification on demand, outside the graph.

Votes are kept under .rrcm/votes, named by a digest of all that defines them: the same request
resumes where it stopped, and another one starts afresh. Votes that the graph has drawn are reused.
"""

import dataclasses
import hashlib
import json
import os
import secrets
from contextlib import suppress
from pathlib import Path

import pandas as pd

from rrcm.analysis.entries import Entry
from rrcm.analysis.presentation import tables
from rrcm.certification import certify as certification
from rrcm.certification import plausibility
from rrcm.certification.certificates import transfer
from rrcm.certification.certify import DIGITS, UP, printed
from rrcm.certification.sampling import procedure, session
from rrcm.certification.votes import records
from rrcm.certification.votes.records import Header, Row
from rrcm.cli import devices, requests, sources
from rrcm.cli.commands import repeated, trial, verdicts
from rrcm.cli.commands.trial import FOREIGN
from rrcm.cli.differences import listed
from rrcm.cli.requests import Foreign, Request
from rrcm.cli.sources import Source
from rrcm.cli.stale import Described, Present
from rrcm.config.certification import Certify, Report, Sample
from rrcm.config.defaults import DRAWS, RADII
from rrcm.core import locks
from rrcm.core.errors import VotesError, printable
from rrcm.core.files import require_place, write_text

VOTES, RESULTS = Path(".rrcm/votes"), Path("results")
SHOWN = 5  # files left out that are listed individually


def certify(request: Request, source: Source | None = None) -> str:
    """Certify the images of a request; return the table to show and the files written.

    ``source`` is the opened source of the request, if there is one already.
    """
    devices.require_given()
    source = source or sources.open_source(request)
    header, rows, path = _votes(request, source)
    if request.shard == "1/1":
        return _results(request.certify, request.report, header, rows, path, source, request.radius)
    path = _shard(header)
    records.write(path, header, rows)
    return (
        f"{len(rows)} images, shard {header.shard}\nvotes: {path}\n"
        "`rrcm merge` puts the shards together"
    )


def share(request: Request) -> str:
    """Certify with one process per device; return what `certify` would.

    Guarantee: the votes are those that one process would have drawn. Nothing is started if they
    exist already.
    """
    names = devices.choose(request.devices)
    source = sources.open_source(request)
    whole = header_of(request, source)
    if not _made(whole, source):
        _prepare(request, whole, source)
        devices.run(names, _settled(request, source.smoothed.draws))
        if (count := len(names)) > 1:
            shards = [f"{i}/{count}" for i in range(1, count + 1)]
            _merged([_shard(dataclasses.replace(whole, shard=shard)) for shard in shards])
    return certify(request, source)  # finds the votes that the processes have drawn


def _settled(request: Request, draws: Sample) -> tuple[str, ...]:
    """Return the options for processes that must not choose for themselves."""
    if not request.allowed:
        return ()
    chosen = ("--backend", draws.backend, "--precision", draws.precision, "--allow", "")
    return (*chosen, "--batch-size", str(draws.batch_size))


def merge(paths: list[Path]) -> str:
    """Merge shards of votes and certify them as was asked for; return the table to show."""
    certify, report = requests.settings()
    header, rows, path = _merged(paths)
    certify = dataclasses.replace(certify, alpha=header.alpha)
    if header.certificate != certify.certificates[0]:
        certify = dataclasses.replace(certify, certificates=[header.certificate])
    return _results(certify, report, header, rows, path, None)


def _merged(paths: list[Path]) -> tuple[Header, list[Row], Path]:
    header, rows = records.merge(paths)
    path = VOTES / f"{key_of(header)}.jsonl"
    records.write(path, header, rows)
    return header, rows, path


def _results(
    certify: Certify,
    report: Report,
    header: Header,
    rows: list[Row],
    path: Path,
    source: Source | None,
    radius: float | None = None,
) -> str:
    """Write certificates; return the text to show, with notes on the ``source`` if it is open.

    With a ``radius`` each image is judged at it.
    """
    certificates, alpha = certify.certificates, certify.alpha
    entry, written = certified(certify, header, rows)
    name, table = entry.name, entry.table
    tried = trial.read(_tried(header))
    warned = [f"warning: {line}" for line in trial.warnings(header, tried, rows)]
    lines = [
        *(["\n".join(warned) + "\n"] if warned else []),
        f"{tables.text([entry], radii=report.radii, confidence=report.confidence)}\n",
        *([f"stale: {header.run}: {listed(entry.stale)}"] if entry.stale and not source else []),
        f"{len(table)} images, n0 = {header.n0}, n = {header.n}, alpha = {alpha}; stopping rule "
        f"{header.stop}: {_effort(header, rows, table)}",
        f"the function: {header.backend} {header.precision} on {header.provider}",
        f"noise: {header.noise}, seed {header.seed}; --seed {header.seed} draws the same votes",
    ]
    if "transfer" in certificates:
        rule = header.rule()
        pairs = header.paired
        most, zeta = transfer.ceiling(rule, pairs=pairs, sigma=header.sigma, alpha=alpha)
        lines.insert(
            -1,
            f"With {pairs} pairs and {header.n} votes no radius above "
            f"{printed(most, UP, places=DIGITS)} can be certified, even if no pair disagrees: "
            f"{pairs} pairs cannot tell a share of {printed(zeta, UP, digits=2)} from none.",
        )
    if radius is not None:
        table = verdicts.judged(table, radius)
        files, confidence = source.files if source else {}, report.confidence
        lines[-3:-3] = [
            *verdicts.lines(
                table, radius, classes=header.classes, files=files, confidence=confidence
            ),
            "",
        ]
    if source and source.files:
        table["file"] = table["idx"].map(source.files)
    certification.write(table, written)
    if tried:
        lines.append(f"tried before: {plausibility.fact(tried, sigma=header.sigma)}")
    earlier = sorted(VOTES.glob("*.jsonl"))
    split = None
    if source:
        earlier, split = [*source.made, *earlier], source.split
    lines += repeated.line(header, earlier, split, alpha=alpha)
    if source:
        lines += [*source.said, *_left_out(name, source)]
    return "\n".join([*lines, f"certificates: {written}", f"votes: {path}"])


def certified(certify: Certify, header: Header, rows: list[Row]) -> tuple[Entry, Path]:
    """Return votes as an entry of a table, and where its certificates are to be written."""
    table = certification.certify(
        header, rows, certificates=certify.certificates, alpha=certify.alpha
    )
    name = _written_as(header, certify)
    return _entry(name, header, rows, table, certify), RESULTS / f"{name}.csv"


def _effort(header: Header, rows: list[Row], table: pd.DataFrame) -> str:
    drawn = int(table["n"].sum()) + header.n0 * sum(bool(row.n0) for row in rows)
    most = len(table) * (header.n0 + header.n)
    return f"{drawn:,} draws, {100 * drawn / most:.3g} % of all"


def _left_out(name: str, source: Source) -> list[str]:
    """Return lines on the files that were not used; all are listed in a separate file."""
    if not source.left_out:
        return []
    path = _left_out_file(name)
    lines = [printable(line) for line in source.left_out]
    write_text(path, "".join(f"{line}\n" for line in lines))
    some = [f"left out: {line}" for line in lines[:SHOWN]]
    count, total = len(source.left_out), len(source.left_out) + len(source.files)
    return [*some, f"left out: {count} of {total} files, listed in {path}"]


def _entry(
    name: str,
    header: Header,
    rows: list[Row],
    table: pd.DataFrame,
    certify: Certify,
) -> Entry:
    if header.backend.startswith(FOREIGN):
        made = Described(model=header.run, method="", stale=())
    else:
        made = Present().classifier(header)
    return Entry(
        name=name,
        model=made.model,
        method=made.method,
        sigma=header.sigma,
        table=table,
        alpha=certify.alpha,
        sigma_train=made.sigma,
        seed=made.seed,
        votes=(header, rows),
        certificate=certify.certificates[0],
        stale=made.stale,
    )


def _votes(request: Request, source: Source) -> tuple[Header, list[Row], Path]:
    wanted = header_of(request, source)
    if made := _made(wanted, source):
        return made
    path = VOTES / f"{key_of(wanted)}.jsonl"
    title = f"certify {source.name}" + (f" {wanted.shard}" if wanted.shard != "1/1" else "")
    with locks.alone(path.with_suffix(".lock"), title, say=sources.note):
        if made := _made(wanted, source):  # by the process that we waited for
            return made
        _prepare(request, wanted, source)
        session.run(
            source.smoothed.backend,
            wanted,
            source.split,
            journal=path.with_suffix(".journal"),
            path=path,
            title=title,
            reference=source.reference,
            earlier=[*source.made, *sorted(VOTES.glob("*.jsonl"))],
            began=request.began,
        )
    return *records.read(path), path


def _made(wanted: Header, source: Source) -> tuple[Header, list[Row], Path] | None:
    """Return the votes that ``wanted`` defines, if they exist; shards are merged."""
    for path in (*source.made, VOTES / f"{key_of(wanted)}.jsonl"):
        if path.exists():
            header, rows = records.read(path)
            if header == wanted:
                return header, rows, path
    parts = _parts(wanted) if wanted.shard == "1/1" else []
    return _merged(parts) if parts else None


def _parts(wanted: Header) -> list[Path]:
    """Return the files of all shards of ``wanted``, or nothing if one is missing."""
    found: dict[int, list[Path]] = {}  # number of shards -> their files
    for path in sorted(VOTES.glob("*.jsonl")):
        with suppress(VotesError):  # a damaged file is ignored
            header = records.definition(path)
            if dataclasses.replace(header, shard=wanted.shard) == wanted:
                found.setdefault(int(header.shard.partition("/")[2]), []).append(path)
    return next((paths for count, paths in found.items() if len(paths) == count), [])


def _prepare(request: Request, wanted: Header, source: Source) -> None:
    """Refuse a request that cannot be certified, before anything is drawn."""
    asked = request.certify
    certification.require(wanted, certificates=asked.certificates, alpha=asked.alpha)
    require_place(_left_out_file(_written_as(wanted, asked)))  # the longest of the file names
    trial.ensure(_tried(wanted), wanted, source)


def _tried(header: Header) -> Path:
    return VOTES / f"{key_of(dataclasses.replace(header, shard='1/1'))}.tried.json"


def header_of(request: Request, source: Source) -> Header:
    """Return the definition of the votes that a request asks for.

    The noise for image files is fresh unless the request has a seed: somebody who knows the noise
    can construct an image whose certificate is false.
    """
    header = procedure.header(
        source.smoothed.backend,
        source.split,
        source.name,
        source.smoothed.draws,
        request.stopping,
        shard=request.shard,
        budget=request.budget,
    )
    if isinstance(request.source, Foreign) and not request.seeded:
        return dataclasses.replace(header, seed=_kept_seed(header, source))
    return header


def _kept_seed(header: Header, source: Source) -> int:
    """Return an unpredictable seed, drawn once for these images and this request.

    If only labels differ from an earlier request, or what else votes do not depend on, it is that
    of its votes. Not if they are of other images: those were added with the seed in view.
    """
    key = key_of(dataclasses.replace(header, seed=0, shard="1/1"))
    path = VOTES / f"{key}.seed"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".seed-{os.getpid()}")
        seed = _seed_of_votes(header, source)
        part.write_text(f"{secrets.randbits(64) if seed is None else seed}\n")
        try:
            os.link(part, path)  # the first of several processes decides
        except FileExistsError:
            pass
        finally:
            part.unlink()
    return int(path.read_text())


def _seed_of_votes(header: Header, source: Source) -> int | None:
    """Return the seed of votes of the same images that answer this request; None without any."""
    for path in sorted(VOTES.glob("*.jsonl")):
        with suppress(VotesError):  # a damaged file is ignored
            found = records.definition(path)
            if (found.subset, found.images) == (header.subset, header.images):
                wanted = dataclasses.replace(header, seed=found.seed)
                if procedure.reusable([path], wanted, source.split):
                    return found.seed
    return None


def key_of(header: Header) -> str:
    """Return the name under which votes are kept."""
    return hashlib.sha256(json.dumps(dataclasses.asdict(header)).encode()).hexdigest()[:16]


def _name(header: Header) -> str:
    """Return the name of a request's files, from everything that options can change."""
    parts = [header.run, f"e{header.sigma:g}", f"n{header.n}", header.stop]
    if (radii := header.stopping.get("radii", RADII)) != RADII:
        parts += ["r" + (f"{min(radii):g}to{max(radii):g}" if radii[1:] else f"{radii[0]:g}")]
    parts += [header.split] if header.split == "choice" else []
    parts += [header.subset.replace(":", "")] if header.subset != "all" else []
    parts += ["label-aware"] if header.label_aware else []
    parts += [f"b{header.budget:g}s"] if header.budget else []
    if header.backend.startswith(FOREIGN):  # its name does not identify it
        parts += [key_of(dataclasses.replace(header, shard="1/1"))[:8]]
    else:
        usual = ((key, getattr(DRAWS, key)) for key in ("backend", "precision", "noise"))
        parts += [getattr(header, key) for key, value in usual if getattr(header, key) != value]
        parts += [f"seed{header.seed}"] if header.seed != DRAWS.seed else []
    parts += [header.certificate] if header.certificate != DRAWS.certificate else []
    return "-".join(parts)


def _written_as(header: Header, certify: Certify) -> str:
    return f"{_name(header)}-a{certify.alpha:g}"


def _left_out_file(name: str) -> Path:
    return RESULTS / f"{name}-left-out.txt"


def _shard(header: Header) -> Path:
    return RESULTS / f"{_name(header)}-shard{header.shard.replace('/', 'of')}.jsonl"
