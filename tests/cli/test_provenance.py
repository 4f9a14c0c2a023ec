"""A page says which versions and which commit its results are of, never what the clock says."""

import json
import os
import subprocess

import pytest
from builders import refused

from pipeline.project import provenance
from rrcm.core.errors import DataError

WHEN = "2024-05-06T07:08:09+00:00"


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def git(*arguments):
    who = {
        f"GIT_{role}_{key}": "x" for role in ("AUTHOR", "COMMITTER") for key in ("NAME", "EMAIL")
    }
    who |= {"GIT_AUTHOR_DATE": WHEN, "GIT_COMMITTER_DATE": WHEN}
    subprocess.run(["git", *arguments], check=True, capture_output=True, env=os.environ | who)


def record(folder, stage, *, torch="2.1", seconds=1.0):
    (folder / "provenance").mkdir(exist_ok=True)
    written = {"stage": stage, "python": "3.11", "packages": {"torch": torch}}
    written |= {"machine": "m", "seconds": seconds}
    (folder / f"provenance/{stage}.json").write_text(json.dumps(written))


def test_versions_are_a_row_for_each_kind_and_environment(here):
    assert provenance.versions().empty
    record(here, "sample@a", seconds=1000.0)
    record(here, "sample@b", seconds=234.4)
    record(here, "sample@c", torch="2.2")
    record(here, "certify@a")

    rows = provenance.versions().to_dict("records")

    assert [(r["stages"], r["torch"], r["seconds"]) for r in rows] == [
        ("certify", "2.1", "1"),
        ("sample (2)", "2.1", "1,234"),
        ("sample", "2.2", "1"),
    ]
    (here / "provenance/sample@a.json").write_text("[]")
    with refused(DataError, "provenance/sample@a.json", "no record of provenance"):
        provenance.versions()


def test_the_date_is_that_of_the_commit_with_the_results(here):
    assert provenance.recorded() == ""  # no repository
    git("init", "-q")
    assert provenance.recorded() == ""
    (here / "dvc.lock").write_text("a")
    git("add", "dvc.lock")
    git("commit", "-qm", "results")
    (here / "other").write_text("later")
    git("add", "other")
    git("commit", "-qm", "something else")

    said = provenance.recorded()

    first = subprocess.run(["git", "rev-parse", "--short", "HEAD^"], capture_output=True, text=True)
    assert f"commit {first.stdout.strip()}, 2024-05-06" in said
    (here / "dvc.lock").write_text("b")
    assert "not committed" in provenance.recorded()
