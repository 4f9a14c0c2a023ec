"""What is no function of each picture alone is refused; what is one is let pass, and described."""

import math
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from builders import Linear, header, images, refused
from helpers import few
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from rrcm.certification import checks
from rrcm.certification.distributions import gaussian
from rrcm.certification.plausibility import TrialAnswers
from rrcm.certification.sampling import drawing, voting
from rrcm.core.errors import BackendError
from rrcm.data.splits.shards import Split

W = np.random.default_rng(0).normal(size=(4, 3))


class Odd(Linear):
    """Linear scores, and what ``spoil`` makes of them, given the pixels, too.

    Behind them are those of a class that is ruled out, if there is a ``mask``.
    """

    def __init__(self, spoil, mask=None):
        super().__init__(W, np.zeros(3))
        self.spoil = spoil
        self.mask = mask

    def scores(self, x, z=None):
        scores = self.spoil(super().scores(x), x).float()
        return scores if self.mask is None else F.pad(scores, (0, 1), value=self.mask)


def examine(backend, split: Split, *, sigma=0.25, batch_size=16) -> TrialAnswers:
    kind = "foreign/onnx"
    return checks.examine(backend, split, header(sigma=sigma, batch_size=batch_size, backend=kind))


def labelled(backend, count=64, *, right=1.0) -> Split:
    """Random pictures whose labels a classifier gets right, or a share of them."""
    split = images(count, max_value=255)
    answers = backend.scores(torch.from_numpy(split.pixels())).argmax(1).numpy()
    wrong = np.arange(count) >= right * count
    return replace(split, labels=np.where(wrong, (answers + 1) % 3, answers))


plain = Odd(lambda scores, x: scores)


# What is refused.

MATES = {
    "batch norm": lambda s, x: (s - s.mean(0)) / s.std(0),
    "scale of the batch": lambda s, x: torch.round(8 * s / s.abs().max()),
    "the next row": lambda s, x: s + s.roll(1, 0),
    "its place": lambda s, x: s + 0.1 * torch.arange(len(s))[:, None] * torch.tensor([0, 1, 0]),
    "the first row": lambda s, x: s + 0.05 * s[:1],
}


MASKS = [None, -1e4, -np.inf]  # a class that is ruled out hides nothing


@pytest.mark.parametrize("name", MATES)
def test_scores_that_know_their_batch_are_refused(name: str):
    for batch_size, mask in [(2, None), (64, None), *((16, mask) for mask in MASKS)]:
        with refused(BackendError, "depend on the other pictures of its batch"):
            examine(Odd(MATES[name], mask), labelled(plain), batch_size=batch_size)


@pytest.mark.parametrize("mask", MASKS)
def test_scores_that_are_drawn_are_refused(mask):
    noisy = Odd(lambda s, x: s + 0.05 * torch.randn_like(s), mask)
    dropping = Odd(lambda s, x: s * (torch.rand_like(s) > 0.3), mask)

    for backend in (noisy, dropping):
        with refused(BackendError, "there is randomness inside, such as dropout"):
            examine(backend, labelled(plain))


def test_scores_that_know_what_other_threads_ask_are_refused():
    class Keeping(Odd):
        def scores(self, x, z=None):
            self.kept = x
            time.sleep(0.01)
            return super().scores(self.kept)

    with refused(BackendError, "on other threads"):
        examine(Keeping(plain.spoil), labelled(plain))


