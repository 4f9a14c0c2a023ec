"""What a command leaves in a folder: a table to read, its numbers, and a figure of them."""

from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from rrcm.analysis import figures, markup
from rrcm.files import atomic, write_text


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
    """Write everything to the folder ``out``; returns the table as plain text, and where it is.

    ``<table>.md`` has the text ``shown``, and below it the ``note``; ``<plot>.csv`` has the
    ``numbers`` to six digits, ``<plot>.png`` and ``<plot>.svg`` the ``figure``.
    """
    below = f"\n{note}\n" if note else ""
    write_text(out / f"{table}.md", markup.markdown(shown) + below)
    with atomic(out / f"{plot}.csv") as part:
        numbers.to_csv(part, index=False, float_format="%.6g", lineterminator="\n")
    for suffix in (".png", ".svg"):
        figures.save(figure, out / f"{plot}{suffix}")
    return f"{shown.to_string(index=False)}\n{below}\ntable, numbers and figure: {out}"
