"""The README is true: its commands run, and its files and figures exist."""

import re
import shlex
import subprocess

import pytest
from workspace import ROOT, Workspace

README = (ROOT / "README.md").read_text()
COMMANDS = [
    line.removeprefix("$ ").partition("  #")[0].strip()
    for block in re.findall(r"```console\n(.*?)```", README, re.DOTALL)
    for line in block.splitlines()
    if line.startswith("$ ")
]
SHELL = ("git clone", "cd ", "source ")  # what the test's own checkout stands for


def test_the_readme_has_commands():
    assert {"make demo", "make test", "rrcm repro"} <= set(COMMANDS)


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("make ")])
def test_make_knows_the_target(command: str):
    dry = subprocess.run([*shlex.split(command), "--dry-run"], cwd=ROOT, capture_output=True)

    assert dry.returncode == 0, dry.stderr


def test_the_other_commands_run_in_order(checkout: Workspace):
    for command in COMMANDS:
        if not command.startswith(("make ", *SHELL)):
            assert checkout.run(*shlex.split(command)).strip(), command


@pytest.mark.parametrize("target", re.findall(r"\]\(([^)#]+)\)", README))
def test_links_lead_somewhere(target: str):
    assert target.startswith("https://") or (ROOT / target).exists()
