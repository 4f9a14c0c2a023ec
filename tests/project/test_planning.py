"""`rrcm plan` counts what PyTorch counts, and every stage of every preset has a plan."""

import dataclasses

import pytest
from builders import refused
from helpers import shipped
from torch import nn
from workspace import RUN, Workspace

from pipeline.project import work
from pipeline.project.estimates import UTILISATION, brief, named, plan
from pipeline.project.work import Planned
from rrcm.config import params
from rrcm.core.errors import ConfigError


@pytest.fixture(scope="module")
def planned() -> Planned:
    return Planned(shipped("fashion-mnist"))


class Pixels(nn.Module):
    """Takes pixels and sigma, as the project's networks do."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x, sigma):
        return self.layers(x)


def test_linear_layers_and_convolutions_are_two_operations_per_multiply_add():
    linear = work.counted(lambda: Pixels(nn.Flatten(), nn.Linear(48, 7)), (3, 4, 4))
    convolution = work.counted(lambda: Pixels(nn.Conv2d(3, 5, 3, stride=2)), (3, 9, 9))

    assert linear == 2 * 48 * 7
    assert convolution == 2 * 5 * 4 * 4 * 3 * 3 * 3  # at every pixel of its output


def test_a_block_of_a_transformer_is_counted_by_its_matrix_products(planned):
    """24 w^2 for each of 18 tokens (patches, class and noise), and 4 w for each pair of them."""
    whole, counts = planned.params, {}
    for depth in (4, 7):
        shape = whole.models["vit"] | {"size": f"64x{depth}x4"}
        deeper = dataclasses.replace(whole, models=whole.models | {"vit": shape})
        counts[depth] = Planned(deeper).classifier("vit", "vit")

    assert counts[7] - counts[4] == 3 * 18 * (24 * 64**2 + 4 * 64 * 18)


def test_a_loss_is_counted_by_the_passes_that_it_asks_for(planned):
    """Forward, and backward as two; rRCM's two trained points have a counterpart each."""
    whole = planned.params
    cfg = whole.pretrain["vit-seed0"]
    methods = {
        name: work.fine_tuning(whole.runs[f"vit-{name}-s050-seed0"], cfg.compute, 10)
        for name in ("gaussian", "consistency")
    }

    assert methods == {"gaussian": 3, "consistency": 6}
    assert work.pretraining(cfg, whole.models["vit"], planned.size) == 3 * 2 + 2


def test_what_a_method_keeps_is_counted_by_the_draws_that_it_asks_for():
    """A teacher's 200; 100, and 16 in 10 of 16 epochs; a loss with phases by their lengths."""
    whole = shipped("digits-all")
    runs = {name: whole.runs[f"tiny-{name}-s050"] for name in ("catrs", "reweighting", "macer")}
    compute = whole.recipes["scratch-8"].compute

    looks = {name: work.looks(run, epochs=16, images=30) for name, run in runs.items()}
    assert looks == {"catrs": [6_000, 0], "reweighting": [0, 30 * (100 + 160)], "macer": [0, 0]}
    passes = {name: work.fine_tuning(run, compute, 10) for name, run in runs.items()}
    assert (passes["catrs"], passes["macer"]) == (2 * 2 + 6 * 2, 3 * 4)
    assert passes["reweighting"] == pytest.approx((6 * 6 + 10 * 14) / 16, rel=0.03)


def test_sampling_grows_with_images_draws_and_the_network(planned):
    cfg = planned.params.sample
    name = "sample@vit-rrcm-s050-seed0-e050"
    one = planned.stage(name)

    each = planned.classifier("vit", "vit")
    assert one.operations == 1_000 * (cfg.n0 + cfg.n) * each
    assert one.bound  # a stopping rule takes fewer
    fewer = dataclasses.replace(planned.params, sample=dataclasses.replace(cfg, subset="first:10"))
    assert Planned(fewer).stage(name).operations == one.operations / 100


@pytest.mark.parametrize("preset", ["digits-diffusion", "imagenet-diffusion"])
def test_every_stage_can_be_planned(preset):
    """Of the one preset that has all sections; what is behind an imported denoiser has no time."""
    whole = shipped(preset)
    planned, gpus = Planned(whole), named("h100:8")
    sections = {
        "pretrain": whole.pretrain, "train": whole.runs, "denoise": whole.denoisers,
        "represent": whole.representations, "generate": whole.generations,
        "sample": whole.evals,
    }  # fmt: skip

    assert planned.stage("shard") is planned.stage("report") is None
    for group, names in sections.items():
        for name in names:
            one = planned.stage(f"{group}@{name}")
            seconds = gpus.seconds(one)
            assert (seconds is None) == (one.operations is None)
            if group in ("pretrain", "denoise", "represent") and seconds is not None:
                assert seconds > 0


def test_only_takes_what_it_needs_along_and_seeds_are_one_row():
    lines = plan("fashion-mnist", only=["sample@vit-rrcm-s050-*"], gpu="h100")
    rows = [" ".join(line.split()) for line in lines.splitlines()]

    groups = {row.partition("@")[0].partition(" ")[0] for row in rows[3 : rows.index("", 3) - 1]}
    assert groups == {"pretrain", "train", "sample"}
    assert any(row.startswith("train@vit-rrcm-s050-seed* 3 x ") for row in rows)
    assert any(row.startswith("all, one after the other") and "≤" in row for row in rows)
    with refused(ConfigError, "--only vit-rcm", "no run, evaluation or stage has such a name"):
        plan("digits", only=["vit-rcm"], gpu="h100")


def test_time_is_operations_by_the_peak_of_at_most_the_devices_there_are(planned):
    one = dataclasses.replace(planned.stage("pretrain@vit-seed0"), precision="fp32", devices=0)

    eight = named("h100:8").seconds(one)
    assert eight == pytest.approx(one.operations / (8 * UTILISATION * 66.9e12))
    assert named("h100").seconds(dataclasses.replace(one, devices=9)) == pytest.approx(8 * eight)


def test_pictures_of_ones_own_are_counted_once_they_are_shards(finished: Workspace, monkeypatch):
    """The digits as such a dataset: its sizes are those of the indexes of its splits."""
    monkeypatch.chdir(finished.path)
    whole = params.load()
    own = dataclasses.replace(whole, data=dataclasses.replace(whole.data, name="folder"))

    there, known = Planned(own).stage(f"train@{RUN}"), Planned(whole).stage(f"train@{RUN}")
    assert (there.what, there.operations) == (known.what, known.operations)
    monkeypatch.chdir(finished.path.parent)
    with refused(ConfigError, "data.name: how many images folder has", "`rrcm repro shard`"):
        Planned(own).stage(f"train@{RUN}")


@pytest.mark.parametrize("count", ["0", "many", ""])
def test_devices_that_are_not_known_are_refused(count):
    with refused(ConfigError, f"--gpu h100:{count}: a name and a number up to 1024, as in h100:8"):
        named(f"h100:{count}")
    with refused(ConfigError, "--gpu h1000: no rates of 'h1000' are known", "Did you mean"):
        named("h1000")


def test_numbers_have_three_digits():
    assert [brief(s) for s in (1.234, 90, 7100, 300_000)] == ["1.23 s", "90 s", "118 min", "83.3 h"]
