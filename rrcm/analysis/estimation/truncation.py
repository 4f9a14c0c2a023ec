"""Truncates votes to those that sampling with a smaller n would have drawn, and certifies these."""

import dataclasses
from collections.abc import Iterator, Sequence

import pandas as pd

from rrcm.analysis.entries import Entry, Votes
from rrcm.analysis.estimation import statistics
from rrcm.certification import certify
from rrcm.certification.certify import DOWN, printed
from rrcm.certification.votes.counts import ImageVotes, Rule
from rrcm.certification.votes.records import BUDGET, END, Header, Row
from rrcm.core.errors import CertificateError, VotesError


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


def fewer_draws(found: list[Entry], *, radii: list[float], confidence: float) -> pd.DataFrame:
    """Certified accuracy with fewer draws: a row for each entry with votes, n and radius.

    The n are a series 1-2-5. ``acr`` and ``mean_draws`` (of the second round, per image) repeat in
    all rows of an entry and n.
    """
    parts = []
    for entry in found:
        if entry.votes is None:
            continue
        for votes in truncations(*entry.votes, budgets(entry.votes[0])):
            n = votes[0].n
            try:
                fewer = entry if n == entry.votes[0].n else _with(entry, votes)
            except CertificateError:
                continue  # so few draws certify nothing at this alpha, even if unanimous
            shares = statistics.certified_accuracy(fewer.judged, radii, confidence=confidence)
            parts.append(
                shares.assign(
                    entry=entry.name,
                    n=n,
                    lower_bound=fewer.lower_bounds(radii),
                    acr=statistics.average_certified_radius(fewer.judged),
                    mean_draws=float(fewer.judged["n"].mean()),
                )
            )
    columns = ["entry", "n", "radius", "value", "low", "high", "lower_bound", "acr", "mean_draws"]
    return pd.concat(parts)[columns] if parts else pd.DataFrame(columns=columns)


def choice_note(budget: pd.DataFrame, alphas: list[float]) -> str:
    """A note on alpha after choosing n by ``budget``; empty if there is no choice.

    Choosing one of m tables makes m tests of each image (Bonferroni).
    """
    m = int(budget.groupby("entry")["n"].nunique().max()) if len(budget) else 1
    if m == 1 or not alphas:
        return ""
    shares = ", ".join(
        f"{printed(alpha / m, DOWN, digits=2)} keeps α = {alpha}"
        for alpha in sorted({*alphas}, reverse=True)
    )
    return (
        f"Choosing n by this figure is choosing among m = {m} tests of each image: certificates at "
        f"the chosen n hold at m times their α. Certified at α / m ({shares}), they hold whichever "
        f"n is chosen: rrcm derive VOTES --n N --alpha {printed(min(alphas) / m, DOWN, digits=2)}"
    )


def _with(entry: Entry, votes: Votes) -> Entry:
    """The entry with these votes in place of its own."""
    header, rows = votes
    table = certify.certify(
        header, rows, certificates=[entry.certificate], alpha=entry.alpha or header.alpha
    )
    return dataclasses.replace(entry, table=table, votes=votes)
