"""CONTRIBUTING.md is true: its worked example runs."""

import re
from typing import Any

import pandas as pd
import pytest
from ruamel.yaml import YAML
from workspace import ROOT, Workspace, shell

_, _, AFTER = (ROOT / "CONTRIBUTING.md").read_text().partition("## A worked example")
EXAMPLE, _, _ = AFTER.partition("\n## ")


def block(language: str) -> str:
    """The first block of code of the worked example in a language."""
    return EXAMPLE.partition(f"```{language}\n")[2].partition("```")[0]


def follow(checkout: Workspace) -> dict[str, Any]:
    """Do what the worked example says; the entries of params.yaml that it adds.

    The miniature has the names of the digits preset, but one recipe for all sigmas.
    """
    name, folder = re.findall(r"`(\w+\.py)` in `(\S+/)`:", EXAMPLE)[0]
    (checkout.path / folder / name).write_text(block("python"))
    added = YAML(typ="safe").load(block("yaml").replace("finetune-s050", "finetune"))
    checkout.edit(lambda params: [params[section].update(added[section]) for section in added])
    return added


@pytest.mark.slow
def test_the_worked_example_is_a_row_of_the_report(checkout: Workspace):
    added = follow(checkout)
    run, evaluation = (next(iter(added[section])) for section in ("runs", "evals"))
    _, status, repro, report = shell(EXAMPLE, kinds="console")

    assert run in checkout.run(*status)
    assert repro == ["rrcm", "repro"]
    assert checkout.repro() == {
        *(f"{stage}@{run}" for stage in ("train", "export")),
        *(f"{stage}@{evaluation}" for stage in ("sample", "certify")),
        "report",
    }
    assert "average" in checkout.run(*report)
    assert evaluation in {*pd.read_csv(checkout.path / "report/table.csv")["entry"]}
