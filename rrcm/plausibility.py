"""Signs that a table of certificates says little, whatever its radii: none of them is a proof.

A constant function has certificates of any radius, and so has a network that noise makes constant.
Both are certified correctly, and both are hardly ever meant.
"""

from collections import Counter
from dataclasses import dataclass

import numpy as np
from scipy import stats

from rrcm.votes import UNKNOWN, Row

FEWEST = 10  # pictures, below which nothing is said of one class or of changed answers
NEARLY = 0.95  # a share of answers: nearly all
LEVEL = 0.01  # a share of right answers that chance exceeds no more often is above chance


@dataclass(frozen=True, kw_only=True, slots=True)
class Tried:
    """A classifier's answers to N pictures: classes, and labels or UNKNOWN, each [N].

    ``plain`` are the answers without noise, ``noisy`` those to one noisy draw of each picture.
    """

    labels: list[int]
    plain: list[int]
    noisy: list[int]


def fact(tried: Tried, *, sigma: float) -> str:
    """How many answers are right, or without labels kept, under noise ``sigma``, in a line."""
    under = f"under noise of sigma = {sigma:g}"
    total = sum(label != UNKNOWN for label in tried.labels)
    if not total:
        same = sum(a == b for a, b in zip(tried.plain, tried.noisy, strict=True))
        return f"{same} of {len(tried.labels)} pictures keep their answer {under}"
    plain, noisy = _right(tried.plain, tried.labels), _right(tried.noisy, tried.labels)
    return f"{plain} of {total} right without noise, {noisy} of {total} {under}"


def smoothed(rows: list[Row]) -> tuple[list[int], list[int]]:
    """The labels and the answers under noise of the images that were drawn."""
    drawn = [row for row in rows if row.n0]
    answers = [max(row.n0, key=lambda c, n0=row.n0: (n0[c], -c)) for row in drawn]
    return [row.label for row in drawn], answers


def warnings(
    tried: Tried | None,
    labels: list[int],
    answers: list[int],
    *,
    classes: list[str],
    sigma: float,
) -> list[str]:
    """What is implausible of a classifier, in a line each, with what to check.

    Args:
        tried: Answers with and without noise, where there are any.
        labels: Those of the images certified, or UNKNOWN, [N].
        answers: The classes that they get under noise, [N].
        classes: The names of all classes.
        sigma: The noise.
    """
    under = f"under noise of sigma = {sigma:g}"
    found = []
    if tried:
        plain = _poor(tried.plain, tried.labels, classes, "without noise")
        if plain:
            found.append(
                f"{plain}: check mean, std, size, channels, the order of the classes, and that the "
                "network was trained"
            )
        elif changed := _changed(tried, under):
            found.append(
                f"{changed}: the network seems not to have been trained for so much noise; a "
                "certificate is about the answer under noise"
            )
        if plain and _poor(tried.noisy, tried.labels, classes, under):
            return found  # the noise is not the cause
    if noisy := _poor(answers, labels, classes, under):
        found.append(
            f"{noisy}: check sigma, and that the network was trained for so much noise; where it "
            "hides the pictures, radii may be large, and mean nothing"
        )
    return found


def _poor(answers: list[int], labels: list[int], classes: list[str], when: str) -> str:
    """What makes answers look as if the pictures had not been seen; empty where nothing does."""
    if not answers:
        return ""
    ((most, count),) = Counter(answers).most_common(1)
    known = [label for label in labels if label != UNKNOWN]
    others = sum(label != most for label in known)
    if len(answers) >= FEWEST and count >= NEARLY * len(answers):
        if not known:
            return f"{count} of {len(answers)} pictures are answered {classes[most]!r} {when}"
        if others > 2 * (1 - NEARLY) * len(known):
            return (
                f"{count} of {len(answers)} pictures are answered {classes[most]!r} {when}, though "
                f"{others} are labelled otherwise"
            )
    total, right, chance = len(known), _right(answers, labels), 1 / len(classes)
    few = chance**total > LEVEL  # too few to tell
    if not few and stats.binom.sf(right - 1, total, chance) > LEVEL:
        return f"{right} of {total} pictures are right {when}, no better than chance"
    return ""


def _changed(tried: Tried, under: str) -> str:
    """Whether most of the answers that there were are lost in noise; empty where they are not."""
    if len(tried.labels) < FEWEST:
        return ""
    if any(label != UNKNOWN for label in tried.labels):
        plain, noisy = _right(tried.plain, tried.labels), _right(tried.noisy, tried.labels)
        total = sum(label != UNKNOWN for label in tried.labels)
        lost = f"{plain} of {total} pictures are right without noise, and {noisy} {under}"
        return lost if noisy < plain / 2 else ""
    changed = int(np.sum(np.array(tried.plain) != tried.noisy))
    total = len(tried.plain)
    return (
        f"{changed} of {total} pictures change their answer {under}" if changed > total / 2 else ""
    )


def _right(answers: list[int], labels: list[int]) -> int:
    return sum(answer == label for answer, label in zip(answers, labels, strict=True))
