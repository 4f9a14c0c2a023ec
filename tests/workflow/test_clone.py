"""A worker's clone: brought to a commit, given what its stage reads, and nothing of it lost."""

import shutil
import threading
from pathlib import Path
from threading import Event

import clones
import pytest
from clones import Clones, git
from workspace import ROOT, Workspace

from pipeline.workflow import lockfile
from pipeline.workflow.flow import clone as a_clone
from rrcm.core.errors import StageError
from rrcm.core.schema import read_yaml


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory) -> Clones:
    """A clone `done` ran the graph, committed dvc.lock and pushed both."""
    made = clones.make(tmp_path_factory.mktemp("team") / "with spaces")
    done = made.clone("done")
    done.run("dvc", "repro", **made.environment)
    done.run("dvc", "push")
    done.commit("results")
    done.run("git", "push", "--quiet", "origin", "HEAD")
    return made


@pytest.fixture
def clone(team: Clones, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """A fresh one, and us in it."""
    made = Workspace(tmp_path / "clone")
    git("clone", "--quiet", str(team.folder / "origin"), str(made.path))
    monkeypatch.chdir(made.path)
    for name, value in team.environment.items():
        monkeypatch.setenv(name, value)
    return made


def quiet(line: str) -> None:
    pass


def head(of: Workspace) -> str:
    return git("-C", str(of.path), "rev-parse", "HEAD")


def test_a_commit_is_pushed_or_refused(clone: Workspace):
    assert a_clone.pushed() == head(clone)
    (clone.path / "toy.py").write_text("edited")
    with pytest.raises(StageError, match=r"^toy.py: edited; workers run a commit"):
        a_clone.pushed()
    clone.commit("not pushed")
    with pytest.raises(StageError, match="on no branch of origin"):
        a_clone.pushed()


def test_results_are_no_edits_and_edits_are_never_lost(clone: Workspace):
    before, now = git("rev-parse", "HEAD~1"), Event()
    (clone.path / "dvc.lock").write_text("of another run")

    with a_clone.at(before, stop=now, say=quiet):
        assert head(clone) == before
        assert git("-C", str(clone.path), "diff", "--name-only", "HEAD") == ""
    (clone.path / "toy.py").write_text("edited")
    with (
        pytest.raises(StageError, match=r"toy.py: edited, so it is at no commit"),
        a_clone.at(before, stop=now, say=quiet),
    ):
        pass

    assert (clone.path / "toy.py").read_text() == "edited"


def test_outputs_in_git_are_where_a_worker_looks_for_them():
    """Of other outputs in git, an edit would be lost, and a coordinator would not get them."""
    for stage in read_yaml(ROOT / "dvc.yaml")["stages"].values():
        body = stage.get("do", stage)
        for output in [one for kind in ("outs", "metrics", "plots") for one in body.get(kind, ())]:
            for path, said in output.items() if isinstance(output, dict) else ():
                assert said.get("cache", True) or path in a_clone.RESULTS


def test_a_checkout_is_not_moved_under_a_stage(clone: Workspace):
    old, new, stop = git("rev-parse", "HEAD~1"), head(clone), Event()
    waits, ended, said = Event(), Event(), []

    def move() -> None:
        def say(line: str) -> None:
            said.append(line)
            waits.set()

        with a_clone.at(old, stop=stop, say=say):
            ended.set()

    with a_clone.at(new, stop=stop, say=quiet), a_clone.at("", stop=stop, say=quiet):
        mover = threading.Thread(target=move)
        mover.start()
        assert waits.wait(20)
        assert head(clone) == new and not ended.is_set()
    assert ended.wait(20)
    mover.join()

    assert head(clone) == old
    assert said == [f"waiting for stages of this checkout at {new[:12]}"]


def test_only_what_a_stage_reads_is_fetched_or_said_to_be_nowhere(clone: Workspace):
    a_clone.pull(["made/left", "made/right"], stop=Event(), say=quiet)
    assert {file.name for file in (clone.path / "made").iterdir()} == {"left", "right"}

    text = (clone.path / "dvc.lock").read_text()
    digest = lockfile.read()["left"]["outs"][0]["md5"]
    (clone.path / "dvc.lock").write_text(text.replace(digest, "f" * 32))

    with pytest.raises(
        StageError, match=r"^made/left: missing [^\n]* in the default remote; `dvc push`[^\n]*$"
    ):
        a_clone.pull(["made/left"], stop=Event(), say=quiet)


def test_a_remote_that_goes_away_is_waited_for(
    team: Clones, clone: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The result took hours: what has it keeps it, and gives it away when it can."""
    remote = tmp_path / "remote"
    clone.run("dvc", "remote", "modify", "--local", "shared", "url", str(remote))
    clone.run("dvc", "repro", "--single-item", "big")
    remote.write_text("no folder")
    monkeypatch.setattr(a_clone, "PAUSES", (0.1,))
    said = []

    def back(line: str) -> None:
        said.append(line)
        if "trying again" in line:
            remote.unlink(missing_ok=True)

    a_clone.push("big", stop=Event(), say=back)
    pushed = {file.name for file in remote.glob("files/md5/*/*")}

    assert any("trying again in 0.1 s" in line for line in said)
    assert len(pushed) == 1 and len([*remote.glob("runs/*/*/*")]) == 1
    shutil.rmtree(remote)
    shutil.rmtree(clone.path / ".dvc/cache/files")  # DVC only warns of it, and ends well
    with pytest.raises(StageError, match=r"^`dvc push big`: Some of the cache files do not exist"):
        a_clone.push("big", stop=Event(), say=quiet)
