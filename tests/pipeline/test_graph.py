"""What a stage depends on is digested as DVC has it, and large data are not read for it again."""

import json
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
from builders import refused
from dvc_data.hashfile import hash as hashing
from repositories import repository

from pipeline.runtime import graph, with_dvc
from rrcm.core.errors import StageError

GRAPH = """
stages:
  copy:
    cmd: cp raw/a out
    deps: [raw, code.py]
    params: [knob]
    outs: [out]
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a stage that depends on a folder, a file and a parameter."""
    monkeypatch.chdir(tmp_path)
    files = {"params.yaml": "knob: 1\nother: 1\n", "code.py": "pass\n"}
    repository(tmp_path, GRAPH, files)
    (tmp_path / "raw").mkdir()
    for name in "abc":
        (tmp_path / "raw" / name).write_bytes(name.encode() * 5000)
    return tmp_path


def test_a_digest_is_of_command_files_and_parameters(here: Path):
    first = graph.digest("copy")
    changes = {
        "params.yaml": "knob: 2\nother: 1\n",
        "code.py": "None\n",
        "dvc.yaml": GRAPH.replace("cp raw/a", "cp raw/b"),
        "raw/b": "b",
        "raw/new": "d",
    }
    seen = {first}
    for file, text in changes.items():
        path = here / file
        before = path.read_bytes() if path.exists() else None
        path.write_text(text)
        seen.add(graph.digest("copy"))
        if before is None:
            path.unlink()
        else:
            path.write_bytes(before)
        assert graph.digest("copy") == first, file
    (here / "params.yaml").write_text("knob: 1\nother: 2\n")
    (here / "out").write_text("a")
    assert graph.digest("copy") == first, "it reads neither"
    assert len(seen) == 1 + len(changes)


def test_a_stage_resumes_from_its_state_of_the_same_inputs_only(
    here: Path, monkeypatch: pytest.MonkeyPatch
):
    def resumed(*, stop: bool = True) -> bool:
        """Whether a run finds state; it leaves some."""
        with suppress(InterruptedError), graph.running("copy") as stage:
            state = stage.scratch / "state"
            there = state.exists()
            state.touch()
            if stop:
                raise InterruptedError
        return there

    monkeypatch.setattr("pipeline.checked.load", lambda: None)
    assert (resumed(), resumed()) == (False, True)
    (here / "params.yaml").write_text("knob: 2\nother: 1\n")
    assert (resumed(), resumed(stop=False)) == (False, True)
    assert json.loads((here / "provenance/copy.json").read_text())["inputs"] == graph.digest("copy")
    assert not (graph.SCRATCH / "copy").exists()


def test_unchanged_files_are_not_read_again(here: Path, monkeypatch: pytest.MonkeyPatch):
    read, real = Counter(), hashing.file_md5

    def counted(path, *rest, **more):
        read[Path(path).name] += 1
        return real(path, *rest, **more)

    monkeypatch.setattr(hashing, "file_md5", counted)
    first = graph.digest("copy")
    assert {*read} >= {"a", "b", "c"}
    read.clear()

    assert graph.digest("copy") == first
    assert not read & Counter("abc")
    (here / "raw/b").write_bytes(b"B" * 5000)
    assert graph.digest("copy") != first
    assert read["b"] == 1 and not read & Counter("ac")


def test_missing_files_and_stages_are_named(here: Path):
    with refused(StageError, "dvc.yaml has no stage cpoy", "`dvc stage list`"):
        graph.digest("cpoy")
    (here / "code.py").unlink()
    with refused(StageError, "code.py: stage copy needs it", "`dvc repro`"):
        graph.digest("copy")
    (here / "dvc.yaml").write_text("stages: [")
    with refused(StageError, "dvc.yaml:"):
        graph.digest("copy")


def test_tracking_keeps_an_equal_pointer_and_tells_of_a_new_one(here: Path):
    (here / "data").mkdir()
    (here / "data/a").write_text("a")

    assert with_dvc.track(Path("data"))
    pointer = (here / "data.dvc").read_bytes()
    assert not with_dvc.track(Path("data"))
    assert (here / "data.dvc").read_bytes() == pointer
    (here / "data/a").write_text("b")
    assert with_dvc.track(Path("data"))
