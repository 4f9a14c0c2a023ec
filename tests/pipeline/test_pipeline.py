"""The graph re-runs what changed and nothing else, and survives being killed."""

import json
import os
import random
import re
import shutil
import signal
import time
from typing import Any

import pytest
from ruamel.yaml.scalarstring import DoubleQuotedScalarString
from workspace import EVAL, RUN, Workspace, committed

from rrcm.certification.votes import records
from rrcm.data.splits import shards

EVALS = (EVAL, "tiny-gaussian-s050-e050")


def downstream(run: str) -> set[str]:
    """What must run again when a run's recipe changes."""
    return {f"train@{run}", f"export@{run}", f"sample@{run}-e050", f"certify@{run}-e050", "report"}


def test_after_a_run_everything_is_up_to_date(finished: Workspace):
    assert "up to date" in finished.run("dvc", "status")
    assert finished.repro() == set()


def test_only_small_files_are_left_to_git(finished: Workspace):
    status = finished.run("git", "status", "--short").split()[1::2]

    assert set(status) == {"dvc.lock", "metrics/"}


def test_a_new_alpha_runs_from_votes_on(checkout: Workspace):
    checkout.edit(lambda p: p["certify"].update(alpha=0.01))

    ran = checkout.repro()

    both = {f"{stage}@{name}" for stage in ("sample", "certify") for name in EVALS}
    assert ran == {*both, "report"}


@pytest.mark.slow
def test_recipes_are_compared_on_images_that_no_table_shows(checkout: Workspace):
    """In the graph and on the command line alike; what is of these images says so."""
    on_test = records.read(checkout.path / f"votes/{EVAL}.jsonl")[0]
    held = {name: shards.read(checkout.path / "shards", name) for name in shards.SPLITS}
    checkout.edit(lambda p: p["sample"].update(split="choice"))

    ran = checkout.repro()

    others = {f"{stage}@{name}" for stage in ("sample", "certify") for name in EVALS}
    assert ran == {*others, "report"}
    header, rows = records.read(checkout.path / f"votes/{EVAL}.jsonl")
    assert (on_test.split, header.split) == ("test", "choice")
    assert header.pixels != on_test.pixels
    assert [row.idx for row in rows] == held["choice"].idx.tolist()
    assert [row.label for row in rows] == held["choice"].labels.tolist()
    assert not {row.idx for row in rows} & {*held["train"].idx, *held["test"].idx}
    assert "digits, choice split" in (checkout.path / "report/index.html").read_text()
    assert "of the choice split" in checkout.run("rrcm", "report")

    command = ("rrcm", "certify", "--model", "tiny", "--sigma", "0.5")
    assert f"votes: votes/{EVAL}.jsonl" in checkout.run(*command)
    said = checkout.run(*command, "--split", "test")
    assert "of the test split" in said and "votes: .rrcm/votes/" in said
    (drawn,) = checkout.path.glob(".rrcm/votes/*.jsonl")
    assert [row.idx for row in records.read(drawn)[1]] == held["test"].idx.tolist()
    assert len({*checkout.path.glob("results/*.csv")}) == 2, "one split's table over the other's"
    image = str(held["choice"].idx[0])
    wrong = checkout.run(
        "rrcm", "predict", "--model", "tiny", "--sigma", "0.5", "--image", image, fails=True
    )
    assert f"--image {image}: not a test image" in wrong


def test_without_choice_images_they_cannot_be_asked_for(checkout: Workspace):
    checkout.edit(lambda p: p["data"].update(choice=0))

    said = checkout.run(
        "rrcm", "certify", "--model", "tiny", "--sigma", "0.5", "--split", "choice", fails=True
    )

    assert said.startswith("error: ") and "data.choice is 0" in said and said.count("\n") == 1


def test_a_changed_loss_runs_that_run_only_and_reverting_trains_nothing(checkout: Workspace):
    before = checkout.digest("models/*/*"), checkout.digest("votes/*.jsonl")
    checkout.edit(lambda p: p["runs"][RUN]["loss"].update(lbd=3.0))

    assert checkout.repro() == downstream(RUN)
    assert checkout.digest("models/*/*") != before[0]

    checkout.edit(lambda p: p["runs"][RUN]["loss"].update(lbd=10.0))

    assert checkout.repro() == set()
    assert (checkout.digest("models/*/*"), checkout.digest("votes/*.jsonl")) == before


