"""The plan is DVC's graph as it is; dvc.lock is whole whatever happens to those who write it."""

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from builders import limited, refused
from dvc.lock import make_lock
from repositories import repository
from survivors import until
from workspace import EVAL, ROOT, RUN, Workspace

from pipeline.workflow import lockfile, plan, reproduce, schedule
from pipeline.workflow.changes import MISSING
from pipeline.workflow.processes import Stop
from pipeline.workflow.stage_run import Outcome
from rrcm.core.errors import ConfigError, StageError

GRAPH = """
stages:
  join:
    cmd: mkdir -p joined && cat parts/* > joined/all
    deps: [parts]
    outs: [joined]
  part:
    foreach: ${parts}
    do:
      cmd: mkdir -p parts && cp raw parts/${key} && cat code.py >> parts/${key}
      deps: [raw, code.py]
      params: ['parts.${key}', shared]
      meta: {devices: 'parts.${key}.devices'}
      outs: ['parts/${key}']
  count:
    cmd: wc -c < joined/all > counted
    deps: [joined/all]
    meta: {devices: 0}
    metrics: [counted: {cache: false}]
  apart:
    cmd: touch apart
    outs: [apart]
"""
PARAMS = """
shared: {first: &view {x: 1.0e-4, b: [1, 2]}, second: *view}
parts:
  a: {devices: 1, z: 0, y: 1}
  b: {devices: 2}
"""
ADOPTER = """
import sys
from pipeline.workflow import lockfile, plan
for i in range(20):
    lockfile.adopt({f"stage@{sys.argv[1]}-{i}": {"cmd": "true"}})
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository in which everything is up to date."""
    files = {"params.yaml": PARAMS, "code.py": "pass\n", "raw": "raw\n"}
    path = repository(tmp_path_factory.mktemp("made"), GRAPH, files)
    for command in (["add", "--quiet", "raw"], ["repro", "--quiet"]):
        subprocess.run([sys.executable, "-m", "dvc", *command], cwd=path, check=True)
    return path


