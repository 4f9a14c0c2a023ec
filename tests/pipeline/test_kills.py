"""Kills and second processes lose nothing: some of what ``benchmarks.drills.kills`` tries."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML
from survivors import mark, marked, until
from workspace import EVAL, ROOT, Workspace

STAGE = f"sample@{EVAL}"


def drill(*options: str) -> dict[str, list[str]]:
    """The rows that the drill prints: what -> operations, kills, same, lost, tracebacks."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.drills.kills", *options],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.strip("| ").split(" | ") for line in done.stdout.splitlines() if "|" in line]
    return {what: row for what, *row in rows[2:]}


def test_kills_at_some_operations_and_two_processes_at_once_lose_nothing(finished: Workspace):
    rows = drill("--checkout", str(finished.path), "--only", "certify,twice rrcm", "--kills", "2")

    assert rows.pop("two processes: certify on demand") == ["–", "2", "2", "0", "0"]
    ((operations, *found),) = rows.values()
    assert int(operations) > 15 and found == ["2", "2", "0", "0"]


@pytest.mark.slow
def test_kills_at_a_few_operations_of_everything_lose_nothing(extended: Workspace):
    rows = drill("--checkout", str(extended.path), "--kills", "2")

    assert all(row[1:] == ["2", "2", "0", "0"] for row in rows.values())
    stages = YAML(typ="safe").load(ROOT / "dvc.yaml")["stages"]
    assert rows.keys() > {"certify on demand", *(f"stage {name}" for name in stages)}


def scratch(checkout: Workspace) -> list[Path]:
    return [*checkout.path.glob(f".rrcm/resume/{STAGE}/*/votes.journal")]


def test_a_stage_ends_with_its_dvc_and_what_it_saved_is_gone_on_from(checkout: Workspace):
    checkout.edit(lambda p: p["sample"].update(n=4000, stop="none"))
    marks = mark()
    repro = ("dvc", "repro", "--single-item", STAGE)
    dvc = checkout.start(*repro, RRCM_SAVE_SECONDS="0", **marks)
    until(lambda: scratch(checkout) and scratch(checkout)[0].stat().st_size > 1500)

    dvc.kill()  # and not its group
    until(lambda: not marked(marks), seconds=20)
    dvc.communicate()

    left = scratch(checkout)[0].read_bytes()
    checkout.run(*repro)
    assert left.count(b"\n") > 1 and not scratch(checkout)
    assert json.loads((checkout.path / f"provenance/{STAGE}.json").read_text())["draws"] > 0
