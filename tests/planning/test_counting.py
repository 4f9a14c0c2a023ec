"""Operations and memory that a plan counts are those of closed forms, and of what runs."""

import dataclasses
import math

import pytest
import torch
from builders import refused
from torch import nn
from workspace import tracked

from pipeline.commands.plan import brief, scaled
from pipeline.planning import counting, devices
from pipeline.planning.devices import Processor
from pipeline.planning.estimates import estimate
from pipeline.planning.work import Planned
from pipeline.project import presets
from rrcm.config import params
from rrcm.core.errors import ConfigError


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


def test_a_linear_layer_is_two_operations_per_weight():
    with counting.without_data():
        module = Pixels(nn.Flatten(), nn.Linear(48, 7))

    found = counting.network(module, (3, 4, 4))

    assert found.operations == 2 * 48 * 7
    assert found.parameters == 48 * 7 + 7


def test_a_convolution_is_counted_at_every_pixel_of_its_output():
    with counting.without_data():
        module = Pixels(nn.Conv2d(3, 5, 3, stride=2))

    assert counting.network(module, (3, 9, 9)).operations == 2 * 5 * 4 * 4 * 3 * 3 * 3


def test_a_block_of_a_transformer_is_counted_by_its_matrix_products(planned):
    """24 w^2 for each of 18 tokens (patches, class and noise), and 4 w for each pair of them."""
    whole, counts = planned.whole, {}
    for depth in (4, 7):
        shape = whole.models["vit"] | {"size": f"64x{depth}x4"}
        deeper = dataclasses.replace(whole, models=whole.models | {"vit": shape})
        counts[depth] = Planned(deeper).networks.classifier("vit", "vit").operations

    assert counts[7] - counts[4] == 3 * 18 * (24 * 64**2 + 4 * 64 * 18)


def test_what_a_forward_pass_keeps_is_counted_for_an_image():
    """ReLU keeps its output for the gradient, and so does the layer after it its input."""
    with counting.without_data():
        module = Pixels(nn.Flatten(), nn.Linear(16, 100), nn.ReLU(), nn.Linear(100, 2))

    found = counting.network(module, (1, 4, 4))

    assert 4 * 116 <= found.saved <= 4 * 3 * 116


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
    network = planned.networks.classifier("vit", "vit")

    assert work.operations == 1_000 * (cfg.n0 + cfg.n) * network.operations
    assert work.bound  # a stopping rule takes fewer
    fewer = dataclasses.replace(planned.whole, sample=dataclasses.replace(cfg, subset="first:10"))
    assert Planned(fewer).stage(work.name).operations == work.operations / 100


@pytest.mark.parametrize("preset", [path.stem for path in tracked("presets/*.yaml")])
def test_every_stage_of_every_preset_can_be_planned(preset, tmp_path):
    whole = read(preset, tmp_path)
    planned, gpus = Planned(whole), devices.named("h100:8")

    for group, names in {
        "train": whole.runs,
        "pretrain": whole.pretrain,
        "sample": whole.evals,
    }.items():
        for name in names:
            work = planned.stage(f"{group}@{name}")
            assert work.operations is None or (work.operations > 0 and work.weights > 0)
            assert work.operations is None or math.isfinite(gpus.rate(work).value)


def test_a_trial_is_a_speed_of_this_processor(planned):
    """No slower than a hundredth, and no faster than ten times, what a matrix product reaches."""
    work = planned.stage("train@vit-rrcm-s050-seed0")
    rate = Processor(planned=planned, records={}).rate(work)
    a = torch.rand(512, 512)
    began = devices.time.perf_counter()
    for _ in range(20):
        a @ a
    product = 20 * 2 * 512**3 / (devices.time.perf_counter() - began)

    assert product / 100 < rate.value < product * 10
    assert "timed here" in rate.how


def test_records_of_like_machines_are_preferred(planned):
    work = planned.stage("train@vit-rrcm-s050-seed0")
    record = {"stage": work.name, "seconds": 100.0, "gradient_evaluations": work.gradients}
    halved = record | {"gradient_evaluations": work.gradients / 2}  # stopped halfway

    rates = devices.recorded(planned, [record, halved])

    assert rates[work.timed].value == work.operations / 100


def test_a_small_network_waits_for_its_operators_and_a_large_one_does_not(planned):
    """Eight GPUs share the images of a batch, and each of them starts every operator."""
    eight, work = devices.named("h100:8"), planned.stage("pretrain@vit-seed0")
    all_devices = dataclasses.replace(work, devices=0)
    huge = dataclasses.replace(all_devices, operations=1e21)

    assert estimate(all_devices, eight).seconds == pytest.approx(work.kernels * eight.launch)
    assert estimate(huge, eight).seconds == pytest.approx(1e21 / (8 * eight.rate(huge).value))
    assert work.kernels > work.steps * 3 * 4 * 10  # four blocks, forward and backward


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