@pytest.fixture
def here(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it to change; its parameters are none of ours."""
    path = tmp_path / "here"
    shutil.copytree(made, path, symlinks=True)
    monkeypatch.chdir(path)
    monkeypatch.setattr("pipeline.checked.load", lambda: None)
    return path


def changed(**more: bool) -> set[str]:
    return {node.name for node in plan.load(**more) if node.reason}


def test_stages_come_after_those_that_they_need(here: Path):
    nodes = plan.load()

    assert [node.name for node in nodes] == ["part@a", "part@b", "join", "count", "apart"]
    assert {node.name: node.upstream for node in nodes} == {
        "part@a": (),
        "part@b": (),
        "join": ("part@a", "part@b"),
        "count": ("join",),
        "apart": (),
    }
    assert {node.name: node.inputs for node in nodes} == {
        "part@a": ("raw",),
        "part@b": ("raw",),
        "join": ("parts/a", "parts/b"),
        "count": ("joined/all",),
        "apart": (),
    }


def test_a_target_is_a_stage_a_group_a_pattern_or_an_output(here: Path):
    with plan.opened() as (_, order):
        for word, stages in {
            "part@b": {"part@b"},
            "part": {"part@a", "part@b"},
            "part@[b-z]": {"part@b"},
            "parts/a": {"part@a"},
            "./parts/": {"part@a", "part@b"},
            "joined/all": {"join"},
            "apart": {"apart"},
        }.items():
            assert {stage.addressing for stage in plan.meant(word, order)} == stages
    both = {node.name: node.forced for node in plan.load(["join"], force=["apart"])}
    assert both == {"part@a": False, "part@b": False, "join": False, "apart": True}


def test_devices_are_a_number_or_a_parameter(here: Path):
    devices = {node.name: node.devices for node in plan.load()}
    assert devices == {"part@a": 1, "part@b": 2, "join": 1, "count": 0, "apart": 1}
    for wrong in ("-1", "true", "1.0", "[1]", "parts.a.devises"):
        text = GRAPH.replace("'parts.${key}.devices'", wrong)
        (here / "dvc.yaml").write_text(text)
        with refused(StageError, "dvc.yaml", "part@a", "meta.devices"):
            plan.load()


@pytest.mark.parametrize("with_data", [True, False])
def test_each_edit_changes_what_reads_it(with_data: bool, here: Path):
    """Nothing else, and the same where there are no data and no cache, as in a fresh clone."""
    assert changed() == set()
    if not with_data:
        for path in (".dvc/cache", "parts", "joined"):
            shutil.rmtree(here / path)
        for path in ("raw", "apart", "counted"):
            (here / path).unlink()
        assert changed() == {"part@a", "part@b", "join", "count", "apart"}
        assert {node.reason for node in plan.load()} == {MISSING}
    both = {"part@a", "part@b"}
    edits = {
        ("params.yaml", "z: 0", "z: 1"): ({"part@a"}, "params.yaml says otherwise: parts.a"),
        ("params.yaml", "1.0e-4", "1.0e-3"): (both, "params.yaml says otherwise: shared"),
        ("code.py", "pass", "None"): (both, "code changed: code.py"),
        ("dvc.yaml", "touch apart", "touch  apart"): ({"apart"}, "its command changed"),
        ("raw.dvc", "md5: ", "md5: 0"): (both, "raw is not what it ran on"),
    }
    for (file, old, new), (expected, reason) in edits.items():
        text = (here / file).read_text()
        (here / file).write_text(text.replace(old, new))
        assert changed(here=False) == expected, file
        assert {one.reason for one in plan.load(here=False) if one.reason} == {reason}
        if with_data and file != "raw.dvc":  # here it is the file that counts
            assert changed() == expected, file
        (here / file).write_text(text)
        assert changed(here=False) == set()


def test_missing_data_may_count_as_what_dvc_lock_has(here: Path):
    """And what is here is compared, as `dvc repro --allow-missing` does, or is not."""
    (here / "parts/a").unlink()
    assert changed(allow_missing=True) == set()  # DVC takes `parts` for changed
    shutil.rmtree(here / "parts")
    (here / "raw").unlink()
    (here / "apart").unlink()
    assert changed() == {"part@a", "part@b", "join", "apart"}
    assert changed(allow_missing=True) == set()

    (here / "joined/all").write_text("edited")
    text = (here / "params.yaml").read_text()
    (here / "params.yaml").write_text(text.replace("z: 0", "z: 1"))

    assert changed(allow_missing=True) == {"part@a", "join", "count"}
    (here / "counted").write_text("edited")  # which git keeps, not DVC
    assert changed(here=False) == {"part@a", "count"}
    (count,) = (node.reason for node in plan.load(here=False) if node.name == "count")
    assert count.endswith("counted is not what dvc.lock has")


def test_an_input_made_anew_elsewhere_changes_its_reader(here: Path):
    """Whether the reader names the file itself or the folder that it is in."""
    entry = lockfile.read()["part@b"]
    entry["outs"][0]["md5"] = "0" * 32
    lockfile.adopt({"part@b": entry})
    assert changed(here=False) == {"join"}
    entry = lockfile.read()["join"]
    entry["deps"] = []
    lockfile.adopt({"join": entry})
    assert changed(here=False) == {"join"}


def test_a_plan_waits_for_nobody_and_changes_nothing(here: Path):
    before = {path: path.stat().st_mtime_ns for path in here.glob("[!.]*")}
    with make_lock(str(here / ".dvc/tmp/lock")):
        assert changed() == set()
    assert {path: path.stat().st_mtime_ns for path in here.glob("[!.]*")} == before


def test_bad_files_and_words_are_told_in_a_line(here: Path, monkeypatch: pytest.MonkeyPatch):
    with refused(StageError, "prat@a", "Did you mean 'part@a'?"):
        plan.load(["prat@a"])
    with refused(StageError, "raw", "raw.dvc"):
        plan.load(["raw"])
    (here / "dvc.lock").write_text("stages: [")
    with refused(StageError, "dvc.lock"):
        plan.load()
    with refused(StageError, "dvc.lock"):
        lockfile.read()
    with refused(StageError, "dvc.lock"):
        lockfile.adopt({"apart": {"cmd": "true"}})
    assert (here / "dvc.lock").read_text() == "stages: ["
    (here / "dvc.yaml").write_text("stages: [")
    with refused(StageError, "dvc.yaml"):
        plan.load()
    monkeypatch.undo()
    monkeypatch.chdir(here)
    with refused(ConfigError, "params.yaml", "parts"):
        plan.load()


def test_tidying_gives_the_order_of_dvc_whatever_the_order_of_the_runs(here: Path):
    """Also of entries that went through a database: nodes that are used twice still are."""
    before = (here / "dvc.lock").read_bytes()
    entries = lockfile.read()
    sent = json.loads(json.dumps(lockfile.pack(entries)))
    (here / "dvc.lock").unlink()
    lockfile.adopt(dict(reversed(lockfile.unpack(sent).items())))
    plan.tidy()
    assert b"&id001" in before
    assert (here / "dvc.lock").read_bytes() == before

    lockfile.adopt({"apart": entries["apart"], "gone": {"cmd": "true"}})
    plan.tidy()
    assert [*lockfile.read()][-2:] == ["apart", "gone"]


def test_two_who_adopt_at_once_lose_nothing_and_a_killed_one_leaves_a_whole_file(here: Path):
    def start(name: str) -> subprocess.Popen:
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        return subprocess.Popen([sys.executable, "-c", ADOPTER, name], env=environment)

    before = lockfile.read()
    with start("one") as one, start("killed") as killed:
        until(lambda: "stage@killed-3" in lockfile.read())
        killed.kill()
    stages = lockfile.read()

    assert one.returncode == 0
    assert {f"stage@one-{i}" for i in range(20)} <= {*stages}
    assert before.items() <= stages.items()
    assert plan.load()


def test_a_full_disk_leaves_the_file_as_it_was(here: Path, monkeypatch: pytest.MonkeyPatch):
    def full(file: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    before = (here / "dvc.lock").read_bytes()
    monkeypatch.setattr(os, "fsync", full)
    with refused(StageError, "dvc.lock", "No space left"):
        lockfile.adopt({"new": {"cmd": "true"}})

    assert (here / "dvc.lock").read_bytes() == before
    assert not [*here.rglob("*.part")]


def test_data_that_are_not_here_are_named_with_their_command_and_not_tried_again(here: Path):
    (here / "raw").unlink()
    nodes = plan.load()
    assert {node.name for node in nodes if node.lacks} == {"part@a", "part@b"}
    assert not any(node.lacks for node in plan.load(here=False))
    assert not any(node.lacks for node in plan.load(allow_missing=True))

    said: list[str] = []
    with reproduce.here(len(nodes), jobs=1, stop=Stop(), say=said.append) as executor:
        results = schedule.run(nodes, executor, retries=2, stop=Stop())
    (first, *_) = results
    assert (first.outcome, first.tries) == (Outcome.FAILED, 0)
    assert said[0] == first.note == "part@a: raw is not here; `rrcm data NAME` makes it"


def test_a_full_disk_of_dvcs_database_is_an_error_of_one_line(here: Path):
    """DVC keeps the hash of each file that it reads for the first time."""
    (here / "code.py").write_text("pass  # edited\n")
    with limited(100), refused(StageError, "DVC's database: ", "is there room on the disk?"):
        plan.load()


def test_the_real_graph_in_a_clone_without_data(checkout: Workspace, tmp_path: Path, monkeypatch):
    checkout.commit("results")
    clone = checkout.clone(tmp_path / "clone")
    monkeypatch.chdir(clone.path)
    assert not [node.name for node in plan.load(here=False) if node.reason]

    clone.edit(lambda params: params["recipes"]["finetune"]["compute"].update(devices=4))
    nodes = {node.name: node for node in plan.load([EVAL.join(["votes/", ".jsonl"])], here=False)}
    assert nodes[f"train@{RUN}"].devices == 4 and nodes[f"train@{RUN}"].reason
    assert nodes["shard"].devices == 1 and not nodes["shard"].reason
