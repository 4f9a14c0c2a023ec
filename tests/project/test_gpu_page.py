"""`make gpu`, as far as a machine without a GPU can tell."""

import pytest
from workspace import ROOT, Workspace


@pytest.mark.slow
def test_its_rehearsal_on_the_cpu_fails_in_no_part_and_writes_nothing():
    before = {*ROOT.glob("benchmarks/gpu-*")}
    said = Workspace(ROOT).run("python", "-m", "benchmarks.gpu", "--device", "cpu", "--small")

    assert "Failed" not in said
    assert "Answers are the same;" in said
    for name in ("gaussian", "sound"):
        assert f"| {name} | 6,144,000 | 0 |" in said
    assert {*ROOT.glob("benchmarks/gpu-*")} == before
