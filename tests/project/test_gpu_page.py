"""`make gpu`, as far as a machine without a GPU can tell."""

import subprocess
import sys

import pytest
from workspace import ROOT


@pytest.mark.slow
def test_its_rehearsal_on_the_cpu_fails_in_no_part_and_writes_nothing():
    before = {*ROOT.glob("benchmarks/gpu-*")}
    command = [sys.executable, "-m", "benchmarks.gpu", "--device", "cpu", "--small"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)

    assert done.returncode == 0, done.stdout
    assert "Failed" not in done.stdout
    assert "Answers are the same;" in done.stdout
    for name in ("gaussian", "sound"):
        assert f"| {name} | 6,144,000 | 0 |" in done.stdout
    assert {*ROOT.glob("benchmarks/gpu-*")} == before
