"""Files that a host of the repository reads agree with the project."""

import re

import pytest
import typer
from installations import PROJECT
from ruamel.yaml import YAML
from workspace import ROOT

from rrcm.cli import main as cli

TEMPLATES = sorted(ROOT.glob(".github/ISSUE_TEMPLATE/*.yml"))


def read(name: str):
    return YAML(typ="safe").load(ROOT / name)


def test_the_citation_is_of_this_version_and_licence():
    cited = read("CITATION.cff")

    assert {"cff-version", "message", "title", "authors"} <= cited.keys()
    assert cited["version"] == PROJECT["version"]
    assert cited["license"] == "Apache-2.0" and "Apache License" in (ROOT / "LICENSE").read_text()
    paper = cited["references"][0]
    assert paper["url"].rpartition("/")[2] in (ROOT / "README.md").read_text()


def test_the_hosted_run_is_that_of_the_repository():
    (job,) = read(".github/workflows/ci.yml")["jobs"].values()
    commands = [step["run"] for step in job["steps"] if "run" in step]
    (python,) = [step["with"]["python-version"] for step in job["steps"] if "with" in step]

    assert commands == [".ci/run"] and (ROOT / ".ci/run").stat().st_mode & 0o100
    assert f"PYTHON ?= python{python}" in (ROOT / "Makefile").read_text()


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_templates_ask_for_what_the_command_line_has(path):
    form = YAML(typ="safe").load(path)
    known = typer.main.get_command(cli.app).commands

    asked = re.findall(r"`rrcm (\w+)`", path.read_text())
    assert {*asked} <= known.keys()
    if path.stem != "config":
        assert {"name", "description", "body"} <= form.keys() and "doctor" in asked
        ids = [part["id"] for part in form["body"]]
        assert len(ids) == len({*ids})
