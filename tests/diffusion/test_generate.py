"""Pictures from noise solve the flow's equation, are a function of the seed, and are measured."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from builders import SIGMA, images, refused, save_classifier, split
from helpers import MODEL
from torch import nn

from rrcm.config.evaluation import Generation
from rrcm.core.errors import CheckpointError, ConfigError
from rrcm.diffusion import condition, sampling
from rrcm.evaluation import fid, frechet, image_grid
from rrcm.models.trained import denoiser
from rrcm.models.trained.base import classifier
from rrcm.models.trained.denoiser import Denoiser, Schedule, Times
from rrcm.noise import units

SCHEDULES = {
    "linear": Schedule(kind="linear", steps=1000, rescale=False),
    "cosine": Schedule(kind="cosine", steps=4000, rescale=True),
    "edm": Schedule(kind="edm", steps=0, rescale=False),
}
CFG = Generation(
    denoiser="denoisers/tiny",
    network="uvit",
    condition="none",
    features="models/a-run",
    architecture="vit",
    sampler="heun",
    steps=5,
    images=7,
    batch_size=4,
    seed=3,
)
SHAPE = (1, 8, 8)


class Exact(nn.Module):
    """The posterior mean of pixels that are normal with ``mean`` and ``variance``."""

    mean, variance = 0.3, 0.09

    def __init__(self, schedule):
        super().__init__()
        self.times, self.calls = Times(schedule), 0

    def forward(self, x, t, condition=None):
        self.calls += 1
        s = self.times.level(t)
        return self.mean + self.variance / (self.variance + s**2) * (x - self.mean), None


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=[*SCHEDULES])
@pytest.mark.parametrize(
    ("sampler", "calls", "error"), [("heun", 79, 0.03), ("dpm_solver", 40, 0.01)]
)
def test_pictures_of_a_gaussian_model_solve_the_equation_of_the_flow(
    sampler, calls, error, schedule
):
    """x - m goes with the root of v + s^2, whose derivative is (x - E[x_0 | x]) / s."""
    model, z = Exact(schedule), torch.tensor([-2, -0.5, 0, 1.5], dtype=torch.float64)
    z = z.view(-1, 1, 1, 1)
    low, high = 0.002, 80.0
    if model.times.discrete:
        low = max(low, model.times.levels[0].item())
        high = min(high, model.times.levels[-1].item())
    m, v = model.mean, model.variance
    ends = m + np.sqrt((v + low**2) / (v + high**2)) * (high * z - m)

    found = sampling.SAMPLERS[sampler](model, z, 40)
    assert model.calls == calls
    expected = m + v / (v + low**2) * (ends - m)  # and what is left is taken away in one step
    torch.testing.assert_close(found, expected, rtol=0, atol=error * v**0.5)


class Odd(nn.Module):
    """A network that keeps what it is told."""

    def __init__(self):
        super().__init__()
        self.weight, self.conditions = nn.Parameter(torch.tensor(0.3)), []

    def forward(self, x, told, condition=None):
        self.conditions.append(condition)
        return torch.tanh(self.weight * x + told.view(-1, 1, 1, 1) / 1000)


def pictures(cfg, network=None, **more):
    model = Denoiser(network or Odd(), Times(SCHEDULES["edm"]))
    return np.concatenate([*sampling.generate(model, cfg, SHAPE, max_value=16, **more)])


def test_pictures_are_a_function_of_the_seed_in_whatever_batches():
    found = pictures(CFG)

    assert found.shape == (7, *SHAPE) and found.dtype == np.uint8 and found.max() <= 16
    assert len(np.unique(found)) > 3
    np.testing.assert_array_equal(pictures(replace(CFG, batch_size=7)), found)
    np.testing.assert_array_equal(pictures(replace(CFG, images=3)), found[:3])
    assert (pictures(replace(CFG, seed=4)) != found).any()


def test_a_condition_is_made_of_noise_of_its_own_and_told_at_every_step():
    network, asked = Odd(), []

    class Told(condition.Condition):
        def of_noise(self, z):
            asked.append(z)
            return z.flatten(1)[:, :2]

    told = Told(nn.Identity(), *torch.ones(2, 2), t_min=0.002, t_max=80.0)
    pictures(replace(CFG, batch_size=7), network, told=told)
    (z,), starts = asked, sampling.Draws(CFG.seed, 0, purpose="generate").normal(asked[0])

    assert len(network.conditions) == 2 * CFG.steps - 1
    assert all(given.equal(z.flatten(1)[:, :2]) for given in network.conditions)
    assert (starts - z).abs().min() > 0


class Pixels(nn.Module):
    """The pixels as the representation, beside the sigma that is told."""

    def forward(self, x, sigma):
        return torch.cat([x.flatten(1), sigma.expand(len(x), 1)], dim=1)


def condition_of(encoder, width):
    return condition.Condition(encoder, torch.zeros(width), torch.ones(width), t_min=0.1, t_max=5.0)


def test_a_row_of_levels_starts_from_one_noise_and_is_told_of_one_noise_at_rising_t():
    told, network = condition_of(Pixels(), 65), Odd()
    model, x = Denoiser(network, Times(SCHEDULES["edm"])), torch.from_numpy(split(5).pixels())
    sampling.from_images(model, replace(CFG, batch_size=5), x, max_value=16, told=told)
    draw = sampling.Draws(CFG.seed, 0, purpose="generate")
    _, eps = draw.normal(x), draw.normal(x)

    calls = 2 * CFG.steps - 1
    assert len(network.conditions) == calls * sampling.COLUMNS
    for k, t in enumerate(0.1 * 50 ** (np.arange(8) / 7)):  # geometric, from 0.1 to 5
        for given in network.conditions[calls * k : calls * (k + 1)]:
            assert given[:, 64].numpy() == pytest.approx(t / 2)
            u = units.to_model_space(given[:, :64].view(x.shape))
            torch.testing.assert_close((u - units.to_model_space(x)) / t, eps, atol=1e-5, rtol=0)


def save_denoiser(root, **changes):
    shape = {"size": "16x3x2", "image_size": 8, "channels": 1, "patch_size": 4, "condition": 0}
    shape |= {"position_std": 0.02, "time_scale": 1.0} | changes
    network = denoiser.network("uvit", shape, where="here")
    denoiser.save(
        root / "denoisers" / "tiny",
        network.state_dict(),
        network="uvit",
        shape=shape,
        schedule=SCHEDULES["linear"],
    )


def test_a_denoiser_that_cannot_make_these_pictures_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_denoiser(tmp_path)

    assert sampling.load(CFG, SHAPE, device="cpu")[0].times.cfg == SCHEDULES["linear"]
    with refused(ConfigError, "[1, 8, 8]", "[3, 32, 32]"):
        sampling.load(CFG, (3, 32, 32), device="cpu")
    with refused(ConfigError, "condition", "asks for none"):
        sampling.load(replace(CFG, condition="represented/tiny"), SHAPE, device="cpu")
    save_denoiser(tmp_path, condition=6)
    with refused(ConfigError, "condition", "asks for represented/<name>"):
        sampling.load(CFG, SHAPE, device="cpu")
    blind = condition.Condition(condition.encoder(MODEL), *torch.ones(2, 64), t_min=0.1, t_max=80.0)
    condition.save(tmp_path / "represented" / "tiny", blind, MODEL)
    with refused(ConfigError, "condition", "6 numbers", "gives 64"):
        sampling.load(replace(CFG, condition="represented/tiny"), SHAPE, device="cpu")
    with refused(CheckpointError, "denoisers/none"):
        sampling.load(replace(CFG, denoiser="denoisers/none"), SHAPE, device="cpu")


def test_features_are_what_the_head_of_a_run_reads(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_classifier(tmp_path, "a-run")
    whole, _ = classifier.load(tmp_path / "models" / "a-run")
    x = torch.from_numpy(split(5).pixels())
    found = fid.features(CFG, SHAPE, device="cpu")(x)

    assert found.equal(whole.encoder(x, torch.tensor(SIGMA)))
    with refused(ConfigError, "features", "[1, 8, 8]", "[3, 8, 8]"):
        fid.features(CFG, (3, 8, 8), device="cpu")
    with refused(ConfigError, "features: inception.pth", "models/<run>"):
        fid.features(replace(CFG, features="inception.pth"), SHAPE, device="cpu")
    (tmp_path / "inception.pth").write_bytes(b"no weights")
    with refused(ConfigError, "three colours"):
        fid.features(replace(CFG, features="inception.pth"), SHAPE, device="cpu")
    with refused(CheckpointError, "inception.pth"):
        fid.features(replace(CFG, features="inception.pth"), (3, 8, 8), device="cpu")


@pytest.mark.slow
def test_inception_gives_its_pooled_features_of_pictures_of_eight_bits(tmp_path, monkeypatch):
    """With random weights; a file that might run things is refused."""
    import rrcm.core.torchvision_stub  # noqa: F401, I001 (torch-fidelity imports torchvision)
    from torch_fidelity.feature_extractor_inceptionv3 import (
        FeatureExtractorInceptionV3 as Inception,
    )

    path = tmp_path / "weights.pth"
    torch.save({}, path)
    with refused(CheckpointError, "weights.pth"):
        fid.features(replace(CFG, features=str(path)), (3, 8, 8), device="cpu")
    with monkeypatch.context() as patch:
        patch.setattr(Inception, "load_state_dict", lambda self, state: None)
        network = Inception("inception", ["2048"], str(path))
    torch.save(network.state_dict(), path)
    x = torch.rand(2, 3, 8, 8)
    found = fid.features(replace(CFG, features=str(path)), (3, 8, 8), device="cpu")(x)

    assert found.shape == (2, 2048)
    torch.testing.assert_close(found, network((255 * x).round().byte())[0])
    torch.save(network, path)
    with refused(CheckpointError, "weights.pth"):
        fid.features(replace(CFG, features=str(path)), (3, 8, 8), device="cpu")


def test_distances_are_to_the_test_images_with_yardsticks_of_as_many():
    """Pictures that are the test images are no distance away, in whatever batches."""
    data = {"train": images(40), "test": images(20)}
    made, cfg = data["test"].images, replace(CFG, images=20)
    found = fid.measure(made, data, cfg, of=lambda x: x.flatten(1), device="cpu")

    assert found["images"] == {"generated": 20, "train": 20, "noise": 20, "test": 20}
    assert found["dimensions"] == 4 and found["features"] == "models/a-run"
    assert found["frechet"]["generated"] == pytest.approx(0, abs=1e-9)
    assert 0 < found["frechet"]["train"] < found["frechet"]["noise"]
    pixels = (frechet.moments([data[name].pixels().reshape(-1, 4)[:20]]) for name in data)
    assert found["bias"]["train"] == pytest.approx(frechet.bias(*pixels), rel=1e-6)
    assert found["bias"].keys() == found["frechet"].keys()
    again = fid.measure(
        made, data, replace(cfg, batch_size=11), of=lambda x: x.flatten(1), device="cpu"
    )
    assert again["frechet"] == pytest.approx(found["frechet"], abs=1e-9)


def test_the_nearest_training_image_is_no_distance_from_its_copy():
    rng = np.random.default_rng(0)
    train, others = rng.integers(0, 17, (2, 30, *SHAPE), dtype=np.uint8)
    made = np.concatenate([train[:4], others[:5]])

    def found(images):
        parts = (train[i : i + 8] for i in range(0, 30, 8))
        return fid.nearest(images, parts, max_value=16, device="cpu")

    apart = [[np.linalg.norm((m - t) / 16.0) for t in train.astype(float)] for m in made]
    assert found(made) == pytest.approx(np.median(np.min(apart, axis=1)), abs=1e-6)
    assert found(train[:9]) == 0 < found(made)


def test_a_sheet_has_pictures_to_the_left_and_real_ones_to_the_right():
    made, real = (np.full((101, *SHAPE), value, dtype=np.uint8) for value in (4, 16))
    real[0] = np.arange(64).reshape(SHAPE) // 8
    found = image_grid.samples(made, real, max_value=16)

    assert found.shape == (340, 714, 1)
    assert (found[:32, :32] == 64).all() and (found[306:338, 306:338] == 64).all()
    assert (found[306:338, 680:712] == 255).all()
    np.testing.assert_array_equal(found[0:32:4, 374:406:4, 0], np.rint(real[0, 0] / 16 * 255))


def test_a_sheet_of_levels_has_the_image_first_and_its_pictures_beside_it():
    channels, rng = 3, np.random.default_rng(0)
    real = rng.integers(0, 17, (3, channels, 8, 8), dtype=np.uint8)
    made = rng.integers(0, 17, (3, 2, channels, 8, 8), dtype=np.uint8)
    found = image_grid.levels(real, made, [0.002, 80.0], max_value=16)

    head = image_grid.HEAD
    assert found.shape == (head + 3 * 66, 3 * 66, channels) and found.dtype == np.uint8
    for row in range(3):
        for column, picture in enumerate([real[row], *made[row]]):
            y, x = head + 66 * row, 66 * column
            cell = found[y : y + 64 : 8, x : x + 64 : 8].transpose(2, 0, 1)
            np.testing.assert_array_equal(cell, np.rint(picture / 16 * 255))
            assert (found[:head, x : x + 64] < 128).any(), "no words above"