NEW_METHOD = '''"""Weighted cross-entropy, Nobody (2026): a method that is one file."""

from dataclasses import dataclass

import torch.nn.functional as F

PRETRAINED = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    weight: float


def loss(model, x, y, *, sigma, draw, done, cfg):
    logits = model(x + sigma * draw.normal(x), sigma)
    return cfg.weight * F.cross_entropy(logits, y, reduction="none")
'''


def test_fewer_labels_train_on_fewer_images_and_leave_the_pretraining(checkout: Workspace):
    name = "tiny-gaussian-s050"
    checkout.edit(lambda p: p["recipes"]["scratch"].update(labels=0.5))

    ran = checkout.repro()

    assert ran == downstream(name)
    note = json.loads((checkout.path / f"provenance/train@{name}.json").read_text())
    split = shards.read(checkout.path / "shards", "train")
    steps = len(split.labelled(0.5, seed=0).labels) // 64
    assert 0 < steps < len(split.labels) // 64
    assert note["gradient_evaluations"] == 2 * steps * 64


def test_a_new_method_is_a_file_and_an_entry_and_invalidates_nothing(checkout: Workspace):
    """The contract tests find it, a run trains with it, and all that is there stays up to date."""

    def enter(params: dict[str, Any]) -> None:
        like = params["runs"]["tiny-gaussian-s050"]
        params["runs"]["tiny-new-s050"] = like | {"method": "unheard_of", "loss": {"weight": 2.0}}

    (checkout.path / "rrcm/training/methods/unheard_of.py").write_text(NEW_METHOD)
    assert "up to date" in checkout.run("dvc", "status")
    checkout.edit(enter)

    assert checkout.repro("train@tiny-new-s050") == {"train@tiny-new-s050"}
    stale = set(re.findall(r"^(\S+):$", checkout.run("dvc", "status"), re.MULTILINE))
    assert stale == {"export@tiny-new-s050", "report"}  # runs are listed in the report
    contract = ("tests/training/test_methods.py", "-k", "unheard_of", "-n", "0", "-q")
    assert re.search(r"^1\d passed", checkout.run("pytest", *contract), re.MULTILINE)


def interrupt(checkout: Workspace, stage: str, scratch: str, ready: int) -> None:
    """kill -9 a stage and all its children at a random instant after it has state to resume."""
    process = checkout.start("dvc", "repro", "--single-item", stage, RRCM_SAVE_SECONDS="0")
    deadline = time.monotonic() + 600
    while not any(f.stat().st_size >= ready for f in checkout.path.glob(f".rrcm/resume/{scratch}")):
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.01)
    time.sleep(random.random() * 0.5)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


@pytest.mark.slow
@pytest.mark.parametrize(
    "stage, folder", [("pretrain@tiny", "pretrained"), (f"train@{RUN}", "models")]
)
def test_killed_training_resumes_to_the_same_bytes(checkout: Workspace, stage: str, folder: str):
    before = checkout.digest(f"{folder}/*/*")
    slow = {"pretrained": lambda p: p["pretrain"]["tiny"].update(steps=90)}
    slow["models"] = lambda p: p["recipes"]["finetune"].update(epochs=6)
    checkout.edit(slow[folder])
    checkout.run("dvc", "repro", "--single-item", stage)
    uninterrupted = checkout.digest(f"{folder}/*/*")
    checkout.forget(folder)

    interrupt(checkout, stage, f"{stage}/*/state.safetensors", ready=1)
    output = checkout.run("dvc", "repro", "--single-item", stage)
    note = json.loads((checkout.path / f"provenance/{stage}.json").read_text())

    resumed = checkout.digest(f"{folder}/*/*")
    assert uninterrupted != before
    assert "resuming at step" in output and note["resumed_at"] > 0
    assert resumed and resumed.items() <= uninterrupted.items()


