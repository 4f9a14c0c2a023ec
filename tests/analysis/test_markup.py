"""Tables as text have a line for each row, and nothing that a reader would take for code."""

import pandas as pd

from rrcm.analysis.presentation import markup

TABLE = pd.DataFrame({"σ": ["0.5", "1"], "a_b": ["50 %", "x & y"], "r = 0": ["1.0 [0, 2]", "−3"]})


def test_markdown_has_a_line_per_row_and_a_cell_per_column():
    head, rule, *lines = markup.markdown(TABLE).splitlines()
    cells = [[cell.strip() for cell in line[1:-1].split("|")] for line in (head, *lines)]

    assert cells == [list(TABLE), *TABLE.to_numpy().tolist()]
    assert rule == "|" + " --- |" * len(TABLE.columns)


def test_latex_is_a_booktabs_table():
    assert markup.latex(TABLE).splitlines() == [
        r"% needs \usepackage{booktabs}",
        r"\begin{tabular}{llr}",
        r"\toprule",
        r"$\sigma$ & a\_b & r = 0 \\",
        r"\midrule",
        r"0.5 & 50 \% & 1.0 [0, 2] \\",
        r"1 & x \& y & $-$3 \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]


def test_latex_shows_every_symbol_as_it_is():
    table = pd.DataFrame({"x": ["\\ ~ ^ $ # { } ≥"], "y": [1]})

    assert (
        r"\textbackslash{} \textasciitilde{} \textasciicircum{} \$ \# \{ \} $\ge$ & 1 \\"
        in markup.latex(table)
    )
