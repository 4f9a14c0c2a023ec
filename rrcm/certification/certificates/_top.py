"""Top-k certificate of Jia et al. (2020), arXiv:1912.09899, theorem 1, at alpha / (k + 1) a bound.

A setting cannot select it: it has a ``k`` of its own, and certifies a class that it is given.
"""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtri

from rrcm.certification.certify import line_of
from rrcm.certification.votes import counts
from rrcm.certification.votes.counts import Certified, ImageVotes, Rule
from rrcm.certification.votes.records import Header, Row
from rrcm.config.certification import require_law
from rrcm.core.errors import CertificateError
from rrcm.core.labels import NO_CLASS, UNKNOWN

ROUNDING, FAR = 1e-14, 50.0  # sigmas: more than the error of a root, and than any radius


def radius(q: float, others: list[float], *, sigma: float) -> float:
    r"""The radius of theory.md, eq. 60, for one class among the k most probable ones.

    Of one with probability 1 - ``q`` or more, where ``others`` are the k largest bounds of other
    classes, largest first. Not positive if nothing is certified; non-increasing in each bound.
    """
    best, together = -math.inf, 0.0
    for t, bound in enumerate(reversed(others), start=1):
        together += bound
        best = max(best, _apart(-float(ndtri(q)), float(ndtri(min(together, q))), t))
    return sigma * best


def _apart(a: float, b: float, t: int) -> float:
    """The r with Phi(a - r) = Phi(b + r) / t, rounded down; not positive where there is none."""
    if t == 1:
        return (a - b) / 2

    def left(r: float) -> float:
        return float(log_ndtr(a - r) - log_ndtr(b + r)) + math.log(t)

    if left(0.0) <= 0:
        return 0.0
    return float(brentq(left, 0.0, FAR, xtol=ROUNDING / 4)) - ROUNDING


def certify(
    votes: ImageVotes, rule: Rule, *, k: int, label: int, sigma: float, alpha: float
) -> Certified:
    """Certify that the class ``label`` is one of the ``k`` most probable ones.

    Guarantee: with probability at least ``1 - alpha`` over the second round, either this abstains
    or ``label`` is among the k most probable classes of the smoothed classifier on the whole open
    L2 ball of radius. No correction for the choice of the k other classes is needed (theory.md,
    eq. 60).
    The votes of the second round must not have chosen ``label``; ``rule`` bounds each probability
    at alpha / (k + 1). ``k`` is at least 1 and below the number of classes.
    """
    level = alpha / (k + 1)
    others, times = np.unique(
        np.delete(votes.counts, label, axis=1), axis=1, return_counts=True
    )  # most classes of many have the same few votes
    bounds = [counts.at_most(rule, votes, column, level) for column in others.T]
    most = sorted(np.repeat(bounds, times).tolist(), reverse=True)[:k]
    q = rule.complement(votes.history(label), level)
    found = radius(q, most, sigma=sigma)
    return counts.conclude(votes, complement=q, radius=found, label=label)


def table(header: Header, rows: list[Row], *, k: int, alpha: float) -> pd.DataFrame:
    """One row per image, as by `certify.certify`, and the column ``top``, which is ``k``.

    The class is the label, which no vote has chosen, and without a label that of most votes of the
    first round. ``predict`` is this class or, for abstention, -1; ``n_A`` and ``p_A`` are its own.

    Raises:
        CertificateError: ``k`` is not below the number of classes, or there are too few draws.
    """
    require_law("two_class", header.noise)
    rule, level, classes = header.rule(), header.alpha_left(alpha), len(header.classes)
    if not 0 < k < classes:
        raise CertificateError(
            f"top {k}: of {classes} classes, the most probable ones are 1 to {classes - 1}"
        )
    most = counts.unanimous(rule, classes)
    if not certify(most, rule, k=k, label=0, sigma=1.0, alpha=level).radius:
        raise CertificateError(
            f"n: {header.n} votes can never certify top {k} at alpha = {alpha:g}: all would abstain"
        )
    lines = []
    for row in rows:
        votes = row.votes(classes)
        asked = votes.c_A if row.label == UNKNOWN else row.label
        got = replace(counts.NOTHING, n=max(votes.draws, default=0))
        if votes.draws and header.classes[asked] != NO_CLASS:
            got = certify(votes, rule, k=k, label=asked, sigma=header.sigma, alpha=level)
        line = line_of(row, got) | {"top": k}
        lines.append(line | ({"split": header.split} if header.split else {}))
    return pd.DataFrame(lines)
