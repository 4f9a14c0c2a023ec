"""What is said of generated pictures is true: distances, copies, and whether a model listens."""

import dataclasses
from functools import cache

import numpy as np
import pytest
import torch
from helpers import DENOISING, GENERATION, split
from torch import nn

from rrcm.diffusion import condition, sampling, training
from rrcm.diffusion.condition import Condition
from rrcm.evaluation import frechet, generation
from rrcm.models.trained.denoiser import Denoiser, Schedule, Times

TRAIN, TEST = split(200, seed=0), split(60, seed=1)
EDM = {"kind": "edm", "steps": 0, "rescale": False}
UVIT = {"size": "32x3x2", "image_size": 8, "channels": 1, "patch_size": 4, "condition": 4}
UVIT |= {"position_std": 0.5, "time_scale": 1000.0}


class Rows(nn.Module):
    """The mean of each pair of rows: which class it is, and how bright the picture."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, x, sigma):
        return self.weight * x.unflatten(2, (4, 2)).mean(dim=(1, 3, 4))


class Pixels(Rows):
    def forward(self, x, sigma):
        return x.flatten(1)


def plain(encoder):
    """Representations as they are."""
    return Condition(encoder, t_min=0.002, t_max=80.0)


@cache
def trained():
    """A model that is told the rows of what it is to make, after a short training."""
    told = condition.standardise(plain(Rows()), TRAIN)
    cfg = dataclasses.replace(
        DENOISING,
        network="uvit",
        objective="diffusion",
        guide="pretrained/rows",
        steps=400,
        batch_size=32,
        optimizer=dataclasses.replace(DENOISING.optimizer, lr=5e-3, warmup=0.1),
        ema=0.95,
        loss={"schedule": EDM, "mean": -1.2, "std": 1.2},
    )
    state = training.start(cfg, UVIT)
    for _ in training.denoise(state, TRAIN, cfg, told):
        pass
    network = training.result(state).eval()
    return Denoiser(network, Times(Schedule(**EDM))), told


def heard(model, told):
    cfg = dataclasses.replace(GENERATION, steps=10, batch_size=60)
    both = [*sampling.generate(model, cfg, TEST, told=told, real=True, rows=60)]
    x, c = (torch.cat(parts) for parts in zip(*both, strict=True))
    return generation.heard(sampling.pictures(x, max_value=16), told, c, TRAIN)


def test_a_conditional_model_makes_what_it_is_told_and_shuffled_conditions_are_farther():
    own, other = heard(*trained())

    assert own < 0.2 * other


def test_a_model_that_is_deaf_is_as_far_from_any_condition():
    """The same one, without the weights of its condition."""
    model, told = trained()
    kept = model.network.condition_embed.weight.detach().clone()
    try:
        with torch.no_grad():
            model.network.condition_embed.weight.zero_()
        own, other = heard(model, told)
    finally:
        with torch.no_grad():
            model.network.condition_embed.weight.copy_(kept)

    assert own == pytest.approx(other, rel=0.25)


def test_a_shift_of_all_training_images_is_its_square_away():
    """In pixels: the covariance is the same, and every mean is a grey level more."""
    levels = TRAIN.images + 1
    found = generation.distances(
        {"made": levels, "same": TRAIN.images}, TRAIN, TEST, plain(Pixels())
    )

    assert found["frechet"]["made"] == pytest.approx(64 / 16**2, rel=1e-5)
    assert found["frechet"]["same"] == pytest.approx(0, abs=1e-5)
    ends = [
        frechet.moments([of.images.reshape(len(of.labels), -1) / 16]) for of in (TEST, TRAIN)
    ]  # 60 and 200 images
    assert found["frechet"]["test"] == pytest.approx(frechet.distance(*ends), rel=1e-4)
    assert found["bias"]["test"] == pytest.approx(frechet.bias(*ends), rel=1e-4)
    assert found["images"] == {"train": 200, "made": 200, "same": 200, "test": 60}
    assert found["dimensions"] == 64
    assert found["nearest"]["same"] == 0 < found["nearest"]["test"]
    few = generation.distances({"made": levels[:30]}, TRAIN, TEST, plain(Pixels()))
    assert few["images"] == {"train": 200, "made": 30, "test": 30}


def test_the_nearest_image_is_the_one_of_least_difference(monkeypatch):
    """Whatever the batches; a copy is at distance 0."""
    monkeypatch.setattr(generation, "ROWS", 7)
    place, apart = generation.nearest(TEST.images, TRAIN)

    flat = [each.images.reshape(len(each.labels), -1) / 16 for each in (TEST, TRAIN)]
    every = np.sqrt(((flat[0][:, None] - flat[1]) ** 2).sum(axis=2))
    np.testing.assert_array_equal(place, every.argmin(axis=1))
    np.testing.assert_allclose(apart, every.min(axis=1), rtol=1e-5)
    copied, none = generation.nearest(TRAIN.images[[150, 3]], TRAIN)
    assert (copied.tolist(), none.tolist()) == ([150, 3], [0, 0])


@pytest.mark.parametrize("channels", [1, 3])
def test_a_grid_has_each_picture_and_beside_it_the_nearest(channels):
    train = dataclasses.replace(TRAIN, images=TRAIN.images.repeat(channels, axis=1))
    images = TEST.images.repeat(channels, axis=1)
    grid = generation.grid(images, train)

    cell = 24 + generation.GAP, 48 + generation.GAP
    assert grid.shape == (8 * cell[0], 8 * cell[1]) + ((3,) if channels == 3 else ())
    place, _ = generation.nearest(images, train)
    for i in (0, 13, 59):
        top, left = i // 8 * cell[0], i % 8 * cell[1]
        for side, of in enumerate((images[i], train.images[place[i]])):
            shown = grid[top : top + 24 : 3, left + 24 * side : left + 24 * side + 24 : 3]
            expected = np.rint(of * (255 / 16)).transpose(1, 2, 0).squeeze()
            np.testing.assert_array_equal(shown, expected)
    assert (grid[7 * cell[0] :, 4 * cell[1] :] == 255).all()  # 60 of 64
