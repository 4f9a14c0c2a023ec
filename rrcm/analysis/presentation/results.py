"""Writes the results of a command to a folder: a table as text, its numbers, and a figure."""

from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from rrcm.analysis.presentation import figures, markup
from rrcm.core.files import write_csv, write_text


def write(
    out: Path,
    shown: pd.DataFrame,
    numbers: pd.DataFrame,
    figure: Figure,
    *,
    table: str,
    plot: str,
    note: str = "",
) -> str:
    """Write everything to the folder ``out``; returns the table and the path as plain text.

    ``<table>.md`` has the text ``shown``, and below it the ``note``; ``<plot>.csv`` has the
    ``numbers`` to six digits, ``<plot>.png`` and ``<plot>.svg`` the ``figure``.
    """
    below = f"\n{note}\n" if note else ""
    write_text(out / f"{table}.md", markup.markdown(shown) + below)
    write_csv(numbers, out / f"{plot}.csv", digits="%.6g")
    for suffix in (".png", ".svg"):
        figures.save(figure, out / f"{plot}{suffix}")
    return f"{markup.plain(shown, again=2)}\n{below}\ntable, numbers and figure: {out}"
