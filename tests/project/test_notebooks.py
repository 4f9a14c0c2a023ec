"""The notebooks of docs/examples run as they are; their cells assert what they say."""

import re
import shlex
from types import SimpleNamespace

import nbformat
import pytest
from IPython.core.inputtransformer2 import TransformerManager
from typer.testing import CliRunner
from workspace import ROOT

from rrcm.cli import main as cli

NOTEBOOKS = sorted((ROOT / "docs/examples").glob("*.ipynb"))


def system(line: str) -> None:
    """Run the `rrcm` of a line that begins with `!`; what follows && or || says how it ended."""
    command, ending, _ = re.fullmatch(r"rrcm ([^&|]+)(?:(&&|\|\|)(.*))?", line).groups()
    result = CliRunner().invoke(cli.app, shlex.split(command))
    assert (result.exit_code == 0) == (ending != "||"), result.output


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_from_top_to_bottom(tmp_path, monkeypatch, path):
    text = path.read_text()
    cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    names = {"get_ipython": lambda: SimpleNamespace(system=system)}
    monkeypatch.chdir(tmp_path)

    for cell in cells:
        exec(TransformerManager().transform_cell(cell.source), names)

    assert [cell.execution_count for cell in cells] == [*range(1, len(cells) + 1)]
    assert any("assert " in cell.source for cell in cells)
    assert not re.search("/tmp|/home|/root|Traceback", text)  # of the machine that made it
