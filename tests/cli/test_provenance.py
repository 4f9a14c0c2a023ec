"""A page says which commit its results are of, never what the clock says."""

import os
import subprocess

import pytest

from pipeline.project import results

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


def test_the_date_is_that_of_the_commit_with_the_results(here):
    assert results.recorded() == ""  # no repository
    git("init", "-q")
    assert results.recorded() == ""
    (here / "dvc.lock").write_text("a")
    git("add", "dvc.lock")
    git("commit", "-qm", "results")
    (here / "other").write_text("later")
    git("add", "other")
    git("commit", "-qm", "something else")

    said = results.recorded()

    first = subprocess.run(["git", "rev-parse", "--short", "HEAD^"], capture_output=True, text=True)
    assert f"commit {first.stdout.strip()}, 2024-05-06" in said
    (here / "dvc.lock").write_text("b")
    assert "not committed" in results.recorded()
