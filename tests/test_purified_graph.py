"""Denoisers and what stands behind them, through the graph and the command line."""

import json
from typing import Any

import pytest
from ruamel.yaml import YAML
from workspace import Workspace

from rrcm.certify import read

pytestmark = pytest.mark.slow
ADDED = """
models:
  uvit: &uvit {size: 16x1x2, image_size: 8, channels: 1, patch_size: 4, position_std: 0.5,
    time_scale: 1.0, condition: 0}
  told: {<<: *uvit, condition: 64}
denoisers:
  tiny: &tiny
    network: uvit
    model: uvit
    objective: diffusion
    seed: 0
    start: shards/train
    guide: shards/train
    architecture: vit
    steps: 4
    batch_size: 16
    optimizer: {algorithm: adamw, lr: 1.0e-3, momentum: 0.9, weight_decay: 0.0, warmup: 0.0,
      warmup_by: step, horizon: 1.0, milestones: [], gamma: 0.1, clip: 1.0, clip_warmup: true}
    ema: 0.5
    loss: {schedule: {kind: linear, steps: 100, rescale: false}, mean: 0.0, std: 0.0}
    augment: []
    compute: {devices: 1, precision: fp32, accumulate: 1, compile: false, recompute: false,
      workers: 0}
  told: {<<: *tiny, model: told, guide: represented/tiny}
purified:
  tiny-densepure-s050:
    method: densepure
    sigma: 0.5
    denoiser: denoisers/tiny
    network: uvit
    run: tiny-rrcm-s050
    architecture: vit
    purifier: multi_step
    purify: {steps: 2, rule: nearest, variance: small}
    votes: 2
    local: {copies: 0, sigma: 0.0, fixed: true, seed: 0}
representations:
  tiny: {encoder: pretrained/tiny, architecture: vit, model: tiny, t_min: 0.002, t_max: 80.0,
    sigmas: [0.0, 0.5], penalty: 0.001, entropy: 0.0, normalised: true, images: 100,
    batch_size: 64, seed: 0}
generations:
  told: {denoiser: denoisers/told, network: uvit, condition: represented/tiny,
    features: models/tiny-rrcm-s050, architecture: vit, sampler: heun, steps: 3, images: 20,
    batch_size: 8, seed: 0}
evals:
  densepure: {run: tiny-densepure-s050, architecture: vit, sigma: 0.5}
"""


def add(params: dict[str, Any]) -> None:
    for section, entries in YAML(typ="safe").load(ADDED).items():
        params[section].update(entries)


def test_a_random_classifier_goes_through_the_graph_like_any_other(checkout: Workspace):
    """Made, sampled, resumed, certified and timed; nothing that was there runs again."""
    checkout.edit(add)

    made = checkout.repro("certify@densepure", "generate@told")

    wanted = {"denoise@tiny", "purify@tiny-densepure-s050", "sample@densepure", "certify@densepure"}
    wanted |= {"represent@tiny", "denoise@told", "generate@told"}
    assert made == wanted
    votes = (checkout.path / "votes/densepure.jsonl").read_bytes()
    table = read(checkout.path / "certificates/densepure.csv")
    assert len(table) == 20

    checkout.run("rm", "-r", ".dvc/cache/runs")
    assert checkout.repro("--force", "--single-item", "sample@densepure")
    assert (checkout.path / "votes/densepure.jsonl").read_bytes() == votes

    asked = ("--model", "tiny", "--method", "densepure", "--sigma", "0.5")
    said = checkout.run("rrcm", "certify", *asked)
    assert "densepure" in said and "stale" not in said
    metrics = json.loads((checkout.path / "generated/told/metrics.json").read_text())
    assert metrics["images"]["generated"] == 20 and metrics["frechet"]["generated"] > 0

    checkout.repro()
    said = checkout.run("rrcm", "latency", "--seconds", "0.1")
    assert "densepure" in said and (checkout.path / "results/latency/latency.png").exists()
    assert "stale" not in said
    assert "up to date" in checkout.run("dvc", "status")

    checkout.edit(lambda p: p["purified"]["tiny-densepure-s050"].update(votes=3))
    again = checkout.repro("certify@densepure")
    assert again == {"purify@tiny-densepure-s050", "sample@densepure", "certify@densepure"}
    checkout.edit(lambda p: p["denoisers"]["tiny"].update(seed=9))
    assert "stale: densepure: denoisers.tiny.seed was 0, is now 9" in checkout.run("rrcm", "report")
