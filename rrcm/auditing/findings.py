"""Findings of an audit, and the checks of rows that need no inference."""

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
from statsmodels.stats.proportion import proportion_confint

from rrcm.certification import plausibility
from rrcm.certification.certify import ALIKE, NORMS, UP, printed, swapped
from rrcm.certification.votes.counts import ABSTAIN
from rrcm.core.errors import CertificateError
from rrcm.core.labels import UNKNOWN

ERROR, WARNING, NOTE = "error", "warning", "note"
FAR = 1e6  # no two pictures with pixels of [0, 1] are so far apart
FEW = 3  # rows that may agree by chance
FEWEST = 10  # rows in which a pattern is hardly there by chance
MOST = 10**9  # draws of an image
REGULAR = 0.9  # share of equal steps from row to row in a regular selection


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One sentence about some lines of a file, or about the file where ``lines`` is empty.

    An ``error`` is a reason not to trust the table, a ``warning`` a reason to look closer; a
    ``note`` limits what the table shows. ``of_stated``: it is only one beside a stated value.
    """

    level: str
    lines: tuple[int, ...] = ()
    text: str
    of_stated: bool = False

    def __str__(self) -> str:
        where = f"{some(self.lines, 'line')}: " if self.lines else ""
        return f"{self.level}: {where}{self.text}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Inferred:
    """Inferred settings of ``rows`` rows of a table; None is unknown.

    ``early``: all drawing stopped before the n that was asked for; ``n`` is the most there was.
    ``rounding`` is that of the radii, as in `AttainableRadii`.
    """

    n: int | None
    alpha: float | None
    sigma: float | None
    rows: int
    early: bool = False
    rounding: str = "down"

    def __str__(self) -> str:
        """``n = 1,000, alpha = 0.001, sigma unknown``."""
        draws = f"n = {self.n:,}" if self.n is not None else "n unknown"
        draws += " (the most that was drawn)" * self.early
        values = (
            f"{name} = {value:g}" if value is not None else f"{name} unknown"
            for name, value in (("alpha", self.alpha), ("sigma", self.sigma))
        )
        return ", ".join((draws, *values))


@dataclass(frozen=True, kw_only=True, slots=True)
class Stated:
    """Settings that the user states; None is not stated.

    ``images`` are those of the data set that the table's were selected from, ``values`` those of
    an image: of Gaussian noise, a radius of linf is one of l2 divided by their root.
    """

    n: int | None = None
    alpha: float | None = None
    sigma: float | None = None
    images: int | None = None
    values: int | None = None

    def __post_init__(self) -> None:
        if not (
            (self.n is None or 0 < self.n <= MOST)
            and (self.alpha is None or 0 < self.alpha < 1)
            and (self.sigma is None or 0 < self.sigma < math.inf)
            and (self.images is None or self.images > 0)
            and (self.values is None or self.values > 0)
        ):
            raise CertificateError(
                "need 0 < n <= 10^9, 0 < alpha < 1, sigma > 0, images > 0 and values (--linf) > 0; "
                f"got n={self.n}, alpha={self.alpha}, sigma={self.sigma}, images={self.images}, "
                f"values={self.values}"
            )


def some(numbers: tuple[int, ...], noun: str) -> str:
    """Numbers as text: runs as a–b, and at most eight of them."""
    ordered = np.sort(numbers)
    runs = np.split(ordered, np.flatnonzero(np.diff(ordered) != 1) + 1)
    shown = [f"{run[0]}" if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs[:8]]
    more = sum(map(len, runs[8:]))
    text = ", ".join(shown) + (f" and {more} more" if more else "")
    return f"{noun}{'s' * (len(numbers) > 1)} {text}"


def of_rows(table: pd.DataFrame, images: int | None = None) -> list[Finding]:
    """Findings that need ``idx, label, predict, radius, correct`` only.

    Args:
        table: Certificates, one row per image, of any values; the index are lines of its file.
        images: How many there are to select from, if it is known.
    """
    findings = [*_impossible(table), *_correct(table), *_attacked(table)]
    findings += [*_shifted(table), *_abstaining(table)]
    if not table.attrs.get("numbered"):  # else `idx` was not in the file, but counted from its rows
        odd = _images(table)
        findings += odd
        findings += [] if images is None else unfinished(table["idx"], images, known=bool(odd))
    else:
        findings += _unnamed(table, images)
    return findings + _coverage(table["label"].to_numpy())


def at(level: str, lines: pd.Index, wrong: np.ndarray | pd.Series, text: str) -> list[Finding]:
    """One finding about the ``lines`` that are ``wrong``, bool [N], if there are any."""
    where = tuple(lines[np.asarray(wrong)].tolist())
    return [Finding(level=level, lines=where, text=text)] if where else []


def unlabelled(labels: np.ndarray) -> list[Finding]:
    """A warning if some of ``labels`` [N] are unknown: such an image is neither right nor wrong."""
    unknown = int((labels == UNKNOWN).sum())
    if unknown in (0, len(labels)):
        return []
    text = f"{unknown:,} of {len(labels):,} images have no label: an accuracy is of the others only"
    return [Finding(level=WARNING, text=text)]


def _impossible(table: pd.DataFrame) -> list[Finding]:
    """Errors about values that no row of any table has."""
    radius, predict = table["radius"].to_numpy(), table["predict"].to_numpy()
    finite = np.isfinite(radius)
    swap = (
        f"the label is {UNKNOWN} and the radius 0, as of an abstention, but no prediction is "
        f"{ABSTAIN}: are `label` and `predict` swapped?"
    )
    wrong = {
        swap: swapped(table),  # an answer has a radius, whatever its label
        "the radius is not a finite number": ~finite,
        "the radius is negative": finite & (radius < 0),
        f"no pictures are {FAR:,.0f} apart": finite & (radius >= FAR),
        "an abstention has a radius": finite & (radius > 0) & (predict == ABSTAIN),
        "the prediction is no class": predict < ABSTAIN,
        "the label is no class": table["label"] < UNKNOWN,
    }
    if "norm" in table:
        wrong[f"the norm is none of {', '.join(NORMS)}"] = ~table["norm"].isin(NORMS)
    if "top" in table:
        wrong["top is not 1 or more"] = table["top"] < 1
    found = [one for text, rows in wrong.items() for one in at(ERROR, table.index, rows, text)]
    mixed = [name for name in ALIKE if name in table and table[name].nunique() > 1]
    text = "{} of several values of {}: tables of each, in one"
    return found + [Finding(level=ERROR, text=text.format(ALIKE[name], name)) for name in mixed]


def _attacked(table: pd.DataFrame) -> list[Finding]:
    """An error if an attack found a picture of another class within a certified radius."""
    if "attacked" not in table:
        return []
    within = (table["predict"] == table["label"]) & (table["attacked"] <= table["radius"])
    text = (
        "the attack succeeded within the certified radius: one of them is false, by chance with "
        "probability 2 alpha at most"
    )
    return at(ERROR, table.index, within, text)


def _correct(table: pd.DataFrame) -> list[Finding]:
    correct = table["correct"].to_numpy().astype(np.float64)
    known = table["label"] != UNKNOWN
    right = (known & (table["predict"] == table["label"])).to_numpy()
    odd = (correct != 0) & (correct != 1)
    if not odd.any():
        text = "`correct` contradicts label and prediction"
        return at(ERROR, table.index, (correct == 1) != right, text)
    steps = np.diff(correct, prepend=0.0)
    if (steps >= 0).all() and np.isin(steps, (0, 1)).mean() >= REGULAR:  # rows may be missing
        text = "`correct` is a running total, not 0 or 1: who averages it gets nonsense"
        wrong = "; it also contradicts label and prediction"
        text += wrong * int(((steps == 1) != right)[steps <= 1].any())
        return at(ERROR, table.index, odd, text)
    return at(ERROR, table.index, odd, "`correct` is neither 0 nor 1")


def _images(table: pd.DataFrame) -> list[Finding]:
    idx = table["idx"].to_numpy()
    again = table["idx"].duplicated(keep=False).to_numpy()
    findings = at(ERROR, table.index, again, "an image comes more than once")
    findings += at(ERROR, table.index, idx < 0, "`idx` is negative")
    images = np.unique(idx)
    steps = np.diff(images)
    if len(steps) < FEWEST:
        return findings
    values, counts = np.unique(steps, return_counts=True)
    step = values[counts.argmax()]
    holes = np.flatnonzero(steps != step)
    regular = (steps % step == 0).all() and steps.sum() / step - len(steps) <= len(steps) / 10
    if len(holes) and regular and counts.max() >= REGULAR * len(steps):
        missing = [i for h in holes for i in range(images[h] + step, images[h + 1], step)]
        of = f"regular selection, every {step}" if step > 1 else "gapless selection"
        gone = some(tuple(missing), "image")
        text = f"{gone} missing from an otherwise {of}: left out for a reason?"
        findings.append(Finding(level=WARNING, text=text))
    return findings


def _unnamed(table: pd.DataFrame, images: int | None) -> list[Finding]:
    """Findings about rows that do not name their images: too many, too few, or some twice."""
    rows, first = len(table), plausibility.begins_anew(table)
    again = (np.arange(rows) >= first) & (first > 0)
    found = at(ERROR, table.index, again, "the rows from the first on, once more")
    if images is None or not rows or rows == -(-images // -(-images // rows)):  # every k-th
        return found
    level, text = ERROR if rows > images else WARNING, f"{rows:,} rows of {images:,} images"
    text += ": it is unfinished or a part, not every k-th from the first" * (rows < images)
    return [*found, Finding(level=level, text=text, of_stated=True)]


def unfinished(idx: pd.Series, images: int, *, known: bool) -> list[Finding]:
    """A warning if a selection of so many ``images`` begins late, ends early, or has fewer.

    Of missing ones between its ends only if it is not ``known`` by another finding.
    """
    rows = np.unique(idx)
    if not len(rows):
        return []
    if rows[-1] >= images:
        text = f"image {rows[-1]} of {images:,}, which are counted from 0"
        return [Finding(level=ERROR, text=text, of_stated=True)]
    step = int(np.bincount(np.diff(rows)).argmax()) if len(rows) > 1 else images
    late, early = rows[0] >= step, rows[-1] + step < images
    selected = -(-images // step)
    if late or early:
        of = f"{selected:,} images" + f", every {step}" * (step > 1)
        ends = f"from image {rows[0]} to {rows[-1]}"
        text = f"{len(rows):,} of {of}: it is unfinished or a part, {ends} of {images:,}"
    elif known or len(rows) >= selected:
        return []
    else:
        missing = f"{selected - len(rows):,} of {selected:,} images are missing"
        text = f"{missing}, and none of them at an end: left out for a reason?"
    return [Finding(level=WARNING, text=text, of_stated=True)]


def _shifted(table: pd.DataFrame) -> list[Finding]:
    """A warning if most predictions would be right with 1 added to, or taken from, each."""
    answered = table[(table["predict"] != ABSTAIN) & (table["label"] != UNKNOWN)]
    added, right = plausibility.shift(answered["predict"].tolist(), answered["label"].tolist())
    if not right:
        return []
    text = (
        f"{right:,} of {len(answered):,} predictions are the label {added:+d}: does one of the "
        "columns count from 1?"
    )
    return [Finding(level=WARNING, text=text)]


def _abstaining(table: pd.DataFrame) -> list[Finding]:
    """A warning if a class that no image is of stands for abstentions: its radii are all 0."""
    label, predict, radius = (table[name] for name in ("label", "predict", "radius"))
    highest = int(predict.max()) if len(table) else UNKNOWN
    of_it = predict == highest
    none = (label.max() > UNKNOWN) & (highest > label.max()) & (predict != ABSTAIN).all()
    if not none or of_it.sum() <= FEW or (radius[of_it] > 0).any():
        return []
    text = (
        f"class {highest} is the label of no image, and always has radius 0: does it stand for an "
        f"abstention, which is {ABSTAIN}?"
    )
    return at(WARNING, table.index, of_it, text)


def _coverage(labels: np.ndarray) -> list[Finding]:
    known = labels[labels != UNKNOWN]
    if not len(known):
        text = "no image has a label: the table says nothing about accuracy"
        return [Finding(level=NOTE, text=text)] if len(labels) else []
    low, high = proportion_confint(len(known) // 2, len(known), alpha=0.05, method="wilson")
    half = printed((high - low) / 2, UP, places=1, scale=100)
    images = f"{len(known)} {'labelled ' * (len(known) < len(labels))}image{'s' * (len(known) > 1)}"
    text = f"{images}: a certified accuracy is known to ±{half} points at most"
    return [Finding(level=NOTE, text=text), *unlabelled(labels)]
