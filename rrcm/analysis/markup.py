"""Tables as text: GitHub markdown and LaTeX."""

import pandas as pd


def markdown(table: pd.DataFrame) -> str:
    """A table as GitHub markdown."""
    lines = [table.columns, ["---"] * len(table.columns), *table.astype(str).to_numpy().tolist()]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def latex(table: pd.DataFrame) -> str:
    """A table as a LaTeX ``tabular`` with the rules of the package booktabs."""
    escaped = table.map(_escape).rename(columns=_escape)
    text = escaped.style.hide(axis="index").to_latex(
        hrules=True, column_format="l" * min(2, len(table.columns)) + "r" * (len(table.columns) - 2)
    )
    return f"% needs \\usepackage{{booktabs}}\n{text}"


def _escape(value: object) -> str:
    symbols = {
        "σ": r"$\sigma$",
        "−": "$-$",
        "≥": r"$\ge$",
        "≤": r"$\le$",
        "\\": r"\textbackslash{}",
    }
    symbols |= {"^": r"\textasciicircum{}", "~": r"\textasciitilde{}"}
    symbols |= {c: rf"\{c}" for c in "&%$#_{}"}
    return "".join(symbols.get(character, character) for character in str(value))
