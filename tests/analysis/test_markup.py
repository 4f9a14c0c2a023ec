"""Tables as text have a line for each row, and nothing that a reader would take for code."""

import pandas as pd
from hypothesis import given
from hypothesis import strategies as st

from rrcm.analysis.presentation import markup

TABLE = pd.DataFrame({"σ": ["0.5", "1"], "a_b": ["50 %", "x & y"], "r = 0": ["1.0 [0, 2]", "−3"]})
SYMBOLS = pd.DataFrame({"x": ["\\ ~ ^ $ # { } ≥"], "y": [1]})


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
    assert r"\textasciicircum \space \$ \# \{ \} $\ge$ & 1" in markup.latex(SYMBOLS)


@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=14),
    st.lists(st.integers(0, 30), min_size=1, max_size=4),
)
def test_on_a_terminal_a_table_has_at_most_100_columns_and_every_cell(widths, rows):
    """Whatever its width, and each row of a part begins with the first two columns."""
    names = ["σ", "method", *(f"c{i}" for i in range(len(widths)))]
    table = pd.DataFrame(
        [[f"{r}", f"m{r}", *("x" * w + f"{r}_{i}" for i, w in enumerate(widths))] for r in rows],
        columns=names,
    )
    text = markup.plain(table, again=2)

    assert max(len(line) for line in text.splitlines()) <= markup.WIDTH
    for name, column in table.items():
        assert name in text.split() and {*column} <= {*text.split()}
    for line in text.splitlines():
        words = line.split()
        if "_" in line:  # a row of cells
            assert all(word.strip("x").startswith(f"{words[0]}_") for word in words[2:])


def test_a_narrow_terminal_is_filled_or_told(monkeypatch):
    """40 columns: each cell stands behind its row's names, and a cell that does not fit is said."""
    monkeypatch.setenv("COLUMNS", "40")
    wide = pd.DataFrame({"r": ["0.25"], **{f"c{i}": ["12.3 [11.1, 13.4]"] for i in range(4)}})

    text = markup.plain(wide, again=1)
    said = markup.plain(pd.DataFrame({"r": ["0.25"], "c": ["x" * 60]}), again=1)

    assert max(map(len, text.splitlines())) <= 40 and text.count("12.3 [11.1, 13.4]") == 4
    assert said.splitlines()[-1] == "(this table needs 66 columns, this terminal has 40)"
