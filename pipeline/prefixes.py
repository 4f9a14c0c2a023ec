"""``rrcm certify --prefixes``: an ensemble and all its prefixes, certified from one pass."""

from contextlib import ExitStack
from pathlib import Path

from pipeline import ondemand, sampling, sources
from pipeline.requests import Request
from pipeline.sources import Source
from pipeline.stale import Present
from rrcm import certify as certification
from rrcm import locks, prefixes, votes
from rrcm.analysis import tables
from rrcm.votes import Header


def certify(request: Request) -> str:
    """Certify the first 1, 2, …, k members on a split of the data; returns the table to show.

    Votes and certificates of each are written as if it had been asked for alone.
    """
    source = sources.open_source(request)
    headers = _headers(request, source)
    paths = [ondemand.VOTES / f"{ondemand.key_of(header)}.jsonl" for header in headers]
    if not all(path.exists() for path in paths):
        asked = request.certify
        certification.require(headers[-1], certificates=asked.certificates, alpha=asked.alpha)
        _draw(source, headers, paths)
    entries, said, present = [], [], Present()
    for path in paths:
        header, rows = votes.read(path)
        entry, certificates = ondemand.certified(request.certify, header, rows, present=present)
        certification.write(entry.table, certificates)
        entries.append(entry)
        said.append(f"{header.run}: {certificates}, {path}")
    report, drawn = request.report, headers[-1]
    table = tables.text(entries, radii=report.radii, confidence=report.confidence)
    facts = (
        f"{len(entries[0].table)} images, n0 = {drawn.n0}, n = {drawn.n}, "
        f"alpha = {request.certify.alpha:g}; stopping rule {drawn.stop}"
    )
    return "\n".join([f"{table}\n", facts, *said])


def _draw(source: Source, headers: list[Header], paths: list[Path]) -> None:
    """Sample what is not there yet, alone at all of these votes."""
    title = f"certify {source.name} and its prefixes"
    with ExitStack() as stack:
        for path in sorted(paths):  # in one order, so that no two wait for each other
            lock = path.with_suffix(".lock")
            stack.enter_context(locks.alone(lock, title, say=sources.note))
        if all(path.exists() for path in paths):  # by whoever we have waited for
            return
        sampling.rows_are_alone(source.smoothed.backend, headers[-1], source.split)
        states = prefixes.sample(
            source.smoothed.backend,
            source.split,
            headers,
            paths,
            workers=sampling.workers(),
            every=sampling.save_every(),
        )
        sampling.shown(states, total=headers[-1].expected(), title=title)


def _headers(request: Request, source: Source) -> list[Header]:
    """One for each prefix, of as many members as the backend gives scores of."""
    _, members, _ = source.smoothed.backend.scores(sampling.batch(source.split, 1)).shape
    return prefixes.headers(ondemand.header_of(request, source), members)
