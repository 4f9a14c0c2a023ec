"""`rrcm resolve`: after a merge, each stage has a result that somebody made of what is here."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from builders import refused
from dvc.repo import Repo

from pipeline.workflow import lockfile, plan, resolve
from rrcm.core.errors import StageError

GRAPH = """
stages:
  draw:
    foreach: ${runs}
    do:
      cmd: echo draw ${key} >> ran && cat params.yaml > votes-${key}
      deps: [code/stages/draw.json]
      params: [n, 'runs.${key}']
      outs: ['votes-${key}']
  certify:
    foreach: ${runs}
    do:
      cmd: echo certify ${key} >> ran && cat votes-${key} params.yaml > radii-${key}
      deps: ['votes-${key}']
      params: [radii]
      outs: ['radii-${key}']
  report:
    cmd: echo report >> ran && mkdir -p metrics && cat radii-a > metrics/a
    deps: [radii-a]
    metrics: [metrics: {cache: false}]
"""
CODE = """
stages:
  code:
    cmd: mkdir -p code/stages && cp source code/stages/draw.json
    wdir: ..
    deps: [source]
    outs: [code/stages: {cache: false, persist: true}]
"""
LOCK = lockfile.LOCKFILE
MARKS = ("<<<<<<<", "=======", ">>>>>>>")
MORE, FEWER, BOTH = {"n": 2}, {"radii": 2}, {"n": 2, "radii": 2}
ADDED, OTHER = {"runs": {"a": 1, "b": 1}}, {"runs": {"a": 1, "c": 1}}


def git(*arguments: str, fails: bool = False) -> None:
    author = ["-c", "user.name=test", "-c", "user.email=test@example.org"]
    done = subprocess.run(["git", *author, *arguments], capture_output=True, text=True)
    assert (done.returncode != 0) == fails, done.stdout + done.stderr


def edit(values: dict[str, Any]) -> None:
    """Write params.yaml, with lines between the values, so that git merges them."""
    lines = [f"{key}: {value}" for key, value in ({"n": 1, "radii": 1} | values).items()]
    runs = [f"  {key}: {value}" for key, value in values.get("runs", {"a": 1}).items()]
    lines = [line for line in lines if not line.startswith("runs")]
    Path("params.yaml").write_text("\n#\n#\n#\n".join(["\n".join(["runs:", *runs]), *lines]) + "\n")


def ran() -> list[str]:
    """The stages that `rrcm repro` runs."""
    Path("ran").write_text("")
    with Repo(".") as repo:
        repo.reproduce()
    return Path("ran").read_text().splitlines()


@pytest.fixture(scope="module")
def branches(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Branches with results: main, more (another n), fewer (other radii), a run added on each."""
    path = tmp_path_factory.mktemp("branches") / "here"
    path.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        git("init", "--quiet", "--initial-branch", "main")
        Repo.init(".").close()
        files = {"dvc.yaml": GRAPH, "code/dvc.yaml": CODE, "source": "1\n\n\n\n2\n"}
        files[".gitignore"] = "/ran\n/.rrcm\n/votes-*\n/radii-*\n"
        Path("code").mkdir()
        for name, text in files.items():
            Path(name).write_text(text)
        of = {"main": {}, "more": MORE, "fewer": FEWER, "added": ADDED, "other": OTHER}
        for branch, values in of.items():
            if branch != "main":
                git("checkout", "--quiet", "-b", branch, "main")
            edit(values)
            assert ran()
            git("add", "--all")
            git("commit", "--quiet", "--message", branch)
    return path


