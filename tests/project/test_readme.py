"""The README is true: its commands run, and its files and figures exist."""

import re
import shlex
import subprocess

import pytest
import typer
from workspace import ROOT, Workspace

from pipeline.cli import main as cli

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


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("rrcm ")])
def test_rrcm_knows_the_command_and_its_options(command: str, finished: Workspace, monkeypatch):
    monkeypatch.chdir(finished.path)  # files that the command names must be there
    program, (_, *words) = typer.main.get_command(cli.app), shlex.split(command)
    with program.make_context("rrcm", words) as context:
        name, subcommand, rest = program.resolve_command(context, words)
        subcommand.make_context(name, rest, parent=context)


@pytest.mark.slow
def test_the_other_commands_run_in_order(checkout: Workspace):
    for command in COMMANDS:
        if not command.startswith(("make ", *SHELL)):
            assert checkout.run(*shlex.split(command)).strip(), command


@pytest.mark.parametrize("target", re.findall(r"\]\(([^)#]+)\)", README))
def test_links_lead_somewhere(target: str):
    assert target.startswith("https://") or (ROOT / target).exists()
