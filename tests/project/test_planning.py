"""Operations that a plan counts are those of closed forms, and its times those of devices."""

import dataclasses
import json
import time

import pytest
import torch
from builders import refused
from torch import nn
from workspace import tracked

from pipeline.project import presets
from pipeline.project.planning import counting, devices
from pipeline.project.planning.plan import brief, plan, scaled
from pipeline.project.planning.work import Planned
from rrcm.config import params
from rrcm.core.errors import ConfigError, StageError


@pytest.fixture(scope="module")
def planned(tmp_path_factory) -> Planned:
    return Planned(read("fashion-mnist", tmp_path_factory.mktemp("preset")))


def read(preset, folder):
    path = folder / "params.yaml"
    path.write_text(presets.found(preset)[0])
    return params.load(path)


class Pixels(nn.Module):
    """Takes pixels and sigma, as the project's networks do."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x, sigma):
        return self.layers(x)


def test_linear_layers_and_convolutions_are_two_operations_per_multiply_add():
    linear = counting.network(lambda: Pixels(nn.Flatten(), nn.Linear(48, 7)), (3, 4, 4))
    convolution = counting.network(lambda: Pixels(nn.Conv2d(3, 5, 3, stride=2)), (3, 9, 9))

    assert (linear.operations, linear.parameters) == (2 * 48 * 7, 48 * 7 + 7)
    assert convolution.operations == 2 * 5 * 4 * 4 * 3 * 3 * 3  # at every pixel of its output


def test_a_block_of_a_transformer_is_counted_by_its_matrix_products(planned):
    """24 w^2 for each of 18 tokens (patches, class and noise), and 4 w for each pair of them."""
    whole, counts = planned.whole, {}
    for depth in (4, 7):
        shape = whole.models["vit"] | {"size": f"64x{depth}x4"}
        deeper = dataclasses.replace(whole, models=whole.models | {"vit": shape})
        counts[depth] = Planned(deeper).classifier("vit", "vit").operations

    assert counts[7] - counts[4] == 3 * 18 * (24 * 64**2 + 4 * 64 * 18)


def test_consistency_asks_for_a_pass_more_than_gaussian(planned):
    runs = planned.whole.runs
    gaussian, consistency = (
        counting.method(runs[f"vit-{name}-s050-seed0"]) for name in ("gaussian", "consistency")
    )

    assert gaussian.passes == 3 and gaussian.gradients == 1  # forward, and backward as two
    assert consistency.passes == 6 and consistency.gradients == 2


def test_a_plan_counts_the_gradient_evaluations_that_the_preset_promises(planned):
    """Equal fine-tuning and equal totals, as docs/results-fashion-mnist.md says."""
    gradients = {
        name: planned.stage(f"train@vit-{name}-s050-seed0").gradients
        for name in ("rrcm", "gaussian", "consistency", "gaussian-total", "consistency-total")
    }

    assert gradients["rrcm"] == gradients["gaussian"] == gradients["consistency"] == 471_040
    assert gradients["gaussian-total"] == gradients["consistency-total"] == 1_413_120


def test_sampling_grows_with_images_draws_and_the_network(planned):
    cfg = planned.whole.sample
    work = planned.stage("sample@vit-rrcm-s050-seed0-e050")

    each = planned.classifier("vit", "vit").operations
    assert work.operations == 1_000 * (cfg.n0 + cfg.n) * each
    assert work.bound  # a stopping rule takes fewer
    fewer = dataclasses.replace(planned.whole, sample=dataclasses.replace(cfg, subset="first:10"))
    assert Planned(fewer).stage(work.name).operations == work.operations / 100


@pytest.mark.parametrize("preset", [path.stem for path in tracked("presets/*.yaml")])
def test_every_stage_of_every_preset_can_be_planned(preset, tmp_path):
    """Only what is behind an imported denoiser has no time."""
    whole = read(preset, tmp_path)
    planned, gpus = Planned(whole), devices.named("h100:8")
    sections = {
        "pretrain": whole.pretrain, "train": whole.runs, "denoise": whole.denoisers,
        "represent": whole.representations, "generate": whole.generations, "sample": whole.evals,
        "export": whole.runs, "member": whole.members, "combine": whole.ensembles,
        "purify": whole.purified,
    }  # fmt: skip

    assert planned.stage("shard").disk > 0 and planned.stage("report").operations == 0
    for group, names in sections.items():
        for name in names:
            work = planned.stage(f"{group}@{name}")
            seconds = planned.seconds(work, gpus)
            assert (seconds is None) == (work.operations is None)
            if group in ("pretrain", "denoise", "represent") and seconds is not None:
                assert seconds > 0


def test_only_takes_what_it_needs_along_and_seeds_are_one_row():
    lines = plan("fashion-mnist", only=["sample@vit-rrcm-s050-*"], gpu="h100", as_json=False)
    rows = [" ".join(line.split()) for line in lines.splitlines()]

    groups = {row.partition("@")[0].partition(" ")[0] for row in rows[3 : rows.index("", 3) - 1]}
    assert groups == {"shard", "pretrain", "train", "export", "sample"}
    assert any(row.startswith("train@vit-rrcm-s050-seed* 3 x ") for row in rows)
    assert any(row.startswith("all, one after the other") and "≤" in row for row in rows)
    with refused(StageError, "--only vit-rcm", "no run, evaluation or stage has such a name"):
        plan("digits", only=["vit-rcm"], gpu="h100", as_json=False)
    found = json.loads(plan("digits", only=["shard"], gpu="h100", as_json=True))
    assert [row["name"] for row in found["stages"]] == ["shard"]


def test_a_trial_is_a_speed_of_this_processor(planned):
    """No slower than a hundredth, and no faster than ten times, what a matrix product reaches."""
    work = planned.stage("train@vit-rrcm-s050-seed0")
    rate = work.operations / planned.seconds(work, None)
    a = torch.rand(512, 512)
    began = time.perf_counter()
    for _ in range(20):
        a @ a
    product = 20 * 2 * 512**3 / (time.perf_counter() - began)

    assert product / 100 < rate < product * 10


def test_a_small_network_waits_for_its_operators_and_a_large_one_does_not(planned):
    """Eight GPUs share the images of a batch, and each of them starts every operator."""
    work = dataclasses.replace(planned.stage("pretrain@vit-seed0"), devices=0)
    huge = dataclasses.replace(work, operations=1e21, precision="fp32")

    eight = devices.named("h100:8")
    assert planned.seconds(work, eight) == pytest.approx(5e-6 * work.kernels)
    assert planned.seconds(huge, eight) == pytest.approx(1e21 / (8 * 0.35 * 66.9e12))
    assert work.kernels > work.steps * 3 * 4 * 10  # four blocks, forward and backward
    with refused(ConfigError, "compute.devices is 9, and there are 8 of h100"):
        planned.seconds(dataclasses.replace(work, devices=9), eight)


@pytest.mark.parametrize(
    ("gpu", "words"),
    [
        ("h1000", "no rates of 'h1000' are known"),
        ("h100:0", "a name and a number up to 1024, as in h100:8"),
        ("h100:many", "a name and a number up to 1024"),
        ("h100:", "a name and a number up to 1024"),
    ],
)
def test_devices_that_are_not_known_are_refused(gpu, words):
    with refused(ConfigError, f"--gpu {gpu}", words):
        devices.named(gpu)


def test_numbers_have_three_digits():
    assert [brief(s) for s in (1.234, 90, 7100, 300_000)] == ["1.23 s", "90 s", "118 min", "83.3 h"]
    assert [scaled(v, "B") for v in (999, 1e3, 1.5e9, 3.21e21)] == [
        *("999 B", "1 kB", "1.5 GB", "3.21 ZB")
    ]
