"""Warns of classifiers whose certificates are valid but meaningless, such as constant functions.

A constant function, and a network that noise makes constant, have certificates of any radius. The
warnings are heuristics, not proofs.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats

from rrcm.certification.votes.records import Header, Row
from rrcm.core.labels import UNKNOWN

FEWEST = 10  # pictures; with fewer there is no warning of one class or of changed answers
SHIFTS = (1, -1)  # of labels, where one side counts from 1, or the first output is no class
NEARLY = 0.95  # share of answers that counts as nearly all
DARK = 1 / 15  # of white, the brightest pixel of pictures of 0..16 that were not scaled, or less
LEVEL = 0.01  # significance level of accuracy above chance


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialAnswers:
    """A classifier's answers to N pictures: classes, and labels or UNKNOWN, each [N].

    ``plain`` are the answers without noise, empty if they are not known, ``noisy`` those under it;
    ``brightest`` is the highest pixel of all, where 1 is white. ``unlike`` is that of the backend,
    under noise.
    """

    labels: list[int]
    plain: list[int]
    noisy: list[int]
    brightest: float = 1.0
    unlike: str = ""


def fact(tried: TrialAnswers, *, sigma: float) -> str:
    """One line: how many answers are correct with and without noise, or unchanged if unlabelled."""
    under = f"under noise of sigma = {sigma:g}"
    total = sum(label != UNKNOWN for label in tried.labels)
    if not total:
        same = sum(a == b for a, b in zip(tried.plain, tried.noisy, strict=True))
        return f"{same} of {len(tried.labels)} pictures keep their answer {under}"
    plain, noisy = _right(tried.plain, tried.labels), _right(tried.noisy, tried.labels)
    return f"{plain} of {total} right without noise, {noisy} of {total} {under}"


def begins_anew(table: pd.DataFrame) -> int:
    """The row from which a ``table`` repeats its first ones, as where runs follow each other; or 0.

    Its columns are at least ``label, predict, radius``; that many equal rows are no chance.
    """
    rows = table[["label", "predict", "radius"]].to_numpy()
    for first in np.flatnonzero((rows == rows[:1]).all(axis=1))[1:]:
        tail = rows[first:]
        if np.array_equal(tail, rows[: len(tail)]) and len(np.unique(tail, axis=0)) >= FEWEST:
            return int(first)
    return 0


def of_votes(
    header: Header,
    rows: list[Row],
    *,
    plain: list[int] | None,
    brightest: float = 1.0,
    unlike: str = "",
) -> list[str]:
    """`warnings` of votes, and of the answers ``plain`` without noise, if they are known."""
    labels, noisy = smoothed(rows)
    tried = TrialAnswers(
        labels=labels, plain=plain or [], noisy=noisy, brightest=brightest, unlike=unlike
    )
    return warnings(tried, classes=header.classes, sigma=header.sigma)


def smoothed(rows: list[Row]) -> tuple[list[int], list[int]]:
    """Labels of the sampled images, and their most frequent classes under noise.

    Ties go to the lowest class.
    """
    drawn = [row for row in rows if row.n0]
    most = [max(sorted(row.n0), key=row.n0.__getitem__) for row in drawn]
    return [row.label for row in drawn], most


def warnings(tried: TrialAnswers, *, classes: list[str], sigma: float) -> list[str]:
    """Warnings about a classifier with these ``classes``, one line each, with what to check."""
    under = f"under noise of sigma = {sigma:g}"
    lines = []
    if tried.brightest < DARK:
        lines.append(
            f"no pixel is brighter than {tried.brightest:.3g}, where white is 1: scale the "
            "pictures, if another value is their white"
        )
    if tried.unlike:
        lines.append(
            f"{tried.unlike}: other noise, pictures or normalisation, or another network, such as "
            "one with other strides, pooling or activations, which files of tensors do not show"
        )
    plain = _poor(tried.plain, tried.labels, classes, "without noise")
    if plain:
        lines.append(
            f"{plain}: {_shift(tried)}check mean, std, size, channels, the order of the classes, "
            "and that the network was trained"
        )
    elif changed := _changed(tried, under):
        lines.append(
            f"{changed}: the network seems not to have been trained for so much noise; a "
            "certificate is about the answer under noise"
        )
    noisy = _poor(tried.noisy, tried.labels, classes, under)
    if noisy and not plain:  # else the noise is not the cause
        lines.append(
            f"{noisy}: check sigma, and that the network was trained for so much noise; where it "
            "hides the pictures, radii may be large, and mean nothing"
        )
    return lines


def _poor(answers: list[int], labels: list[int], classes: list[str], when: str) -> str:
    """Reason why answers look unrelated to the pictures, one class or chance accuracy; or empty."""
    if not answers:
        return ""
    ((most, count),) = Counter(answers).most_common(1)
    known = [label for label in labels if label != UNKNOWN]
    others = sum(label != most for label in known)
    if len(answers) >= FEWEST and count >= NEARLY * len(answers):
        said = f"{count} of {len(answers)} pictures are answered {classes[most]!r} {when}"
        if not known:
            return said
        if others > 2 * (1 - NEARLY) * len(known):
            return f"{said}, though {others} are labelled otherwise"
    total, right, chance = len(known), _right(answers, labels), 1 / len(classes)
    few = chance**total > LEVEL  # too few for significance
    if few or stats.binom.sf(right - 1, total, chance) <= LEVEL:
        return ""
    said = f"{right} of {total} pictures are right {when}"
    if right <= chance * total:
        return f"{said}, no better than chance"
    halfway = (1 + chance) / 2  # where luck is not ruled out, few right answers are no evidence
    if stats.binom.cdf(right, total, halfway) > LEVEL:
        return ""
    return f"{said}, hardly better than chance"


def shift(answers: Sequence[int], labels: Sequence[int]) -> tuple[int, int]:
    """What makes most labels right when it is added to each, and how many; 0 and 0 if nothing."""
    for added in SHIFTS:
        right = sum(a == b + added for a, b in zip(answers, labels, strict=True))
        if len(labels) >= FEWEST and 2 * right > len(labels):
            return added, right
    return 0, 0


def _shift(tried: TrialAnswers) -> str:
    """The `shift` of labels that are known, in words; else empty."""
    known = [(a, b) for a, b in zip(tried.plain, tried.labels, strict=True) if b != UNKNOWN]
    added, right = shift([answer for answer, _ in known], [label for _, label in known])
    if not right:
        return ""
    return (
        f"{right} would be right with {added:+d} added to each label, as where the first "
        "output is a background class, or labels count from 1; else "
    )


def _changed(tried: TrialAnswers, under: str) -> str:
    """How many answers change under noise, if most do; else empty."""
    if len(tried.plain) < FEWEST:
        return ""
    if total := sum(label != UNKNOWN for label in tried.labels):
        plain, noisy = _right(tried.plain, tried.labels), _right(tried.noisy, tried.labels)
        lost = f"{plain} of {total} pictures are right without noise, and {noisy} {under}"
        return lost if noisy < plain / 2 else ""
    total = len(tried.plain)
    changed = total - _right(tried.plain, tried.noisy)
    lost = f"{changed} of {total} pictures change their answer {under}"
    return lost if changed > total / 2 else ""


def _right(answers: list[int], labels: list[int]) -> int:
    return sum(answer == label for answer, label in zip(answers, labels, strict=True))
