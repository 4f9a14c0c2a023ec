"""`rrcm repro --jobs`: stages run at the same time, and leave what one after the other would."""

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from builders import refused
from dvc.repo import Repo
from ruamel.yaml import YAML
from survivors import mark, marked, until
from workspace import ROOT

from pipeline.workflow import gpus, lockfile, plan, reproduce, schedule
from pipeline.workflow.locks import Stopped
from pipeline.workflow.processes import Stop
from pipeline.workflow.summary import GOOD as WELL
from rrcm.core import progress
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
  wrong:
    cmd: test ! -e fail && touch wrong
    deps: [raw]
    outs: [wrong]
  after:
    cmd: touch after
    deps: [wrong]
    outs: [after]
  slow:
    cmd: touch begun; sleep 600
    deps: [raw]
    outs: [never]
"""
GOOD = ["both", "after"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A repository on a host without GPUs, whose every process must end with the test."""
    path = tmp_path / "here"
    path.mkdir()
    Repo.init(str(path), no_scm=True).close()
    (path / "dvc.yaml").write_text(GRAPH)
    (path / "raw").write_text("raw\n")
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


def entries() -> dict:
    return YAML(typ="safe").load(lockfile.LOCKFILE)["stages"]


def test_stages_run_at_the_same_time_and_leave_what_dvc_leaves(here: Path):
    said: list[str] = []
    assert run(*GOOD, said=said)

    assert (here / "both").read_text() == "left passive\nright passive\n"
    assert sorted(line.partition(",")[0] for line in said) == [
        "after: ran",
        "both: ran",
        "side@left: ran",
        "side@right: ran",
        "wrong: ran",
    ]
    found = (here / "dvc.lock").read_bytes()
    (here / "dvc.lock").unlink()
    shutil.rmtree(here / ".dvc/cache/runs")
    with lockfile.repro(GOOD, output=None) as process:  # one after the other, began-* being there
        process.wait()
    assert (here / "dvc.lock").read_bytes() == found
    said.clear()
    assert run(*GOOD, said=said) and not said


def test_the_time_left_is_computed_from_stages_that_took_time(
    here: Path, monkeypatch: pytest.MonkeyPatch
):
    bars, bar = [], progress.bar
    monkeypatch.setattr(progress, "bar", lambda *asked: bars.append(bar(*asked)) or bars[-1])
    assert run("wrong")
    assert run("after")

    first, second = ((one.initial, one.n, one.total) for one in bars)
    assert first == (0, 1, 1)
    assert second == (1, 2, 2)  # (unchanged, ended, all)


def test_after_a_failure_what_does_not_need_it_goes_on_and_so_does_the_next_run(here: Path):
    (here / "fail").touch()
    said: list[str] = []
    assert not run(*GOOD, said=said)

    assert [line for line in said if line.startswith("wrong: ")]
    assert (here / "both").exists() and not (here / "after").exists()
    (here / "fail").unlink()
    assert run("wrong", "after")
    assert {*entries()} == {"side@left", "side@right", "both", "wrong", "after"}


def test_a_stop_ends_what_runs_and_keeps_what_ended(here: Path):
    stop = Stop()

    def begun() -> bool:
        lock = here / "dvc.lock"
        return (here / "begun").exists() and lock.exists() and "wrong" in lock.read_text()

    asked = threading.Thread(target=lambda: (until(begun, seconds=60), stop.ask("by the test")))
    asked.start()
    assert not run("wrong", "slow", stop=stop)
    asked.join()

    assert {*entries()} == {"wrong"}


def test_a_stage_that_waits_for_a_slot_is_shown_to_wait(here: Path, monkeypatch):
    monkeypatch.setenv("RRCM_SLOTS", "1")
    stop = Stop()
    (node,) = plan.load(["slow"])
    with reproduce.here(1, jobs=1, stop=stop, say=print) as executor:
        with gpus.taken(1, stop=stop, say=print):
            future = executor.submit(node, lambda: executor.run(node))
            waits = {"slow": "slow (waiting for 1 of 1 slots of this host)"}
            until(lambda: executor.shown == waits, seconds=60)
        until(lambda: executor.shown == {"slow": "slow"}, seconds=60)
        stop.ask("by the test")
        assert isinstance(future.exception(60), Stopped)


def test_outputs_that_are_not_here_can_be_left_so(here: Path):
    assert run(*GOOD)
    made = [here / output for output in ("left", "right", "both", "wrong", "after")]
    for output in made:
        output.unlink()
    shutil.rmtree(here / ".dvc/cache")

    arguments = [*GOOD, "--allow-missing"]
    assert reproduce.side_by_side(arguments, jobs=2, shares=1, say=print) == 0

    assert not any(output.exists() for output in made)


def test_other_options_of_dvc_are_refused_with_jobs(here: Path):
    with refused(StageError, "--force", "only targets can follow"):
        reproduce.side_by_side(["both", "--force"], jobs=2, shares=1, say=print)