def test_scores_that_are_no_numbers_or_always_the_same_are_refused():
    with refused(BackendError, "scores are NaN"):
        examine(Odd(lambda s, x: s.where(s < s.max(), torch.nan)), labelled(plain))
    with refused(BackendError, "scores are infinite; the weights or the runtime"):
        examine(Odd(lambda s, x: s * 1e39), labelled(plain))  # as fp16 overflows
    with refused(BackendError, "scores are NaN under noise, and not without it", "count_nan=True"):
        examine(Odd(lambda s, x: s + 0 * x.sqrt().flatten(1).sum(1)[:, None]), labelled(plain))
    for spoil in (lambda s, x: torch.zeros_like(s), lambda s, x: s * 1e-9 + 3):
        with refused(BackendError, "the scores are the same whatever the picture"):
            examine(Odd(spoil), labelled(plain))
    # A network that gives class numbers may answer the same for a folder of one class.
    always = Odd(lambda s, x: torch.eye(3)[torch.ones(len(s), dtype=torch.long)])
    assert examine(always, labelled(plain)).plain == [1] * 64


# A vote, and batches.


def test_a_vote_is_for_the_highest_score_and_the_lowest_class_among_equals():
    scores = [[1.0, 3.0, 2.0], [5.0, 5.0, 4.0], [0.0, 7.0, 7.0], [2.0, 2.0, 2.0]]

    added = voting.ballots(torch.tensor(scores))

    assert added.tolist() == [[0, 1, 0, 0], [1, 0, 0, 0], [0, 1, 0, 0], [1, 0, 0, 0]]


def test_a_class_that_is_masked_out_never_wins_and_no_infinite_score_does():
    """Classes at infinity tie, and the lowest would win; so would class 0 of all at -inf."""
    inf, nan = math.inf, math.nan
    scores = [[-inf, 1.0, 2.0], [inf, 1, 2], [0, inf, inf], [-inf] * 3, [0, nan, 2], [-inf, nan, 2]]

    added = voting.ballots(torch.tensor(scores))

    assert added[:, 3].tolist() == [0, 1, 1, 1, 1, 1]
    assert added[0].tolist() == [0, 0, 1, 0]
    assert examine(Odd(plain.spoil, -inf), labelled(plain)).plain != [0] * 64


@pytest.mark.parametrize("size", [2, 16])
def test_a_batch_is_invariant_if_rows_do_not_depend_on_each_other(size):
    """Bit for bit, so that votes do not depend on how they are drawn."""
    x = torch.from_numpy(images(size, max_value=255).pixels())

    assert drawing.is_batch_invariant(Linear(W, np.zeros(3)), x)
    for name in ("the next row", "its place", "the first row"):
        assert not drawing.is_batch_invariant(Odd(MATES[name]), x), name
    last = torch.tensor([1.0] * (size - 1) + [1 + 1e-6])[:, None]  # the tail of a batch
    assert not drawing.is_batch_invariant(Odd(lambda s, x: s * last), x)


# What is let pass.


@few
@given(st.sampled_from([1, 2, 16, 64]), st.floats(0, 2))
def test_a_function_of_each_picture_is_let_pass(batch_size: int, sigma: float):
    examine(plain, labelled(plain), batch_size=batch_size, sigma=sigma)


def test_rounding_by_the_place_in_a_batch_is_let_pass():
    """As of kernels of float32, float16 and bfloat16; sampling says so."""
    for size in (1e-7, 3e-4, 2**-8):
        places = torch.linspace(-size, size, 16, dtype=torch.float64)[:, None]
        examine(Odd(lambda s, x, p=places: s * (1 + p[: len(s)])), labelled(plain))


# What is found out.


def test_answers_are_those_without_noise_and_to_one_draw_of_it():
    """The draw that no sampling makes, as there are fewer than 2^32, of the noise of sampling."""
    assert checks.DRAW == 2**32 - 1
    split = labelled(plain, right=0.75)
    x = torch.from_numpy(split.pixels())
    draws = torch.full((64,), checks.DRAW)
    idx = torch.from_numpy(split.idx)
    noisy = gaussian.noisy(x, 0.5, seed=0, images=idx, draws=draws, max_value=255)

    found = examine(plain, split, sigma=0.5)

    assert found.labels == split.labels.tolist()
    assert found.plain == plain.scores(x).argmax(1).tolist()
    assert found.noisy == plain.scores(noisy).argmax(1).tolist() != found.plain
