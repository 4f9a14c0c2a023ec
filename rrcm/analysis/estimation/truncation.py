"""Truncates votes to those that sampling with a smaller n would have drawn."""

import dataclasses
from collections.abc import Iterator, Sequence

from rrcm.certification.votes.counts import ImageVotes, Rule
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
    ((shorter, found),) = truncations(header, rows, [n])
    return shorter, found


def truncations(
    header: Header, rows: list[Row], ns: Sequence[int]
) -> Iterator[tuple[Header, list[Row]]]:
    """`truncate` for each of ``ns``, ascending; looks before a smaller n stopped are not replayed.

    Raises:
        VotesError: As `truncate`.
    """
    rules = [_require(header, n) for n in ns if n != header.n]
    found: list[list[Row]] = [[] for _ in rules]
    for row in rows:
        votes, since = row.votes(len(header.classes)), 1
        for rule, cut in zip(rules, found, strict=True):
            cut.append(_replay(row, votes, rule, since))
            since = max(1, len(cut[-1].looks))
    shorter = iter(found)
    for n in ns:
        yield (header, rows) if n == header.n else (dataclasses.replace(header, n=n), next(shorter))


def _require(header: Header, n: int) -> Rule:
    """The rule for ``n``.

    Raises:
        VotesError: Votes of ``header`` cannot be truncated to ``n``.
    """
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
    return rule


def budgets(header: Header) -> list[int]:
    """The n of a series 1-2-5 at which votes can be cut, and their own n, ascending."""
    if not header.rule().nested:
        return [header.n]
    series = (look for look in header.rule().looks if str(look).rstrip("0") in ("1", "2", "5"))
    return [*(n for n in series if n < header.n and _rule(header, n)), header.n]


def _rule(header: Header, n: int) -> Rule | None:
    """The rule for ``n``, or None if it has other looks than these votes."""
    rule = dataclasses.replace(header, n=n).rule()
    return rule if rule.looks == tuple(t for t in header.rule().looks if t <= n) else None


def _replay(row: Row, votes: ImageVotes, rule: Rule, since: int) -> Row:
    """The row up to the look at which ``rule`` stops; it goes on at those before ``since``."""
    n = rule.looks[-1]
    draws = [look for look in votes.draws if look <= n]
    for seen in range(since, len(draws) + 1):
        end = END if draws[seen - 1] == n else ""
        if stop := rule.stop(votes.first(seen)) or end:
            return dataclasses.replace(row, looks=row.looks[:seen], stop=stop)
    if row.stop != BUDGET:
        raise VotesError(
            f"image {row.idx}: drawing stopped after {draws[-1]} draws, where the rule laid "
            f"out for {n} would have gone on"
        )
    return row