@pytest.fixture
def here(branches: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of them, at ``fewer``."""
    shutil.copytree(branches, tmp_path / "here", symlinks=True)
    monkeypatch.chdir(tmp_path / "here")
    git("checkout", "--quiet", "fewer")
    return tmp_path / "here"


def entries(branch: str) -> dict[str, Any]:
    return lockfile.parsed(
        subprocess.check_output(["git", "show", f"{branch}:dvc.lock"], text=True)
    )


def merged() -> None:
    git("merge", "more", fails=True)


def rebased() -> None:
    git("rebase", "more", fails=True)


def picked() -> None:
    git("cherry-pick", "more", fails=True)


def stashed() -> None:
    git("checkout", "--quiet", "more")
    git("reset", "--quiet", "--soft", "main")
    git("stash")
    git("checkout", "--quiet", "fewer")
    git("stash", "pop", fails=True)


def left_to_us() -> None:
    """As .gitattributes of this project has it: our side lies there, without markers."""
    Path(".git/info/attributes").write_text("dvc.lock merge=binary\nmetrics/* merge=binary\n")
    merged()
    assert lockfile.parsed(LOCK.read_text()) == entries("fewer")


def half_resolved() -> None:
    merged()
    text = LOCK.read_text()
    before, _, rest = text.partition("<<<<<<< ")
    ours, _, rest = rest.partition("=======\n")
    _, _, rest = rest.partition(">>>>>>> ")
    LOCK.write_text(before + ours.partition("\n")[2] + rest.partition("\n")[2])


def cut() -> None:
    merged()
    text = LOCK.read_text()
    LOCK.write_text(text[: text.rindex("=======") + 30])


def committed() -> None:
    merged()
    edit(BOTH)
    git("add", "--all")
    git("commit", "--quiet", "--message", "with markers")


def without_marker_lines() -> None:
    committed()
    lines = LOCK.read_text().splitlines(keepends=True)
    LOCK.write_text("".join(line for line in lines if line[:7] not in MARKS))


WAYS = [merged, rebased, picked, stashed, left_to_us, half_resolved, cut, committed]


@pytest.mark.parametrize("conflict", [*WAYS, without_marker_lines], ids=lambda way: way.__name__)
def test_a_lock_that_git_did_not_merge_is_refused_until_it_is_resolved(
    here: Path, conflict: Callable[[], None]
):
    more, fewer = entries("more"), entries("fewer")
    conflict()
    edit(BOTH)
    broken = LOCK.read_bytes()
    with refused(StageError, "`rrcm resolve`"):
        lockfile.read()
    assert LOCK.read_bytes() == broken
    said = resolve.resolve()

    assert "no version has certify@a, report" in said
    found = lockfile.read()
    assert found["draw@a"] == more["draw@a"] and [*found] == [*more]
    assert all(found[name] in (more[name], fewer[name]) for name in found)
    lockfile.read()
    if conflict not in (committed, without_marker_lines):  # there, the report makes them anew
        assert MARKS[0] not in Path("metrics/a").read_text()


@pytest.mark.parametrize(
    ("values", "having"), [(BOTH, ""), (MORE, "more"), (FEWER, "fewer"), ({}, "main")]
)
def test_only_what_neither_side_has_runs_again(here: Path, values: dict[str, Any], having: str):
    merged()
    with refused(StageError, "`rrcm resolve`"), plan.opened():  # as all commands read the graph
        pass
    edit(values)
    resolve.resolve()
    git("commit", "--quiet", "--all", "--message", "merged")  # nothing is unmerged
    if having:
        assert lockfile.read() == entries(having)
    assert ran() == ([] if having else ["certify a", "report"])


def test_a_run_that_was_added_on_each_side_keeps_its_result(here: Path):
    git("checkout", "--quiet", "added")
    git("merge", "other", fails=True)
    with refused(StageError, "params.yaml: has conflict markers; resolve them first"):
        resolve.resolve()
    edit({"runs": {"a": 1, "b": 1, "c": 1}})
    resolve.resolve()
    found = lockfile.read()

    assert found == entries("added") | entries("other")
    assert [name for name in found if name.startswith("draw")] == ["draw@a", "draw@b", "draw@c"]
    assert ran() == []


def test_what_the_code_means_is_written_anew(here: Path):
    """Each side edits a line of it, and git merges the code but not its digest."""
    for branch, old, new in (("more", "1\n", "one\n"), ("fewer", "2\n", "two\n")):
        git("checkout", "--quiet", branch)
        Path("source").write_text(Path("source").read_text().replace(old, new))
        assert ran()
        git("commit", "--quiet", "--all", "--message", f"{branch}, other code")
    Path(".git/info/attributes").write_text("dvc.lock merge=binary\ncode/**/*.json merge=binary\n")
    git("merge", "more", fails=True)
    edit(BOTH)
    resolve.resolve()

    assert Path("code/stages/draw.json").read_text() == "one\n\n\n\ntwo\n"
    git("commit", "--quiet", "--message", "merged")  # nothing is unmerged
    assert ran() == ["draw a", "certify a", "report"]
    git("diff", "--exit-code", "--", "code")
