"""`rrcm status` says where each stage stands: up to date, why not, how far, waiting for what."""

import fcntl
import os
import shutil

from dvc.repo import Repo
from workspace import RUN, Workspace

from pipeline.workflow import status
from pipeline.workflow.plan import MISSING, Node

NODES = [
    Node(name=name, upstream=upstream, devices=1, inputs=(), outputs=(f"out/{name}",),
         reason="", forced=False)
    for name, upstream in {
        "shard": (), "train@a": ("shard",), "train@b": ("shard",),
        "sample@a": ("train@a",), "sample@b": ("train@b",), "report": ("sample@a", "sample@b"),
    }.items()
]  # fmt: skip


def test_groups_are_lines():
    now = {"train@a": 7}
    reasons = {"train@b": "code changed: x.py"}
    waits = status._waiting(NODES, {*now, *reasons})

    lines = [
        status._group(
            group, [n for n in NODES if n.name.partition("@")[0] == group], now, reasons, waits
        )
        for group in ("shard", "train", "sample", "report")
    ]

    assert lines == [
        "shard          up to date",
        "train (2)      (b) out of date: code changed: x.py; (a) running",
        "sample (2)     waiting for train@a, train@b",
        "report         waiting for train@a, train@b",
    ]


def test_a_stage_whose_lock_is_held_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(status, "SCRATCH", tmp_path)
    for name in ("train@a", "train@b"):
        (tmp_path / f"{name}.lock").write_text(str(os.getpid()))

    with (tmp_path / "train@a.lock").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert status.running() == {"train@a": os.getpid()}
    assert status.running() == {}


def test_results_that_a_clone_did_not_fetch_are_not_out_of_date(
    finished: Workspace, tmp_path, monkeypatch
):
    clone = finished.clone(tmp_path / "clone")  # without dvc.lock: it was not committed
    monkeypatch.chdir(clone.path)
    assert "train (2) out of date: has not run" in " ".join(status.status().split())
    shutil.copy(finished.path / "dvc.lock", clone.path)
    said = status.status()

    assert "out of date" not in said and "waiting" not in said
    assert f"train (2)      {MISSING}" in said
    assert "`rrcm pull` fetches the results" in said


def test_after_an_edit_it_names_what_dvc_does_and_what_waits_for_that(
    checkout: Workspace, monkeypatch
):
    monkeypatch.chdir(checkout.path)
    assert "all 11 stages are up to date: `rrcm repro` has nothing to do" in status.status()
    checkout.edit(lambda p: p["runs"][RUN]["loss"].update(lbd=3.0))
    said = status.status().splitlines()
    with Repo(".") as repo:
        assert repo.status().keys() == {f"train@{RUN}", "report"}
    changed = [line.split()[0] for line in said if "out of date:" in line]
    waiting = [line.split()[0] for line in said if f"waiting for train@{RUN}" in line]
    assert (changed, waiting) == (["train", "report"], ["export", "sample", "certify"])
