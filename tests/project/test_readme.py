"""The README is true: its commands run."""

import re
import shlex

import pytest
from workspace import ROOT, Workspace

COMMANDS = [
    line.removeprefix("$ ").partition("  #")[0].strip()
    for block in re.findall(r"```console\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    for line in block.splitlines()
    if line.startswith("$ ")
]
SHELL = ("git clone", "cd ", "source ")  # what the test's own checkout stands for


def test_the_readme_has_commands():
    assert {"make demo", "make test", "rrcm repro"} <= set(COMMANDS)


@pytest.mark.slow
def test_the_other_commands_run_in_order(checkout: Workspace):
    for command in COMMANDS:
        if not command.startswith(("make ", *SHELL)):
            assert checkout.run(*shlex.split(command)).strip(), command
