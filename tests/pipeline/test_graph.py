"""What a stage depends on is digested as DVC has it, and large data are not read for it again."""

import os
from collections import Counter
from pathlib import Path

import pytest
from builders import refused
from dvc.repo import Repo
from dvc_data.hashfile import hash as hashing

from pipeline.runtime import graph
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
    Repo.init(str(tmp_path), no_scm=True).close()
    (tmp_path / "dvc.yaml").write_text(GRAPH)
    (tmp_path / "params.yaml").write_text("knob: 1\nother: 1\n")
    (tmp_path / "code.py").write_text("pass\n")
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
    (here / "raw/c").rename(here / "raw/e")
    seen.add(graph.digest("copy"))

    assert len(seen) == 2 + len(changes)


def test_what_a_stage_does_not_read_does_not_count(here: Path):
    first = graph.digest("copy")
    (here / "params.yaml").write_text("knob: 1\nother: 2\n")
    (here / "out").write_text("a")
    (here / "note").write_text("a")

    assert graph.digest("copy") == first


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


def test_an_edit_of_the_same_size_is_seen_at_once(here: Path):
    """As far as the clock of the file system tells two edits apart, to some milliseconds."""
    seen, path = set(), here / "raw/a"
    for i in range(10):
        path.write_bytes(bytes([i]) * 5000)
        os.utime(path, ns=(0, i * 10_000_000))
        seen.add(graph.digest("copy"))

    assert len(seen) == 10


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

    assert graph.track(Path("data"))
    pointer = (here / "data.dvc").read_bytes()
    assert not graph.track(Path("data"))
    assert (here / "data.dvc").read_bytes() == pointer
    (here / "data/a").write_text("b")
    assert graph.track(Path("data"))
