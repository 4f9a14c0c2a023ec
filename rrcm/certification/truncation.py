"""Truncates votes to those that sampling with a smaller n would have drawn."""

import dataclasses

from rrcm.certification.votes.counts import Rule
from rrcm.certification.votes.records import BUDGET, END, Header, Row
from rrcm.core.errors import VotesError


def truncate(header: Header, rows: list[Row], n: int) -> tuple[Header, list[Row]]:
    """The votes of sampling with ``n`` draws instead of ``header.n``, at the same seed.

    Guarantee: the same bytes, because draws are numbered from the first one, both have the same
    looks up to ``n``, and the rule for ``n`` decides at each of them. Rules stop no later for a
    smaller n, so no draw is missing. Images that a budget of time cut short stay so.

    Raises:
        VotesError: ``n`` is no look of these votes (the error names the nearest one), or their rule
            is not nested.
    """
    if n == header.n:
        return header, rows
    if not header.rule().nested:
        raise VotesError(
            f"n = {n}: the boundaries of the rule {header.stop} belong to its n, so its votes of "
            f"{header.n} draws cannot be cut; sample with --n {n}"
        )
    rule = _rule(header, n)
    if rule is None:
        looks = sorted(header.rule().looks, key=lambda look: abs(look - n))
        nearest = next(look for look in looks if _rule(header, look))
        raise VotesError(
            f"n = {n}: votes of {header.n} draws can be cut where they were looked at only; the "
            f"nearest is {nearest}"
        )
    return dataclasses.replace(header, n=n), [_replay(header, row, rule) for row in rows]


def _rule(header: Header, n: int) -> Rule | None:
    """The rule for ``n``, or None if it has other looks than these votes."""
    rule = dataclasses.replace(header, n=n).rule()
    return rule if rule.looks == tuple(t for t in header.rule().looks if t <= n) else None


def _replay(header: Header, row: Row, rule: Rule) -> Row:
    """The row up to the look at which ``rule`` stops."""
    votes, n = row.votes(len(header.classes)), rule.looks[-1]
    draws = [look for look in votes.draws if look <= n]
    for seen, look in enumerate(draws, start=1):
        if stop := rule.stop(votes.first(seen)) or (END if look == n else ""):
            return dataclasses.replace(row, looks=row.looks[:seen], stop=stop)
    if row.stop != BUDGET:
        raise VotesError(
            f"image {row.idx}: drawing stopped after {draws[-1]} draws, where the rule laid "
            f"out for {n} would have gone on"
        )
    return row