@pytest.mark.slow
def test_killed_sampling_resumes_to_the_same_votes(checkout: Workspace):
    checkout.edit(lambda p: p["sample"].update(n=4000, stop="none"))
    stage = f"sample@{EVAL}"
    checkout.run("dvc", "repro", "--single-item", stage)
    uninterrupted = (checkout.path / f"votes/{EVAL}.jsonl").read_bytes()
    checkout.forget("votes")

    interrupt(checkout, stage, f"{stage}/*/votes.journal", ready=1500)
    left = next(checkout.path.glob(f".rrcm/resume/{stage}/*/votes.journal")).read_bytes()
    checkout.run("dvc", "repro", "--single-item", stage)

    assert 0 < len(left) < len(uninterrupted)
    assert (checkout.path / f"votes/{EVAL}.jsonl").read_bytes() == uninterrupted


def test_votes_of_fewer_images_are_gone_on_from(checkout: Workspace):
    votes = checkout.path / f"votes/{EVAL}.jsonl"
    _, *all_images = votes.read_text().splitlines()

    def choose(subset: str) -> None:
        checkout.edit(lambda p: p["sample"].update(subset=DoubleQuotedScalarString(subset)))

    choose("every:2")
    said = checkout.run("dvc", "repro", f"sample@{EVAL}")
    _, *half = votes.read_text().splitlines()
    shutil.rmtree(checkout.path / ".dvc/cache/runs")  # else DVC restores the first votes
    choose("first:3")
    more = checkout.run("dvc", "repro", f"sample@{EVAL}")
    fresh = checkout.run("rrcm", "certify", "--model", RUN, "--sigma", "0.5", "--subset", "every:3")

    assert half == all_images[::2]
    assert f"{len(half)} of {len(half)} images have votes already" in said
    assert votes.read_text().splitlines()[1:] == all_images[:3]
    assert "2 of 3 images have votes already" in more
    assert f"1 of {len(all_images[::3])} images have votes already" in fresh


def test_state_of_other_parameters_is_never_resumed(checkout: Workspace):
    checkout.edit(lambda p: p["pretrain"]["tiny"].update(steps=90))
    interrupt(checkout, "pretrain@tiny", "pretrain@tiny/*/state.safetensors", ready=1)
    checkout.edit(lambda p: p["pretrain"]["tiny"]["optimizer"].update(lr=0.001))

    checkout.run("dvc", "repro", "--single-item", "pretrain@tiny")

    note = json.loads((checkout.path / "provenance/pretrain@tiny.json").read_text())
    assert note["resumed_at"] == 0
    assert not (checkout.path / ".rrcm/resume/pretrain@tiny").exists()


def test_inputs_that_change_under_a_stage_fail_it(checkout: Workspace):
    """DVC alone would record the edit as the source of a result that it is not the source of."""
    checkout.edit(lambda p: p["pretrain"]["tiny"].update(steps=90))
    lock = (checkout.path / "dvc.lock").read_bytes()
    process = checkout.start(
        "dvc", "repro", "--single-item", "pretrain@tiny", RRCM_SAVE_SECONDS="0"
    )
    while not [*checkout.path.glob(".rrcm/resume/pretrain@tiny/*/state.safetensors")]:
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.01)

    checkout.edit(lambda p: p["pretrain"]["tiny"].update(steps=91))
    output, _ = process.communicate()

    assert process.returncode != 0
    assert "error: pretrain@tiny: code, parameters or data changed while it ran" in output
    assert (checkout.path / "dvc.lock").read_bytes() == lock


def test_data_are_what_their_pointer_says_and_new_ones_are_told(checkout: Workspace):
    assert "up to date" in checkout.run("dvc", "status", "data.dvc")
    pointer, raw = checkout.path / "data.dvc", checkout.path / "data/digits/digits.csv"
    promised = pointer.read_bytes()

    assert promised == committed("data.dvc").encode()
    assert "as data.dvc has them" in checkout.run("rrcm", "data", "digits")
    (checkout.path / "data/stray").write_text("not of this data set")
    assert "new to data.dvc: commit it" in checkout.run("rrcm", "data", "digits")
    assert pointer.read_bytes() != promised
    (checkout.path / "data/stray").unlink()
    raw.chmod(0o644)
    raw.write_bytes(raw.read_bytes().replace(b"5", b"6", 1))
    assert "error: data/digits/digits.csv: SHA-256" in checkout.stage("shard", fails=True)
    checkout.run("rrcm", "data", "digits")
    assert pointer.read_bytes() == promised
    assert "up to date" in checkout.run("dvc", "status", "data.dvc")
