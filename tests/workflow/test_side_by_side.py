"""`rrcm repro --jobs`: stages run at the same time, and leave what one after the other would."""

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import repositories
from builders import refused
from survivors import mark, marked, until
from workspace import ROOT

from pipeline.workflow import careful_dvc, lockfile, plan, reproduce, schedule
from pipeline.workflow.processes import Stop
from pipeline.workflow.schedule import GOOD as WELL
from pipeline.workflow.stage_run import Outcome, Result
from rrcm.core.errors import StageError

GRAPH = """
stages:
  side:                  # each waits until the other has begun
    foreach: {left: right, right: left}
    do:
      cmd: touch began-${key}; for i in $(seq 600); do test -e began-${item} && break; sleep 0.1;
        done; test -e began-${item} && echo "${key} $OMP_WAIT_POLICY" > ${key}
      deps: [raw]
      outs: ['${key}']
  both:
    cmd: cat left right > both
    deps: [left, right]
    outs: [both]
  apart:
    cmd: touch apart
    deps: [raw]
    outs: [apart]
  slow:
    cmd: touch begun; sleep 600
    deps: [raw]
    outs: [never]
"""
GOOD = ["both", "apart"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A repository on a host without GPUs, whose every process must end with the test."""
    path = repositories.repository(tmp_path / "here", GRAPH, {"raw": "raw\n"})
    repositories.older_runs(path)
    monkeypatch.chdir(path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("RRCM_SLOTS_DIR", str(tmp_path / "slots"))
    monkeypatch.setattr("pipeline.checked.load", lambda: None)
    for name in ("OMP_WAIT_POLICY", "RRCM_SLOTS"):
        monkeypatch.setenv(name, "0")  # restored after the test, whatever it sets
        monkeypatch.delenv(name)
    for name, value in (marker := mark()).items():
        monkeypatch.setenv(name, value)
    yield path
    until(lambda: not marked(marker), seconds=60)


def run(*targets: str, said: list[str] | None = None, stop: Stop | None = None) -> bool:
    lines, nodes, stop = [] if said is None else said, plan.load(targets), stop or Stop()
    with reproduce.here(len(nodes), jobs=2, stop=stop, say=lines.append) as executor:
        results = schedule.run(nodes, executor, stop=stop)
    return len(results) == len(nodes) and all(one.outcome in WELL for one in results)


def test_stages_run_at_the_same_time_and_leave_what_dvc_leaves(here: Path):
    said: list[str] = []
    assert run(*GOOD, said=said)

    assert (here / "both").read_text() == "left passive\nright passive\n"
    assert sorted(line.partition(",")[0] for line in said) == [
        "apart: done",
        "both: done",
        "side@left: done",
        "side@right: done",
    ]
    found = (here / "dvc.lock").read_bytes()
    repositories.older_runs(here)
    shutil.rmtree(here / ".dvc/cache/runs")
    with careful_dvc.repro(
        GOOD, output=None
    ) as process:  # one after the other, began-* being there
        process.wait()
    assert (here / "dvc.lock").read_bytes() == found
    made = [here / output for output in ("left", "right", "both", "apart")]
    for output in made:
        output.unlink()
    shutil.rmtree(here / ".dvc/cache")
    arguments = [*GOOD, "--allow-missing"]
    said.clear()
    assert reproduce.side_by_side(arguments, jobs=2, shares=1, say=said.append) == 0
    assert not any(output.exists() for output in made)
    again = "`rrcm repro --force both apart` runs them again"
    assert said == [f"nothing to do: all 4 stages are up to date; {again}"]
    with refused(StageError, "--force", "only targets can follow"):  # as all other options of DVC
        reproduce.side_by_side(["both", "--force"], jobs=2, shares=1, say=print)


def test_a_stop_ends_what_runs_and_keeps_what_ended(here: Path):
    stop, before = Stop(), lockfile.read()

    def begun() -> bool:
        return (here / "begun").exists() and lockfile.read()["apart"] != before["apart"]

    asked = threading.Thread(target=lambda: (until(begun, seconds=60), stop.ask("by the test")))
    asked.start()
    assert not run("apart", "slow", stop=stop)
    asked.join()

    assert [name for name, entry in lockfile.read().items() if entry != before[name]] == ["apart"]


def test_one_line_says_what_failed_and_why():
    results = [
        Result(stage="a", outcome=Outcome.DONE, seconds=1.25, tries=2),
        Result(stage="b", outcome=Outcome.FAILED, tries=1, note="b: exit code 1\nlast words\nmore"),
        Result(stage="c", outcome=Outcome.SKIPPED, note="needs b"),
    ]
    more = [Result(stage=name, outcome=Outcome.FAILED, note=f"{name}: no") for name in "yz"]

    assert schedule.sentence(results) == (
        "failed: b: exit code 1 last words (of 3 stages: 1 done, 1 failed, 1 skipped)"
    )
    assert schedule.sentence(results[:1]) == "1 stage: 1 done"
    assert schedule.sentence(more) == "failed: y: no; z: no (of 2 stages: 2 failed)"
