"""Experiments and metrics: few columns, a row for each evaluation, and what changed in them."""

import csv
import io
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


@pytest.fixture
def tracked(checkout: Workspace) -> Workspace:
    """A checkout whose results are committed, by somebody."""
    checkout.run("git", "config", "user.name", "test")
    checkout.run("git", "config", "user.email", "test@example.org")
    checkout.commit("results")
    return checkout


def test_metrics_are_a_row_for_each_evaluation(finished: Workspace):
    table = finished.run("dvc", "metrics", "show", "--md").strip().splitlines()
    header, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]

    assert sorted(header) == ["Path", "abstain", "acr", "r000", "r025", "r050"]
    assert {row[0] for row in rows} == METRICS
    numbers = json.loads((finished.path / f"metrics/{EVAL}.json").read_text())
    made = certify.read(finished.path / f"certificates/{EVAL}.csv")
    assert numbers["r000"] == made["correct"].mean()


@pytest.mark.slow
def test_an_experiment_is_compared_kept_and_left(tracked: Workspace):
    before = tracked.digest("metrics/*")
    tracked.run("dvc", "exp", "run", "--name", "short", "--set-param", "report.radii=[0.0,0.5]")
    after = tracked.digest("metrics/*")

    told = json.loads(tracked.run("dvc", "metrics", "diff", "--json"))
    assert told.keys() == METRICS and {*told[f"metrics/{EVAL}.json"]} == {"r025"}
    shown = tracked.run("dvc", "exp", "show", "--csv", "--only-changed")
    rows = {row["Experiment"] or row["rev"]: row for row in csv.DictReader(io.StringIO(shown))}
    assert rows["short"]["report.radii"] == "[0.0, 0.5]"
    base = next(row for name, row in rows.items() if name not in ("short", "workspace"))
    column = f"metrics/{EVAL}.json:r025"
    assert base[column] and not rows["short"][column]
    plots = json.loads(tracked.run("dvc", "plots", "diff", "HEAD", "short", "--json"))["data"]
    (curve,) = next(drawn for name, drawn in plots.items() if f"curves/{EVAL}.csv" in name)
    assert curve["revisions"] == ["HEAD", "short"]
    assert curve["content"]["mark"]["interpolate"] == "step-before"
    assert any("certified_accuracy.png" in name for name in plots)

    tracked.run("git", "checkout", "--quiet", ".")
    assert tracked.digest("metrics/*") == before
    tracked.run("dvc", "exp", "apply", "short")
    assert tracked.digest("metrics/*") == after != before
    assert "up to date" in tracked.run("dvc", "status")


def test_the_page_names_what_there_is():
    assert {"dvc metrics show", "dvc exp show"} <= {" ".join(c.split()[:3]) for c in COMMANDS}
    assert f"runs.{RUN}.loss.lbd" in PAGE


@pytest.mark.slow
def test_the_commands_of_the_page_run_in_order(tracked: Workspace):
    for command in COMMANDS:
        assert tracked.run(*shlex.split(command)).strip(), command
