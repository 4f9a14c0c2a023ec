"""Reads certificates from a file: votes, certificates of this project, or the field's TSV."""

from collections.abc import Sequence
from pathlib import Path

from rrcm.analysis.entries import Entry
from rrcm.certification import certify, tsv
from rrcm.certification.votes import records


def read(path: Path, *, alpha: float | None = None, sigma: float | None = None) -> Entry:
    """Read an entry by suffix: votes in ``.jsonl``, certificates in ``.csv``, else the TSV.

    Votes are certified by Cohen et al.'s bound, at ``alpha`` or else at the alpha of their stopping
    rule. Other files contain neither alpha nor sigma: the arguments give them, or they are unknown.

    Raises:
        RrcmError: The file is missing, or not of the kind that its suffix promises.
    """
    if path.suffix == ".jsonl":
        header, rows = records.read(path)
        return from_votes(path.stem, header, rows, alpha=alpha)
    table = certify.read(path) if path.suffix == ".csv" else tsv.read(path)
    name = path.stem if path.suffix in (".csv", ".tsv") else path.name
    return Entry(name=name, model="", method=name, sigma=sigma, table=table, alpha=alpha)


def from_votes(
    name: str,
    header: records.Header,
    rows: list[records.Row],
    *,
    alpha: float | None = None,
    certificates: Sequence[str] = ("cohen",),
) -> Entry:
    """Certify votes at ``alpha``, or else at the alpha of their stopping rule.

    ``certificates`` are those of `rrcm.certification.certify.certify`; the first is the entry's.
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
