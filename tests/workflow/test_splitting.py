"""Sampling in shares: the votes of one process, byte for byte, whatever became of the shares."""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
from builders import header, random_votes, refused
from repositories import node
from workspace import EVAL, Workspace

from pipeline.workflow import lockfile, reproduce, splitting, stage_run
from rrcm.certification.votes import records
from rrcm.core.errors import VotesError

STAGE, DIGEST = f"sample@{EVAL}", "0123456789abcdef" * 4
VOTES = Path("votes") / f"{EVAL}.jsonl"


def test_only_samplings_that_may_run_have_shares_and_wait_for_them():
    plan = [
        node("export@a"),
        node("export@b", reason="its command changed"),
        node("sample@a", "export@a"),
        node("sample@b", "export@b"),
        node("certify@b", "sample@b"),
    ]
    found = {one.name: one for one in splitting.expanded(plan, count=2)}

    assert [*found] == [
        *("export@a", "export@b", "sample@a", "sample@b:1of2", "sample@b:2of2"),
        *("sample@b", "certify@b"),
    ]
    assert found["sample@b:1of2"].upstream == ("export@b",)
    assert found["sample@b"].upstream == ("export@b", "sample@b:1of2", "sample@b:2of2")
    assert splitting.split("sample@b:1of2") == ("sample@b", "1/2")
    assert splitting.split("sample@b") == ("sample@b", "")
    assert splitting.expanded(plan, count=1) == plan


@pytest.fixture
def drawn(tmp_path: Path, monkeypatch) -> list[records.Row]:
    """Rows of ten images; shares 1 and 2 of 4 have drawn six of them, the second unfinished."""
    monkeypatch.chdir(tmp_path)
    whole, rows = random_votes(0, images=10)
    for i in (1, 2):
        folder = splitting.SCRATCH / f"{STAGE}:{i}of4" / DIGEST[:16]
        folder.mkdir(parents=True)
        part = dataclasses.replace(whole, shard=f"{i}/4")
        records.write(folder / splitting.VOTES, part, rows[i - 1 :: 4])
    (folder / splitting.VOTES).rename(folder / splitting.JOURNAL)  # the second was lost on its way
    return rows


def test_what_shares_have_drawn_is_what_the_stage_resumes_from(drawn: list[records.Row]):
    splitting.merge(STAGE, DIGEST)
    splitting.merge(STAGE, DIGEST)  # as after a kill
    journal = splitting.SCRATCH / STAGE / DIGEST[:16] / splitting.JOURNAL
    found, rows, torn = records.scan(journal)

    assert (found.shard, torn) == ("1/1", False)
    assert sorted(row.idx for row in rows) == sorted(row.idx for row in drawn[::4] + drawn[1::4])
    assert {row.idx: row for row in rows}.items() <= {row.idx: row for row in drawn}.items()
    assert splitting.drawn(STAGE)
    splitting.clear(STAGE)
    assert not splitting.drawn(STAGE)


def test_shares_of_other_inputs_are_left_out_and_those_of_other_functions_refused(
    drawn: list[records.Row],
):
    splitting.merge(STAGE, DIGEST[::-1])
    assert not (splitting.SCRATCH / STAGE).exists()
    folder = splitting.SCRATCH / f"{STAGE}:3of4" / DIGEST[:16]
    folder.mkdir(parents=True)
    other = dataclasses.replace(header(), provider="another", images=10, shard="3/4")
    records.write(folder / splitting.VOTES, other, [])

    with refused(VotesError, "another classifier or setting"):
        splitting.merge(STAGE, DIGEST)


def test_votes_in_shares_are_those_of_one_process(
    checkout: Workspace, monkeypatch: pytest.MonkeyPatch
):
    wanted = (checkout.path / VOTES).read_bytes()
    (checkout.path / VOTES).unlink()
    monkeypatch.chdir(checkout.path)
    for pull in (False, True):  # DVC would restore them, and no share is drawn
        assert stage_run._known(STAGE, pull=pull) and not VOTES.exists()
    with lockfile.edited() as stages:  # as after an edit: they are those of another n
        stages[STAGE]["params"]["params.yaml"]["sample"]["n"] = 50
    assert stage_run._known(STAGE, pull=True)  # by the cache of runs
    shutil.rmtree(".dvc/cache/runs")
    for pull in (False, True):
        assert not stage_run._known(STAGE, pull=pull) and not VOTES.exists()
    own = checkout.environment(RRCM_SLOTS_DIR="slots", RRCM_SLOTS="2", OMP_WAIT_POLICY="passive")
    for name, value in own.items():
        monkeypatch.setenv(name, value)
    told: list[str] = []
    assert reproduce.side_by_side([STAGE], jobs=2, shares=2, say=told.append) == 0

    done = [line.partition(",")[0] for line in told]
    assert sorted(done) == [f"{STAGE}: done", f"{STAGE}:1of2: done", f"{STAGE}:2of2: done"]
    assert (checkout.path / VOTES).read_bytes() == wanted
    notes = json.loads((checkout.path / f"provenance/{STAGE}.json").read_text())
    assert notes["draws"] == 0  # all had been drawn by the shares
    assert not [*(checkout.path / ".rrcm/resume").glob("sample*")]
