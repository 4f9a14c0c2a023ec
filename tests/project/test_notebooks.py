"""The notebooks of docs/examples run as they are; their cells assert what they say."""

import nbformat
import pytest
from nbclient import NotebookClient
from workspace import ROOT

NOTEBOOKS = sorted((ROOT / "docs/examples").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_from_top_to_bottom(tmp_path, path):
    notebook = nbformat.read(path, as_version=4)

    NotebookClient(
        notebook, timeout=240, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    ).execute()

    ran = [cell.execution_count for cell in notebook.cells if cell.cell_type == "code"]
    assert ran == [*range(1, len(ran) + 1)]
    assert any("assert " in cell.source for cell in notebook.cells)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_says_nothing_of_the_machine_that_made_it(path):
    text = path.read_text()

    assert "/tmp" not in text and "/home" not in text and "/root" not in text
    assert "Traceback" not in text
    nbformat.validate(nbformat.read(path, as_version=4))
