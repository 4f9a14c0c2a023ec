"""Pictures are the end of a diffusion model's flow, and what the model is told is what it says."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from builders import refused
from helpers import MINI, MODEL, split
from torch import nn

from rrcm.config.generation import Generation
from rrcm.core.errors import CheckpointError, ConfigError
from rrcm.diffusion import condition, sampling
from rrcm.diffusion.condition import Condition, Told
from rrcm.models.trained import denoiser
from rrcm.models.trained.base import checkpoint, classifier
from rrcm.models.trained.denoiser import Denoiser, Schedule, Times

EDM = Schedule(kind="edm", steps=0, rescale=False)
LINEAR = Schedule(kind="linear", steps=1000, rescale=False)
COSINE = Schedule(kind="cosine", steps=4000, rescale=True)
CFG = Generation(
    denoiser="denoisers/told",
    network="uvit",
    condition="pretrained/tiny",
    features="pretrained/tiny",
    architecture="vit",
    steps=6,
    images=10,
    batch_size=4,
    seed=3,
)
UVIT = {"size": "16x1x2", "image_size": 8, "channels": 1, "patch_size": 4}
UVIT |= {"position_std": 0.5, "time_scale": 1000.0, "condition": 64}
DATA = split(40, seed=0)
MEAN, VARIANCE = 0.3, 0.04  # of every pixel of the data


class Exact(nn.Module):
    """The network whose prediction is the posterior mean of independent normal pixels."""

    def __init__(self, times):
        super().__init__()
        self.times, self.calls = times, 0

    def forward(self, x, told):
        self.calls += 1
        if self.times.discrete:
            scale = self.times.cfg.steps / 1000 if self.times.cfg.rescale else 1.0
            s = self.times.level(told.double() * scale)
        else:
            s = (4 * told.double()).exp()
        s = s.view(-1, 1, 1, 1)
        c_in, c_skip, c_out = Denoiser(self, self.times).factors(s)
        noisy = x / c_in
        clean = (VARIANCE * noisy + s**2 * MEAN) / (VARIANCE + s**2)
        return (clean - c_skip * noisy) / c_out


@pytest.mark.parametrize("schedule", [EDM, LINEAR, COSINE], ids=lambda s: s.kind)
def test_normal_data_come_out_of_the_flow_in_closed_form(schedule):
    """x(s) - m is proportional to sqrt(v + s^2), whatever the steps; the more, the closer."""
    model = Denoiser(Exact(Times(schedule)), Times(schedule))
    z = torch.randn(9, 1, 2, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    levels = model.times.levels if model.times.discrete else torch.tensor([0.0, 80.0])
    top, low = min(levels[-1].item(), 80.0), max(levels[0].item(), 0.002)
    at_low = MEAN + (top * z - MEAN) * ((VARIANCE + low**2) / (VARIANCE + top**2)) ** 0.5
    expected = (VARIANCE * at_low + low**2 * MEAN) / (VARIANCE + low**2)  # what is predicted there

    errors = {
        steps: (sampling.solve(model, z, steps=steps) - expected).abs().max().item()
        for steps in (10, 20, 50, 200)
    }

    assert model.network.calls == 280  # as many as there are steps
    assert errors[200] < 1e-4 < errors[20] < errors[10] and errors[50] < 2e-3, errors


def told_model():
    torch.manual_seed(0)
    network = denoiser.network("uvit", UVIT, where="shape")
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.3)
    encoder = classifier.build(MODEL, classes=2, condition="exact", final_norm=True).encoder
    found = Condition(encoder.eval(), t_min=0.002, t_max=80.0)
    return Denoiser(network.eval(), Times(EDM)), condition.standardise(found, DATA)


def made(model, told, *, batch_size=4, seed=3, rows=10, real=False):
    cfg = dataclasses.replace(CFG, batch_size=batch_size, seed=seed)
    both = [*sampling.generate(model, cfg, DATA, told=told, real=real, rows=rows)]
    x, c = (torch.cat(parts) for parts in zip(*both, strict=True))
    return sampling.pictures(x, max_value=16), c


def test_pictures_follow_from_the_seed_in_batches_of_any_size():
    """And do not depend on how many there are; kernels may round otherwise in another batch."""
    model, told = told_model()
    one, _ = made(model, told)

    assert (made(model, told)[0] == one).all()
    for other in (made(model, told, batch_size=7)[0], made(model, told, rows=3, batch_size=1)[0]):
        apart = np.abs(other.astype(int) - one[: len(other)])
        assert apart.max() <= 1 and (apart > 0).mean() < 0.01
    assert (made(model, told, seed=4)[0] != one).mean() > 0.1


def test_conditions_are_of_pure_noise_or_of_images_and_the_start_is_another_noise():
    """Pure noise is grey plus 80 z in model space, of which the encoder is told."""
    model, told = told_model()
    seen = []
    model.network.register_forward_pre_hook(lambda _, given: seen.append(given))
    z = sampling.streams.gaussian(
        *(3, torch.arange(10), torch.full((10,), sampling.CONDITION), (1, 8, 8)),
        stream=sampling.STREAM,
    )
    with torch.no_grad():
        noisy = (told.encoder(0.5 + 40 * z, torch.tensor(40.0)) - told.mean) / told.std
        clean = told(torch.from_numpy(DATA.pixels(slice(10))))

    _, of_noise = made(model, told, batch_size=10)
    calls = [*seen]
    _, of_images = made(model, told, batch_size=10, real=True)

    torch.testing.assert_close(of_noise, noisy)
    torch.testing.assert_close(of_images, clean)
    assert len(calls) == CFG.steps and all(torch.equal(given[2], of_noise) for given in calls)
    start, again = calls[0][0], seen[CFG.steps][0]
    assert torch.equal(start, again)  # whatever the condition
    assert start.std().item() == pytest.approx(1.0, abs=0.15)  # c_in times 80 z
    assert abs(np.corrcoef(start.flatten(), z.flatten())[0, 1]) < 0.15


def test_conditions_of_clean_images_are_standardised():
    _, told = told_model()
    with torch.no_grad():
        found = told(torch.from_numpy(DATA.pixels()))

    torch.testing.assert_close(found.mean(dim=0), torch.zeros(64), atol=1e-4, rtol=0)
    torch.testing.assert_close(found.std(dim=0, correction=0), torch.ones(64), atol=1e-3, rtol=0)


def saved(folder, **changed):
    """An encoder as the stage of a pre-training leaves it."""
    torch.manual_seed(0)
    whole = classifier.build(MODEL, classes=2, condition="exact", final_norm=True)
    grid = {"t_min": 0.004, "t_max": 70.0}
    about = {
        f"pretrain.{folder.name}": {"architecture": "vit", "model": "tiny", "grid": grid},
        "models.tiny": MINI.models["tiny"],
    } | changed
    tensors, text = whole.encoder.state_dict(), {"params": json.dumps(about)}
    checkpoint.save(folder / "encoder.safetensors", tensors, text)
    return whole.encoder.eval()


def test_an_encoder_says_what_it_is(tmp_path):
    encoder, x = saved(tmp_path / "tiny"), torch.from_numpy(DATA.pixels(slice(5)))
    told = condition.load(tmp_path / "tiny", DATA)

    with torch.no_grad():
        expected = (encoder(x, torch.tensor(0.002)) - told.mean) / told.std
        torch.testing.assert_close(told(x), expected)
    assert told.t_max == 70.0
    assert not told.training and not any(p.requires_grad for p in told.parameters())
    saved(tmp_path / "tiny", **{"models.tiny": {"size": "tiny"}})
    for name in ("tiny", "other"):
        (tmp_path / "other").mkdir(exist_ok=True)
        file = (tmp_path / "tiny/encoder.safetensors").read_bytes()
        (tmp_path / "other/encoder.safetensors").write_bytes(file)
        with refused(CheckpointError, "not say of what network", f"pretrain@{name}"):
            condition.load(tmp_path / name, DATA)


@pytest.mark.parametrize(
    ("schedule", "shape", "words"),
    [
        (None, UVIT, ["has no noise schedule", "objective diffusion"]),
        (EDM, UVIT | {"channels": 3}, ["makes pictures (3, 8, 8)", "the data are (1, 8, 8)"]),
    ],
)
def test_what_makes_no_such_pictures_is_refused(schedule, shape, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    network = denoiser.network("uvit", shape, where="shape")
    folder = Path("denoisers/told")
    denoiser.save(folder, network.state_dict(), network="uvit", shape=shape, schedule=schedule)

    with refused(ConfigError, "denoiser: denoisers/told", *words):
        sampling.load(CFG, DATA)


def test_a_model_and_what_tells_it_are_read_from_their_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    saved(Path("pretrained/tiny"))
    network = denoiser.network("uvit", UVIT, where="shape")
    folder = Path("denoisers/told")
    denoiser.save(folder, network.state_dict(), network="uvit", shape=UVIT, schedule=EDM)

    model, told = sampling.load(CFG, DATA)
    alone, nothing = sampling.load(dataclasses.replace(CFG, condition="none"), DATA)

    assert torch.equal(told.mean, condition.load(Path("pretrained/tiny"), DATA).mean)
    assert nothing is None and isinstance(alone, Denoiser) and isinstance(model, Denoiser)
    x, t, c = torch.rand(2, 1, 8, 8), torch.tensor(0.7), torch.randn(2, 64)
    given, _ = Denoiser(Told(model.network, c), model.times)(x, t)
    assert not torch.allclose(given, model(x, t)[0])  # zeros


def test_grey_levels_are_those_of_the_data():
    x = torch.tensor([-3.0, -1.0, -0.95, 0.0, 0.9, 1.0, 2.0]).view(1, 1, 1, 7)

    assert sampling.pictures(x, max_value=16).ravel().tolist() == [0, 0, 0, 8, 15, 16, 16]


@pytest.mark.parametrize(
    ("key", "value"), [("steps", 1), ("images", 1), ("batch_size", 0), ("seed", -1)]
)
def test_numbers_that_make_no_pictures_are_refused(key, value):
    with refused(ConfigError, f"{key}: "):
        dataclasses.replace(CFG, **{key: value})
