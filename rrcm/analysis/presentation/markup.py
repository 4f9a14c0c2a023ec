"""Tables as text: for a terminal, GitHub markdown and LaTeX."""

import shutil

import pandas as pd

from rrcm.core.errors import printable

WIDTH = 100  # columns of a terminal
SYMBOLS = {"σ": r"\sigma", "−": "-", "≥": r"\ge", "≤": r"\le"}  # of LaTeX


def plain(table: pd.DataFrame, *, again: int) -> str:
    """A table for this terminal; columns beyond its width, at most `WIDTH`, follow below.

    They do so behind the first ``again`` columns. A line below says if one is still too wide.
    """
    width = min(WIDTH, shutil.get_terminal_size((WIDTH, 24)).columns)
    text = table.to_string(index=False)
    if _widest(text) <= width:
        return text
    rows = table.set_index([*table.columns[:again]])
    lines = rows.to_string(line_width=width, sparsify=False).splitlines()
    text = "\n".join(line.removesuffix("  \\").rstrip() for line in lines)
    if (needed := _widest(text)) > width:
        text += f"\n(this table needs {needed} columns, this terminal has {width})"
    return text


def _widest(text: str) -> int:
    return max(map(len, text.splitlines()))


def markdown(table: pd.DataFrame) -> str:
    """A table as GitHub markdown; cells are escaped, so they can be neither markup nor columns."""
    rows = [[_cell(value) for value in row] for row in [table.columns, *table.to_numpy().tolist()]]
    lines = [rows[0], ["---"] * len(table.columns), *rows[1:]]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _cell(value: object) -> str:
    special = {"|": "&#124;", "`": "&#96;", "<": "&lt;", ">": "&gt;"}
    text = "".join(special.get(c, c) for c in printable(str(value)))
    return text.replace("](", "]&#40;")  # a link


def latex(table: pd.DataFrame) -> str:
    """A table as a LaTeX ``tabular`` with the rules of the package booktabs."""
    shown = table.map(lambda value: printable(str(value))).rename(columns=printable)
    styled = shown.style.hide(axis="index").format(escape="latex")
    text = styled.format_index(escape="latex", axis="columns").to_latex(
        hrules=True, column_format="l" * min(2, len(table.columns)) + "r" * (len(table.columns) - 2)
    )
    for symbol, command in SYMBOLS.items():
        text = text.replace(symbol, f"${command}$")
    return f"% needs \\usepackage{{booktabs}}\n{text}"
