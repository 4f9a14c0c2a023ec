"""`make gpu`, as far as a machine without a GPU can tell."""

import subprocess
import sys

import pytest
import torch
from workspace import ROOT


def run(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.gpu", *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so_in_one_line():
    done = run()

    assert done.returncode == 1
    assert done.stderr.startswith("no GPU: ") and done.stderr.count("\n") == 1
    assert not done.stdout


@pytest.mark.slow
def test_its_rehearsal_on_the_cpu_fails_in_no_part_and_writes_nothing():
    before = {*ROOT.glob("benchmarks/gpu-*")}
    done = run("--device", "cpu", "--small")

    assert done.returncode == 0, done.stdout
    assert "Failed" not in done.stdout
    assert "Answers are the same;" in done.stdout
    for name in ("gaussian", "sound"):
        assert f"| {name} | 6,144,000 | 0 |" in done.stdout
    assert {*ROOT.glob("benchmarks/gpu-*")} == before
