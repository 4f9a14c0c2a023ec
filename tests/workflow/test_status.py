"""`rrcm status` says where each stage stands: up to date, why not, how far, waiting for what."""

import fcntl
import os
import shutil

from dvc.repo import Repo
from repositories import node
from workspace import RUN, Workspace

from pipeline.workflow import plan, status
from pipeline.workflow.changes import MISSING


def test_each_stage_has_a_state_and_waits_for_those_that_will_run():
    nodes = [
        node("shard"),
        node("train@a", "shard"),
        node("train@b", "shard", reason="code changed: x.py"),
        node("train@c", "shard", reason=MISSING),
        node("sample@a", "train@a"),
        node("sample@b", "train@b"),
        node("sample@c", "train@c"),
        node("report", "sample@a", "sample@b", "sample@c"),
    ]

    assert status.states(nodes, now={"train@a"}) == {
        "shard": "up to date",
        "train@b": "out of date: code changed: x.py",
        "train@c": MISSING,
        "sample@a": "waiting for stages above",
        "sample@b": "waiting for stages above",
        "sample@c": MISSING,
        "report": "waiting for stages above",
    }


def test_a_stage_whose_lock_is_held_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(status, "SCRATCH", tmp_path)
    for name in ("train@a", "train@b"):
        (tmp_path / f"{name}.lock").write_text(str(os.getpid()))

    with (tmp_path / "train@a.lock").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert status.running() == {"train@a": os.getpid()}
    assert status.running() == {}


def test_what_runs_is_listed_though_all_else_is_up_to_date(monkeypatch):
    monkeypatch.setattr(plan, "load", lambda: [node("shard"), node("train@a", "shard")])
    monkeypatch.setattr(status, "running", lambda: {"train@a": 7})
    assert status.status() == "up to date (1): shard\nrunning: train@a, process 7"


def test_results_that_a_clone_did_not_fetch_are_not_out_of_date(
    finished: Workspace, tmp_path, monkeypatch
):
    clone = finished.clone(tmp_path / "clone")  # without dvc.lock: it was not committed
    monkeypatch.chdir(clone.path)
    assert "out of date: has not run (11): " in status.status()
    shutil.copy(finished.path / "dvc.lock", clone.path)
    said = status.status()

    assert "out of date" not in said and "waiting" not in said
    assert f"{MISSING} (" in said
    assert "`rrcm pull` fetches the results" in said


def test_after_an_edit_it_names_what_dvc_does_and_what_waits_for_that(
    checkout: Workspace, monkeypatch
):
    monkeypatch.chdir(checkout.path)
    assert "all 11 stages are up to date: `rrcm repro` has nothing to do" in status.status()
    checkout.edit(lambda p: p["runs"][RUN]["loss"].update(lbd=3.0))
    said = status.states(plan.load(), now={})
    with Repo(".") as repo:
        assert repo.status().keys() == {f"train@{RUN}", "report"}
    changed = {name.partition("@")[0] for name in said if said[name].startswith("out of date:")}
    waiting = {name.partition("@")[0] for name in said if said[name] == status.WAITS}
    assert (changed, waiting) == ({"train", "report"}, {"export", "sample", "certify"})
