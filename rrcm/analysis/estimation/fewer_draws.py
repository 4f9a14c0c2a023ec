"""Certified accuracy with fewer draws, computed from the votes that were made."""

import dataclasses

import pandas as pd

from rrcm.analysis.entries import Entry, Votes
from rrcm.analysis.estimation import statistics, truncation
from rrcm.certification import certify
from rrcm.certification.certify import DOWN, printed
from rrcm.core.errors import CertificateError


def numbers(found: list[Entry], *, radii: list[float], confidence: float) -> pd.DataFrame:
    """Certified accuracy with fewer draws: a row for each entry with votes, n and radius.

    The n are a series 1-2-5. ``acr`` and ``mean_draws`` (of the second round, per image) repeat in
    all rows of an entry and n.
    """
    rows = []
    for entry in found:
        if entry.votes is None:
            continue
        ns = truncation.budgets(entry.votes[0])
        for votes in truncation.truncations(*entry.votes, ns):
            n = votes[0].n
            try:
                fewer = entry if n == entry.votes[0].n else _with(entry, votes)
            except CertificateError:
                continue  # so few draws certify nothing at this alpha, even if unanimous
            table = fewer.judged
            for radius in radii:
                share = statistics.certified_accuracy(table, radius, confidence=confidence)
                rows.append(
                    {
                        "entry": entry.name,
                        "n": n,
                        "radius": radius,
                        "value": share.value,
                        "low": share.low,
                        "high": share.high,
                        "lower_bound": fewer.lower_bound(radius),
                        "acr": statistics.average_certified_radius(table),
                        "mean_draws": float(table["n"].mean()),
                    }
                )
    columns = ["entry", "n", "radius", "value", "low", "high", "lower_bound", "acr", "mean_draws"]
    return pd.DataFrame(rows, columns=columns)


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
