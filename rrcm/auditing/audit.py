"""Audits a table of certificates: infers how it was made, and finds rows that contradict it.

An auditor has the table and not the noise. It reports values that no correct computation writes;
docs/auditing.md lists the faults that it detects and measures how often it does.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from rrcm.auditing import infer, replay, usual
from rrcm.auditing.findings import (
    ERROR,
    NOTE,
    WARNING,
    Finding,
    Inferred,
    Stated,
    of_rows,
    unfinished,
    unlabelled,
)
from rrcm.auditing.recount import Recount, recount
from rrcm.auditing.shares import perhaps, spent
from rrcm.certification import tables, tsv
from rrcm.certification.votes import records
from rrcm.certification.votes.records import Header

UNUSUAL = "it needs {}; such a {} is unusual: state it if it is so"
ROUGH = 1.001  # ratio of the limits of a sigma, above which it counts as unknown


@dataclass(frozen=True, kw_only=True, slots=True)
class Audit:
    """The result of an audit; ``inferred`` are equally good explanations, the best first.

    ``trusted`` is False after any error, and None where too little could be checked, or where only
    an unusual value that nobody stated explains the table.
    """

    path: Path
    rows: int
    inferred: list[Inferred]
    findings: list[Finding]
    trusted: bool | None
    verdict: str

    def __str__(self) -> str:
        lines = [f"{self.path}: {self.rows} image{'s' * (self.rows != 1)}"]
        for number, one in enumerate(self.inferred):
            lines.append(f"  {'or ' * (number > 0)}{one} ({one.rows} rows)")
        lines += [f"  {finding}" for finding in self.findings]
        return "\n".join([*lines, f"  verdict: {self.verdict}"])


def audit(
    path: Path,
    *,
    n: int | None = None,
    alpha: float | None = None,
    sigma: float | None = None,
    images: int | None = None,
    values: int | None = None,
) -> Audit:
    """Examine votes (.jsonl), or a table of certificates as by `tables.scan` (any other name).

    Guarantee: a finding of level ``error`` is a value that no correct run writes, up to the rate of
    false alarms in docs/auditing.md. A table without findings is not proved to be right.

    Args:
        path: The file.
        n: Stated draws per image; tried even if unusual.
        alpha: Stated failure probability.
        sigma: Stated noise level, in pixels of [0, 1].
        images: How many images there are to select from; a table that leaves off is then named.
        values: The values of an image, by which radii of linf are explained.

    Raises:
        DataError, VotesError: The file is missing or cannot be read.
        CertificateError: A stated value makes no sense.
    """
    stated = Stated(n=n, alpha=alpha, sigma=sigma, images=images, values=values)
    if path.suffix.lower() == ".jsonl":
        return _audit_votes(path, stated)
    return of_table(path, tables.scan(path), stated)


def of_table(path: Path, table: pd.DataFrame, stated: Stated) -> Audit:
    """Audit the ``table`` that a file has, by `tables.scan`."""
    lines = np.arange(len(table)) + tsv.line(table, 0)
    examine = _audit_ours if "p_A" in table else _audit_others
    return examine(path, table.set_axis(lines), stated)


def _audit_others(path: Path, table: pd.DataFrame, stated: Stated) -> Audit:
    """Audit a table in the format of Cohen et al., which has radii but no votes."""
    header, findings = table.attrs["header"], []
    if header is None:
        text = "there is no header: readers that expect one lose the first image"
        findings.append(Finding(level=WARNING, text=text))
    elif header[:5] != tsv.COLUMNS[:5]:
        text = f"the header is not {' '.join(tsv.COLUMNS)}: readers that count columns err"
        findings.append(Finding(level=WARNING, text=text))
    if table.attrs["numbered"]:
        text = "there is no `idx`: rows cannot be matched with another table's"
        findings.append(Finding(level=NOTE, text=text))
    findings += of_rows(table, stated.images)
    scale = 1.0
    if (norm := table.attrs.get("norm")) == "linf" and stated.values:
        scale = math.sqrt(stated.values)
        if stated.sigma is not None:
            stated = replace(stated, sigma=stated.sigma / scale)
        text = f"sigma is divided by {scale:.6g} here, the root of the values of an image, for linf"
        findings.append(Finding(level=NOTE, text=text))
    elif norm:
        other = f"radii of the norm {norm} are not explained"
        other += "; --linf D explains them for images of D values" * (norm == "linf")
        return _conclude(path, len(table), [], findings, other)
    elif stated.values:
        text = "--linf was not used: radii are taken as of l2, as no column is named linf_radius"
        findings.append(Finding(level=WARNING, text=text, of_stated=True))
    inferred, more = infer.explain(table, stated)
    why = "its radii do not tell n, alpha and sigma" if not inferred else None
    possible = [one for one in inferred if not infer.apart(one, stated)]
    sigmas = [one.sigma for one in possible if one.sigma is not None]
    usually = any(usual.is_usual(one * scale, one * scale) for one in sigmas)
    if sigmas and stated.sigma is None and not usually:
        whole = replace(possible[0], sigma=scale * sigmas[0])
        values = zip(("n", "alpha", "sigma"), str(whole).split(", "), strict=True)
        free = [t for name, t in values if getattr(stated, name) != getattr(possible[0], name)]
        why = UNUSUAL.format(", ".join(free), "sigma")
    return _conclude(path, len(table), inferred, findings + more, why)


def _audit_ours(path: Path, table: pd.DataFrame, stated: Stated) -> Audit:
    """Audit certificates of this project: radii can be recomputed of L2, but not of top-k."""
    other = {"top", "norm"} & {*table}  # of top-k, each of k + 1 bounds has its share of alpha
    again = recount(table.assign(radius=0.0) if other else table, stated)
    bounds = 1 + int(table["top"].max()) if "top" in table and len(table) else 1
    times, divided = (bounds, []) if other else spent(again, stated.alpha)
    if again.level is not None:
        low, high = again.level
        again = replace(again, level=(times * low, times * high))
    apart = [Finding(level=one, text=text, of_stated=True) for one, text in _apart(again, stated)]
    findings = [*of_rows(table, stated.images), *apart, *again.findings]
    if other:
        untold = "radii of top-k and of other norms are not explained; audit the votes (.jsonl)"
        return _conclude(path, len(table), [], findings, untold)
    alpha, sigma = (
        None if interval is None else float(f"{math.sqrt(interval[0] * interval[1]):.6g}")
        for interval in (again.level, again.sigma)
    )
    if again.two_classes and again.sigma and again.sigma[1] > ROUGH * again.sigma[0]:
        sigma = None
        text = "sigma is between {:.4g} and {:.4g}".format(*again.sigma)
        findings.append(Finding(level=NOTE, text=text))
    if again.adaptive:
        text = (
            "draws stopped early, so bounds hold at several numbers of draws, some of them from "
            "earlier draws: p_A and radii are only compared with unanimous votes, which need an "
            f"alpha of {again.least:.2g} at least"
        )
        findings.append(Finding(level=NOTE, text=text))
    findings += divided
    inferred = [
        Inferred(n=again.n, alpha=alpha, sigma=sigma, rows=len(again.claims), early=again.early)
    ]
    why = None if len(again.claims) and again.sigma else "no image has a radius that votes explain"
    if again.sigma and stated.sigma is None and not usual.is_usual(*again.sigma):
        why = UNUSUAL.format(f"sigma = {math.sqrt(math.prod(again.sigma)):.6g}", "sigma")
    if stated.alpha is None and again.least > max(usual.ALPHAS) * (1 + usual.SLACK):
        why = UNUSUAL.format(f"alpha = {again.least:.4g} or more", "alpha")
    return _conclude(path, len(table), inferred if len(again.claims) else [], findings, why)


def _apart(again: Recount, stated: Stated) -> Iterator[tuple[str, str]]:
    """Levels and texts about stated values that contradict a recomputed table."""
    if stated.n is not None and len(again.claims) and again.n != stated.n:
        made = f"up to {again.n:,} draws were made"
        if again.adaptive and again.n < stated.n:
            yield NOTE, f"{made} of the {stated.n:,} stated: all stopped early"
        else:
            yield ERROR, f"{made}, not {stated.n:,} as stated"
    if stated.alpha is not None:
        said, (low, high) = f"{stated.alpha:g}", again.level or (0.0, 0.0)
        if low > stated.alpha * (1 + 1e-6):
            yield ERROR, f"bounds are at alpha = {low:.4g}, not at {said} as stated"
        elif high < 0.9 * stated.alpha and (again.adaptive or again.level is None):
            yield NOTE, f"the table does not tell whether alpha is {said} as stated, or less"
        elif high < 0.9 * stated.alpha and not perhaps(high, stated.alpha):
            yield WARNING, f"bounds are at alpha = {high:.4g}, less than the {said} stated"
    if stated.sigma is not None and again.sigma is not None:
        low, high = again.sigma
        if not usual.agree(stated.sigma, low, high):
            yield ERROR, f"radii are of sigma = {low:.9g}, not of {stated.sigma:.9g} as stated"


def _audit_votes(path: Path, stated: Stated) -> Audit:
    """Audit votes, whose header records how they were made, by repeating decisions to stop."""
    header, rows = records.read(path)
    findings = replay.replay(header, rows) + unlabelled(np.array([row.label for row in rows]))
    if stated.images is not None:
        findings += unfinished(pd.Series([row.idx for row in rows]), stated.images, known=False)
    findings += otherwise(header, stated)
    inferred = [Inferred(n=header.n, alpha=header.alpha, sigma=header.sigma, rows=len(rows))]
    return _conclude(path, len(rows), inferred, findings, None if rows else "there are no images")


def otherwise(header: Header, stated: Stated) -> list[Finding]:
    """Findings about stated values that the header of votes contradicts."""
    findings = []
    for name in ("n", "alpha", "sigma"):
        value, written = getattr(stated, name), getattr(header, name)
        if value is None or math.isclose(value, written, rel_tol=1e-9):
            continue
        if name != "sigma" or not usual.agree(value, written, written):
            text = f"votes are of {name} = {written:.9g}, not of {value:.9g} as stated"
            serve = name == "alpha" and header.stop == "none"
            also = "; all n draws were made of every image, which serve every alpha" * serve
            level = NOTE if serve else ERROR
            findings.append(Finding(level=level, text=text + also, of_stated=True))
    return findings


def _conclude(
    path: Path, rows: int, inferred: list[Inferred], findings: list[Finding], why: str | None
) -> Audit:
    """Sort the findings and conclude; ``why`` is the reason why nothing could be checked."""
    order = sorted(findings, key=lambda finding: (ERROR, WARNING, NOTE).index(finding.level))
    errors = sum(finding.level == ERROR for finding in findings)
    if errors:
        more = f", and {errors - 1} more" if errors > 1 else ""
        trusted, verdict = False, f"cannot be trusted: {order[0].text}{more}"
    elif why:
        trusted, verdict = None, f"cannot be checked: {why}"
    else:
        trusted, verdict = True, "can be trusted as far as a table shows"
    return Audit(
        path=path, rows=rows, inferred=inferred, findings=order, trusted=trusted, verdict=verdict
    )
