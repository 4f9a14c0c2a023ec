"""Answers the question of `--radius`: which images are certified at it, one line for each."""

from collections.abc import Mapping

import pandas as pd

from rrcm.analysis.estimation import intervals
from rrcm.analysis.presentation import tables
from rrcm.certification.certify import DOWN, printed
from rrcm.certification.votes.counts import ABSTAIN
from rrcm.core.errors import printable

SHOWN = 20  # lines; the file of certificates has all
ROBUST = "robust"  # column of that file: 1 if the image is certified at the radius


def judged(table: pd.DataFrame, radius: float) -> pd.DataFrame:
    """``table`` with the column `ROBUST`: a class, right or wrong, is certified at ``radius``."""
    robust = (table["predict"] != ABSTAIN) & (table["radius"] >= radius)
    return table.assign(**{ROBUST: robust.astype(int)})


def lines(
    table: pd.DataFrame,
    radius: float,
    *,
    classes: list[str],
    files: Mapping[int, str],
    confidence: float,
) -> list[str]:
    """A line for each of the first images of a table from `judged`, then the share of yes.

    ``files`` maps an image's index to its file, if it has one.
    """
    shown = pd.DataFrame(
        {
            f"robust at {radius}": "yes" if row.robust else "no",
            "image": printable(files.get(row.idx, str(row.idx))),
            "class": "abstains" if row.predict == ABSTAIN else printable(classes[row.predict]),
            "radius": "" if row.predict == ABSTAIN else printed(row.radius, DOWN, places=4),
        }
        for row in table.head(SHOWN).itertuples()
    )
    yes, more = int(table[ROBUST].sum()), len(table) - len(shown)
    share = intervals.wilson(yes, len(table), confidence=confidence)
    percent = tables.percent(share.value, share.low, share.high)
    return [
        shown.to_string(index=False),
        *([f"and {more} more, in the file of certificates"] if more else []),
        f"robust at {radius}: {yes} of {len(table)} images, {percent} %",
        '"no" says that it is not certified, not that a picture with another answer is near',
    ]
