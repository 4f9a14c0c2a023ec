"""Experiments and metrics: few columns, a row for each evaluation, and a page that is true."""

import json
import re
import shlex

import pytest
from workspace import EVAL, ROOT, RUN, Workspace

from rrcm.certification import certify

OTHER = "tiny-gaussian-s050-e050"
METRICS = {f"metrics/{name}.json" for name in (EVAL, OTHER)}
PAGE = (ROOT / "docs/experiments.md").read_text()
COMMANDS = [
    line.removeprefix("$ ").partition("  #")[0].strip()
    for block in re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
    for line in block.splitlines()
    if line.startswith("$ ")
]


def test_metrics_are_a_row_for_each_evaluation(finished: Workspace):
    table = finished.run("dvc", "metrics", "show", "--md").strip().splitlines()
    header, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]

    assert sorted(header) == ["Path", "abstain", "acr", "r000", "r025", "r050"]
    assert {row[0] for row in rows} == METRICS
    numbers = json.loads((finished.path / f"metrics/{EVAL}.json").read_text())
    made = certify.read(finished.path / f"certificates/{EVAL}.csv")
    assert numbers["r000"] == made["correct"].mean()


def test_the_page_names_what_there_is():
    assert {"dvc metrics show", "dvc exp show"} <= {" ".join(c.split()[:3]) for c in COMMANDS}
    assert f"runs.{RUN}.loss.lbd" in PAGE


@pytest.mark.slow
def test_the_commands_of_the_page_run_in_order(checkout: Workspace):
    checkout.run("git", "config", "user.name", "test")
    checkout.run("git", "config", "user.email", "test@example.org")
    checkout.commit("results")
    for command in COMMANDS:
        assert checkout.run(*shlex.split(command)).strip(), command
