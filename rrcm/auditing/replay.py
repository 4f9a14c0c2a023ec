"""Audits votes: settings that limit the result, and stops that the rule does not make."""

from rrcm.auditing.findings import ERROR, NOTE, WARNING, Finding
from rrcm.certification.votes.counts import Rule, require_enough
from rrcm.certification.votes.records import BUDGET, END, Header, Row
from rrcm.core.errors import CertificateError

IMAGES = 200  # images whose decisions to stop are repeated


def replay(header: Header, rows: list[Row]) -> list[Finding]:
    """Findings about votes that `records.read` accepts; the header is line 1.

    Raises:
        ConfigError: The header names an unknown rule or unknown constants of one.
    """
    findings = _admitted(header) + _reused(header, rows)
    try:
        rule = header.rule()
        require_enough(rule.claim.certificate, rule, alpha=rule.claim.alpha)
    except CertificateError as error:  # no votes could certify anything
        return [Finding(level=ERROR, text=str(error)), *findings]
    return findings + _stopping(header, rows, rule)


def _admitted(header: Header) -> list[Finding]:
    """Settings in the header that limit what the radii mean."""
    part = Finding(level=WARNING, text=f"only part {header.shard} of the images")
    total = header.n0 + header.n
    notes = {
        f"drawing stopped after {header.budget:g} seconds: radii depend on the machine": (
            header.budget > 0
        ),
        f"noise {header.noise} takes {header.slack * total:.2g} of alpha": header.slack > 0,
        f"the function is {header.precision}, and certificates are of that function": (
            header.precision != "fp32"
        ),
        "the images are of the choice split, on which recipes are compared: no result of its own": (
            header.split == "choice"
        ),
        f"subset {header.subset}: the first images need not stand for the data": (
            header.subset.startswith("first:")
        ),
    }
    found = [Finding(level=NOTE, text=text) for text, holds in notes.items() if holds]
    return [part] * (header.shard != "1/1") + found


def _reused(header: Header, rows: list[Row]) -> list[Finding]:
    """An error if the votes that selected the class are counted again in the bound."""
    pairs = [
        (row.n0, votes)
        for row in rows
        for draws, votes in row.looks
        if draws == header.n0 and (len(row.n0) > 1 or len(votes) > 1)
    ]
    if len(pairs) >= 5 and all(selection == votes for selection, votes in pairs):
        text = "the votes that chose the class are also among those that bound its probability"
        return [Finding(level=ERROR, text=text)]
    return []


def _stopping(header: Header, rows: list[Row], rule: Rule) -> list[Finding]:
    """An error about images whose drawing stopped at another look than the rule's."""
    wrong = [
        line
        for line, row in enumerate(rows[:IMAGES], start=2)
        if row.stop != BUDGET and row.stop != _reason(header, row, rule)
    ]
    text = f"drawing did not stop where the rule {header.stop} says: bounds may not hold"
    return [Finding(level=ERROR, lines=tuple(wrong), text=text)] if wrong else []


def _reason(header: Header, row: Row, rule: Rule) -> str | None:
    """Why the rule stops at the last look of an image and at none before; None if it does not."""
    votes = row.votes(len(header.classes))
    draws = votes.draws
    if not draws or draws != rule.looks[: len(draws)]:
        return None
    if any(rule.stop(votes.first(looks)) for looks in range(1, len(draws))):
        return None
    return rule.stop(votes) or (END if draws[-1] == header.n else None)
