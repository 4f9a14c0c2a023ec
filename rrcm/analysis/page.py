"""``rrcm.report``: certified accuracy of answers from Python, as a table and as a page."""

import dataclasses
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from torch import Tensor

from rrcm.analysis import report
from rrcm.analysis.entries import Entry, beyond, default_radii, from_votes
from rrcm.analysis.presentation import tables
from rrcm.certification import plausibility
from rrcm.certification.answers import Answers
from rrcm.certification.votes.records import Row
from rrcm.config.certification import Report
from rrcm.config.defaults import CONFIDENCE
from rrcm.core import arguments
from rrcm.core.errors import DataError
from rrcm.core.files import require_place
from rrcm.core.labels import UNKNOWN
from rrcm.core.ranges import inside
from rrcm.data import duplicates, given

Labels = Sequence[int] | np.ndarray | Tensor | None


class Page:
    """The report of some answers: a ``table``, and a page to `save`."""

    def __init__(
        self, entries: list[Entry], *, radii: list[float], confidence: float, notes: list[str]
    ) -> None:
        """``confidence`` is that of all intervals; ``notes`` are lines below the table."""
        self._entries, self._radii, self._confidence = entries, radii, confidence
        self.notes = notes

    @property
    def table(self) -> pd.DataFrame:
        """Certified accuracy at each radius with its interval, ACR, and the share that abstains."""
        return tables.accuracy_table(self._entries, radii=self._radii, confidence=self._confidence)

    def save(self, path: str | Path) -> None:
        """Write the page: one self-contained file if the name ends in .html, else a folder.

        The folder also has the curves as PNG and SVG, and every table as CSV.

        Raises:
            DataError: Some answers have labels and others do not.
        """
        path, one = Path(path), str(path).endswith(".html")
        if one:
            require_place(path)
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) if one else path
            report.write(
                self._entries,
                out,
                radii=self._radii,
                confidence=self._confidence,
                notes=self.notes,
                subject=", ".join(entry.name for entry in self._entries),
            )
            if one:
                shutil.copyfile(out / "index.html", path)

    def __repr__(self) -> str:
        """The table under its title, and the notes on it."""
        shown = tables.text(self._entries, radii=self._radii, confidence=self._confidence)
        return "\n".join([shown, *self.notes])


@arguments.checked("labels")
def of_answers(
    answers: Answers | Mapping[str, Answers],
    labels: Labels = None,
    *,
    radii: Sequence[float] | None = None,
    confidence: float = CONFIDENCE,
    top: int = 0,
) -> Page:
    """Report the answers of one classifier, or of several by name.

    Args:
        answers: From `certify`; those of several classifiers should be of the same images.
        labels: The true class of each image, -1 for unknown; by default those that `certify` had.
            Without any, the report has the share of images with an answer.
        radii: Radii of the table; by default those that were asked for, or the usual ones.
        confidence: Of all intervals.
        top: Report that the label is one of the ``top`` most probable classes.

    Raises:
        DataError: There are no answers, or there is not a label for each image, or one is not that
            of the answer.
        ConfigError: An argument is of another type or out of range.
    """
    inside("confidence", confidence)
    named = answers if isinstance(answers, Mapping) else {"classifier": answers}
    if empty := [name for name, one in named.items() if not one] or ["report"] * (not named):
        raise DataError(f"{empty[0]}: no answers were given")
    notes: list[str] = []
    entries, first = [], [row.label for row in next(iter(named.values())).rows]
    for name, one in named.items():
        rows = _labelled(one, labels)
        if one.attacked and rows != one.rows:
            raise DataError(f"{name}: attacked with other labels; attack with these ones")
        notes += duplicates.line(one.pictures, [row.label for row in rows])
        notes += [
            f"{name}: {line}" for line in plausibility.of_votes(one.header, rows, plain=one.clean)
        ]
        entry = from_votes(name, one.header, rows, top=top)
        relabelled = [row.label for row in one.rows] != first
        table = entry.table if top else entry.table.assign(**one.further)
        entries.append(dataclasses.replace(entry, method=name, relabelled=relabelled, table=table))
    radii = default_radii(entries) if radii is None else sorted({*radii})
    shown = Report(radii=radii, confidence=confidence)
    notes = [*dict.fromkeys(notes), *beyond(entries, radii)]
    return Page(entries, radii=shown.radii, confidence=confidence, notes=notes)


def _labelled(answers: Answers, labels: Labels) -> list[Row]:
    if labels is None:
        return answers.rows
    known = given.known(labels, images=len(answers), classes=answers.header.classes)
    rows = []
    for place, (row, label) in enumerate(zip(answers.rows, known.tolist(), strict=True)):
        if UNKNOWN not in (row.label, label) and row.label != label:
            raise DataError(
                f"labels: image {place} is {label} there and {row.label} in its answer; they have "
                "to be in the order of the answers"
            )
        rows.append(dataclasses.replace(row, label=label))
    return rows
