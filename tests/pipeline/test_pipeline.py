"""The graph re-runs what changed and nothing else, and resumes from what it has."""

import json
import shutil

import pytest
from builders import printed, refusal
from ruamel.yaml.scalarstring import DoubleQuotedScalarString
from workspace import EVAL, Workspace, committed

from pipeline.cli import data
from pipeline.stages import shard
from pipeline.workflow import plan
from rrcm.certification.votes import records
from rrcm.core.errors import DataError
from rrcm.data.splits import shards

OTHER = "tiny-gaussian-s050"
EVALS = (EVAL, f"{OTHER}-e050")


def test_after_a_run_nothing_runs_and_only_small_files_are_left_to_git(finished: Workspace):
    assert finished.repro() == set()
    status = finished.run("git", "status", "--short").split()[1::2]
    assert set(status) == {"dvc.lock", "metrics/"}


def test_a_new_alpha_runs_from_votes_on(checkout: Workspace, monkeypatch: pytest.MonkeyPatch):
    checkout.edit(lambda p: p["certify"].update(alpha=0.01))
    monkeypatch.chdir(checkout.path)

    both = {f"{stage}@{name}" for stage in ("sample", "certify") for name in EVALS}
    assert {node.name for node in plan.load() if node.reason} == {*both, "report"}


def test_an_unpacked_archive_says_that_dvc_needs_git(checkout: Workspace):
    shutil.rmtree(checkout.path / ".git")
    for command in (("status",), ("data", "digits"), ("repro", "--jobs", "2"), ("flow", "run")):
        said = refusal(checkout.path, "rrcm", *command)
        assert said.startswith(
            f"error: {checkout.path} is no git repository, which DVC needs: clone"
        )
    assert "is right" in printed(checkout.path, "check")


@pytest.mark.slow
def test_recipes_are_compared_on_images_that_no_table_shows(checkout: Workspace):
    """In the graph and on the command line alike; what is of these images says so."""
    on_test = records.read(checkout.path / f"votes/{EVAL}.jsonl")[0]
    held = {name: shards.read(checkout.path / "shards", name) for name in shards.SPLITS}
    checkout.edit(lambda p: p["sample"].update(split="choice"))

    checkout.repro()

    header, rows = records.read(checkout.path / f"votes/{EVAL}.jsonl")
    assert (on_test.split, header.split) == ("test", "choice")
    assert [row.idx for row in rows] == held["choice"].idx.tolist()
    assert not {row.idx for row in rows} & {*held["train"].idx, *held["test"].idx}
    assert "digits, choice split" in (checkout.path / "report/index.html").read_text()

    command = ("rrcm", "certify", "--model", "tiny", "--sigma", "0.5")
    assert f"votes: votes/{EVAL}.jsonl" in checkout.run(*command)
    said = checkout.run(*command, "--split", "test")
    assert "of the test split" in said and "votes: .rrcm/votes/" in said
    assert len({*checkout.path.glob("results/*.csv")}) == 2, "one split's table over the other's"


def test_what_changed_runs_with_all_after_it_and_reverting_trains_nothing(checkout: Workspace):
    """Half of the labels train a run on half of the images."""
    before = checkout.digest("models/*/*"), checkout.digest("votes/*.jsonl")
    checkout.edit(lambda p: p["recipes"]["scratch"].update(labels=0.5))

    stages = {f"train@{OTHER}", f"export@{OTHER}", f"sample@{OTHER}-e050", f"certify@{OTHER}-e050"}
    assert checkout.repro() == {*stages, "report"}

    assert checkout.digest(f"models/{OTHER}/model*").items().isdisjoint(before[0].items())
    note = json.loads((checkout.path / f"provenance/train@{OTHER}.json").read_text())
    split = shards.read(checkout.path / "shards", "train")
    steps = len(split.labelled(0.5, seed=0).labels) // 64
    assert 0 < steps < len(split.labels) // 64
    assert note["gradient_evaluations"] == 2 * steps * 64

    checkout.edit(lambda p: p["recipes"]["scratch"].update(labels=1.0))

    assert checkout.repro() == set()
    assert (checkout.digest("models/*/*"), checkout.digest("votes/*.jsonl")) == before


def test_votes_of_more_images_are_gone_on_from(checkout: Workspace):
    votes = checkout.path / f"votes/{EVAL}.jsonl"
    _, *all_images = votes.read_text().splitlines()
    half = DoubleQuotedScalarString("every:2")
    checkout.edit(lambda p: p["sample"].update(subset=half))

    said = checkout.run("dvc", "repro", "--single-item", f"sample@{EVAL}")

    assert votes.read_text().splitlines()[1:] == all_images[::2]
    assert f"{len(all_images[::2])} of {len(all_images[::2])} images have votes already" in said


def test_data_are_what_their_pointer_says_and_new_ones_are_told(
    checkout: Workspace, monkeypatch: pytest.MonkeyPatch
):
    def acquire() -> str:
        return data.acquire("digits", None, verify=True, skip_unreadable=False)

    monkeypatch.chdir(checkout.path)
    pointer, raw = checkout.path / "data.dvc", checkout.path / "data/digits/digits.csv"
    promised = pointer.read_bytes()
    assert promised == committed("data.dvc").encode()
    (checkout.path / "data/stray").write_text("not of this data set")
    assert acquire().endswith("new to data.dvc, which now lists digits, stray: commit it")
    assert pointer.read_bytes() != promised

    (checkout.path / "data/stray").unlink()
    raw.chmod(0o644)
    raw.write_bytes(raw.read_bytes().replace(b"5", b"6", 1))
    with pytest.raises(DataError, match=r"^data/digits/digits.csv: SHA-256"):
        shard.main()
    shutil.rmtree(checkout.path / "data/digits")
    acquire()
    assert pointer.read_bytes() == promised
