"""Experiments and metrics: few columns, a row for each evaluation, and a page that is true."""

import json
import re
import shutil
import sys
from pathlib import Path

import pytest
from workspace import EVAL, ROOT, RUN, Workspace, shell

from rrcm.certification import certify

OTHER = "tiny-gaussian-s050-e050"
METRICS = {f"metrics/{name}.json" for name in (EVAL, OTHER)}
PAGE = (ROOT / "docs/experiments.md").read_text()
COMMANDS = [*shell(PAGE)]


def test_metrics_are_a_row_for_each_evaluation(finished: Workspace):
    table = finished.run("dvc", "metrics", "show", "--md").strip().splitlines()
    header, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]

    assert sorted(header) == ["Path", "abstain", "acr", "r000", "r025", "r050"]
    assert {row[0] for row in rows} == METRICS
    numbers = json.loads((finished.path / f"metrics/{EVAL}.json").read_text())
    made = certify.read(finished.path / f"certificates/{EVAL}.csv")
    assert numbers["r000"] == made["correct"].mean()


def test_the_page_names_what_there_is():
    assert {"dvc metrics show", "dvc exp show"} <= {" ".join(c[:3]) for c in COMMANDS}
    assert f"runs.{RUN}.loss.lbd" in PAGE


@pytest.fixture
def told(checkout: Workspace) -> Workspace:
    """A committed checkout after `make env`, whose packages are those of this environment."""
    (checkout.path / ".venv/bin").mkdir(parents=True)
    (checkout.path / ".venv/bin/dvc").symlink_to(Path(sys.executable).with_name("dvc"))
    checkout.run("make", "--old-file", ".venv/bin/.installed", "env")
    checkout.run("git", "config", "user.name", "test")
    checkout.run("git", "config", "user.email", "test@example.org")
    checkout.commit("results")
    return checkout


@pytest.mark.slow
def test_the_commands_of_the_page_run_in_order(told: Workspace):
    """With two of the three values that the page tries, of which each trains a run."""
    for command in COMMANDS:
        words = [word.replace("5,10,20", "5,10") for word in command if word != "lbd-3"]
        assert told.run(*words).strip(), command
    folders = [*told.path.glob(".dvc/**/"), *told.path.glob(".dvc-site/**/")]
    assert not [folder for folder in folders if folder.stat().st_mode & 0o002]


@pytest.mark.slow
def test_a_queued_experiment_that_fails_is_told_and_has_what_git_has(told: Workspace):
    """The line of the page finds it, where DVC exits with 0; a method is found once git has it."""
    method = "rrcm/training/methods/mine.py"
    shutil.copy(told.path / "rrcm/training/methods/gaussian.py", told.path / method)
    target = f"train@{OTHER.removesuffix('-e050')}"
    change = ("--set-param", f"runs.{OTHER.removesuffix('-e050')}.method=mine", target)
    told.run("dvc", "exp", "run", "--queue", "--name", "unknown", *change)
    said = told.run("dvc", "exp", "run", "--run-all")

    assert (
        "/code/components/methods/mine.json'" in said
        and "Failed to reproduce experiment(s) 'unknown'" in said
    )
    (line,) = re.findall(r"`(! dvc queue status[^`]*)`", PAGE)
    assert "unknown" in told.run("bash", "-c", line, fails=True)
    told.run("git", "add", method)
    assert "Ran experiment(s): known" in told.run(
        "dvc", "exp", "run", "--temp", "--name", "known", *change
    )
