"""The README is true: its commands run."""

import pytest
from workspace import ROOT, Workspace, shell

COMMANDS = [*shell((ROOT / "README.md").read_text(), kinds="console")]


@pytest.mark.slow
def test_the_other_commands_run_in_order(checkout: Workspace):
    assert {("make", "demo"), ("make", "test"), ("rrcm", "repro")} <= {*map(tuple, COMMANDS)}
    for command in COMMANDS:
        if command[0] in ("rrcm", "dvc"):  # the test's own checkout stands for the others
            assert checkout.run(*command).strip(), command
