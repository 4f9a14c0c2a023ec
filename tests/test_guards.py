"""What is no function of each picture alone is refused; what is one is let pass, and described."""

import numpy as np
import pytest
import torch
from builders import Linear, images, refused
from helpers import few
from hypothesis import given
from hypothesis import strategies as st

from rrcm import guards
from rrcm.errors import BackendError
from rrcm.noises import gaussian
from rrcm.shards import Split

W = np.random.default_rng(0).normal(size=(4, 3))


class Odd(Linear):
    """Linear scores, and what ``spoil`` makes of them, given the pixels, too."""

    def __init__(self, spoil):
        super().__init__(W, np.zeros(3))
        self.spoil = spoil

    def scores(self, x):
        return self.spoil(super().scores(x), x).float()


def examine(backend, split: Split, *, sigma=0.25, batch_size=16) -> list[str]:
    return guards.examine(
        backend, split, noise=gaussian, sigma=sigma, seed=0, batch_size=batch_size
    )


def labelled(backend, count=64, *, right=1.0) -> Split:
    """Random pictures whose labels a classifier gets right, or a share of them."""
    split = images(count, white=255)
    answers = backend.scores(torch.from_numpy(split.pixels())).argmax(1).numpy()
    wrong = np.arange(count) >= right * count
    return Split(
        idx=split.idx,
        images=split.images,
        labels=np.where(wrong, (answers + 1) % 3, answers),
        classes=split.classes,
        white=255,
    )


plain = Odd(lambda scores, x: scores)


# What is refused.

MATES = {
    "batch norm": lambda s, x: (s - s.mean(0)) / s.std(0),
    "scale of the batch": lambda s, x: torch.round(8 * s / s.abs().max()),
    "the next row": lambda s, x: s + s.roll(1, 0),
    "its place": lambda s, x: s + 0.1 * torch.arange(len(s))[:, None] * torch.tensor([0, 1, 0]),
    "the first row": lambda s, x: s + 0.05 * s[:1],
}


@pytest.mark.parametrize("name", MATES)
@pytest.mark.parametrize("batch_size", [2, 16, 64])
def test_scores_that_know_their_batch_are_refused(name: str, batch_size: int):
    with refused(BackendError, "depend on the other pictures of its batch"):
        examine(Odd(MATES[name]), labelled(plain), batch_size=batch_size)


def test_scores_that_are_drawn_are_refused():
    noisy = Odd(lambda s, x: s + 0.05 * torch.randn_like(s))
    dropping = Odd(lambda s, x: s * (torch.rand_like(s) > 0.3))

    for backend in (noisy, dropping):
        with refused(BackendError, "there is randomness inside, such as dropout"):
            examine(backend, labelled(plain))


def test_scores_that_are_no_numbers_are_refused():
    backend = Odd(lambda s, x: s.where(s < s.max(), torch.nan))

    with refused(BackendError, "scores are NaN"):
        examine(backend, labelled(plain))


def test_scores_that_are_always_the_same_are_refused():
    for spoil in (lambda s, x: torch.zeros_like(s), lambda s, x: s * 1e-9 + 3):
        with refused(BackendError, "the scores are the same whatever the picture"):
            examine(Odd(spoil), labelled(plain))


# What is let pass.


@few
@given(st.sampled_from([1, 2, 16, 64]), st.floats(0, 2))
def test_a_function_of_each_picture_is_let_pass(batch_size: int, sigma: float):
    examine(plain, labelled(plain), batch_size=batch_size, sigma=sigma)


def test_rounding_by_the_place_in_a_batch_is_let_pass():
    """As of float32 kernels, and of float16 ones; sampling says so."""
    for size in (1e-7, 3e-4):
        places = torch.linspace(-size, size, 16, dtype=torch.float64)[:, None]
        examine(Odd(lambda s, x, p=places: s * (1 + p)), labelled(plain))


def test_a_class_that_is_ruled_out_is_let_pass():
    backend = Odd(lambda s, x: torch.cat([s[:, :2], torch.full_like(s[:, :1], -torch.inf)], 1))

    examine(backend, labelled(backend))


def test_a_single_picture_is_enough():
    found = examine(plain, labelled(plain, 1), sigma=1e-6)

    assert found == ["1 of 1 right without noise, 1 of 1 under noise of sigma = 1e-06"]


# What is said.


def test_right_answers_are_counted_with_and_without_noise():
    (line,) = examine(plain, labelled(plain, right=0.75), sigma=1e-6)

    assert line == "48 of 64 right without noise, 48 of 64 under noise of sigma = 1e-06"


def test_a_wrong_normalisation_looks_like_chance():
    found = examine(plain, labelled(plain, right=0.3))

    assert "20 of 64 right without noise" in found[0]
    assert "no better than chance without noise: are mean, std, size" in found[1]


def test_a_network_that_noise_is_too_much_for_is_named():
    """Right on pictures as they are, and never where a pixel is out of range."""

    def spoil(s, x):
        shaken = ((x < 0) | (x > 1)).flatten(1).any(1)[:, None]
        return torch.where(shaken, s.roll(1, 1), s)

    backend = Odd(spoil)
    found = examine(backend, labelled(backend), sigma=1.0)

    assert found[0].startswith("64 of 64 right without noise")
    assert "no better than chance under noise of sigma = 1" in found[1]


def test_without_labels_answers_are_compared():
    split = labelled(plain)
    unknown = Split(
        idx=split.idx,
        images=split.images,
        labels=-np.ones(64, int),
        classes=split.classes,
        white=255,
    )

    assert examine(plain, unknown, sigma=1e-6) == [
        "64 of 64 pictures keep their answer under noise of sigma = 1e-06"
    ]


def test_a_part_of_a_large_folder_is_asked():
    (line,) = examine(plain, labelled(plain, 500), sigma=1e-6)

    assert line.startswith("64 of 64 right")


def test_guards_take_no_draw_that_sampling_makes():
    """Draws are numbered from 0, and there are fewer than 2^32."""
    assert guards.DRAW == 2**32 - 1
