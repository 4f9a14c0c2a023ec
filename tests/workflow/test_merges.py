"""After a merge of git, either side of dvc.lock will do: DVC knows the results of both."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from builders import refused
from dvc.repo import Repo

from pipeline.workflow import lockfile, reproduce
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
    subprocess.run([sys.executable, "-m", "dvc", "repro", "--quiet"], check=True)
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


def merged() -> None:
    git("merge", "more", fails=True)


def left_to_us() -> None:
    """As .gitattributes of this project has it: our side lies there, without markers."""
    binary = ("dvc.lock", "metrics/*", "code/**/*.json")
    Path(".git/info/attributes").write_text("".join(f"{name} merge=binary\n" for name in binary))
    merged()


def take(side: str) -> None:
    results = ("dvc.lock", "metrics", "code")
    git("checkout", side, "--", *results)
    git("add", "--", *results)


@pytest.mark.parametrize("conflict", [merged, left_to_us], ids=lambda way: way.__name__)
@pytest.mark.parametrize("side", ["--ours", "--theirs"])
@pytest.mark.parametrize("values", [BOTH, MORE, FEWER, {}], ids=str)
def test_after_a_merge_only_what_neither_side_has_runs_again(
    here: Path, values: dict[str, Any], side: str, conflict: Callable[[], None]
):
    conflict()
    edit(values)
    for read in (lockfile.require_whole, lambda: reproduce.reproduce([], say=print)):
        with refused(StageError, "dvc.lock: git could not merge it; take either side"):
            read()
    take(side)

    lockfile.require_whole()
    assert ran() == (["certify a", "report"] if values == BOTH else [])
    assert not any(mark in Path("metrics/a").read_text() for mark in MARKS)


def test_a_run_that_was_added_on_each_side_keeps_its_result(here: Path):
    git("checkout", "--quiet", "added")
    git("merge", "other", fails=True)
    edit({"runs": {"a": 1, "b": 1, "c": 1}})
    take("--ours")

    assert ran() == []
    assert [name for name in lockfile.read() if name.startswith("draw")] == [
        "draw@a", "draw@b", "draw@c",
    ]  # fmt: skip


def test_what_the_code_means_is_written_anew(here: Path):
    """Each side edits a line of it, and git merges the code but not its digest."""
    for branch, old, new in (("more", "1\n", "one\n"), ("fewer", "2\n", "two\n")):
        git("checkout", "--quiet", branch)
        Path("source").write_text(Path("source").read_text().replace(old, new))
        assert ran()
        git("commit", "--quiet", "--all", "--message", f"{branch}, other code")
    left_to_us()
    edit(BOTH)
    take("--ours")

    assert ran() == ["draw a", "certify a", "report"]
    assert Path("code/stages/draw.json").read_text() == "one\n\n\n\ntwo\n"
