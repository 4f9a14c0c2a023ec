"""Certificates from a file of any kind: our votes, our certificates, or the field's table."""

from collections.abc import Sequence
from pathlib import Path

from rrcm import certify, tsv, votes
from rrcm.analysis.entries import Entry


def read(path: Path, *, alpha: float | None = None, sigma: float | None = None) -> Entry:
    """What ``path`` holds, by its suffix: votes in ``.jsonl``, certificates in ``.csv``, else TSV.

    Votes are certified as Cohen et al. do, at ``alpha`` or else at what their rule was laid out
    for. Other files say neither alpha nor sigma: these are ``alpha`` and ``sigma``, or unknown.

    Raises:
        RrcmError: The file is missing, or not of the kind that its suffix promises.
    """
    if path.suffix == ".jsonl":
        header, rows = votes.read(path)
        return from_votes(path.stem, header, rows, alpha=alpha)
    table = certify.read(path) if path.suffix == ".csv" else tsv.read(path)
    name = path.stem if path.suffix in (".csv", ".tsv") else path.name
    return Entry(name=name, model="", method=name, sigma=sigma, table=table, alpha=alpha)


def from_votes(
    name: str,
    header: votes.Header,
    rows: list[votes.Row],
    *,
    alpha: float | None = None,
    certificates: Sequence[str] = ("cohen",),
) -> Entry:
    """Votes, certified at ``alpha`` or else at what their rule was laid out for.

    ``certificates`` are those of `rrcm.certify.certify`; the first is the entry's.
    """
    level = header.alpha if alpha is None else alpha
    table = certify.certify(header, rows, certificates=[*certificates], alpha=level)
    return Entry(
        name=name,
        model="",
        method=header.run,
        sigma=header.sigma,
        table=table,
        alpha=level,
        votes=(header, rows),
        certificate=certificates[0],
    )
