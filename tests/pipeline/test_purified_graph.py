"""Denoisers and what stands behind them, through the graph and the command line."""

import json
from pathlib import Path

import pytest
from workspace import Workspace

from rrcm.certification.certify import read

pytestmark = pytest.mark.slow


def test_a_random_classifier_goes_through_the_graph_like_any_other(
    extended: Workspace, tmp_path: Path
):
    """Sampled, certified, described and made again."""
    checkout = extended.copy(tmp_path / "a copy")
    votes = (checkout.path / "votes/densepure.jsonl").read_bytes()
    table = read(checkout.path / "certificates/densepure.csv")
    assert len(table) == 20

    checkout.run("rm", "-r", ".dvc/cache/runs")
    assert checkout.repro("--force", "--single-item", "sample@densepure")
    assert (checkout.path / "votes/densepure.jsonl").read_bytes() == votes

    asked = ("--model", "tiny", "--method", "densepure", "--sigma", "0.5")
    said = checkout.run("rrcm", "certify", *asked)
    assert "densepure" in said and "stale" not in said
    metrics = json.loads((checkout.path / "represented/tiny/metrics.json").read_text())
    assert metrics["probe"].keys() == {"0", "0.5"} and metrics["frechet"]["distance"] > 0

    metrics = json.loads((checkout.path / "generated/told/metrics.json").read_text())
    assert metrics["frechet"].keys() == {"noise", "images", "test"}
    assert metrics["heard"].keys() == {"noise", "images"} and metrics["images"]["noise"] == 20
    assert {path.name for path in checkout.path.glob("generated/told/pictures/*")} == {
        *("noise.png", "images.png")
    }

    checkout.edit(lambda p: p["purified"]["tiny-densepure-s050"].update(votes=3))
    again = checkout.repro("certify@densepure")
    assert again == {"purify@tiny-densepure-s050", "sample@densepure", "certify@densepure"}
    checkout.edit(lambda p: p["denoisers"]["tiny"].update(seed=9))
    assert "stale: densepure: denoisers.tiny.seed was 0, is now 9" in checkout.run(
        "rrcm", "report", "--only", "densepure"
    )
