"""A page says which commit its results are of, never what the clock says."""

from workspace import Workspace

from pipeline.project import results


def test_the_date_is_that_of_the_commit_with_the_results(tmp_path, monkeypatch):
    here = Workspace(tmp_path)
    monkeypatch.chdir(tmp_path)
    for role in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{role}_DATE", "2024-05-06T07:08:09+00:00")
    assert results.recorded() == ""  # no repository
    here.run("git", "init", "--quiet")
    assert results.recorded() == ""
    (tmp_path / "dvc.lock").write_text("a")
    here.commit("results")
    first = here.run("git", "rev-parse", "--short", "HEAD").strip()
    (tmp_path / "other").write_text("later")
    here.commit("something else")

    assert f"commit {first}, 2024-05-06" in results.recorded()
    (tmp_path / "dvc.lock").write_text("b")
    assert "not committed" in results.recorded()
