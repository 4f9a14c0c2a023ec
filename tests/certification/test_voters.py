"""A batch of scores adds to the counts of its own images, and of no others."""

import numpy as np
import pytest
import torch
from ballot_counters import SIX, counting, pieces
from builders import SIGMA, Linear, linear, many, refused
from hypothesis import given
from hypothesis import strategies as st

from rrcm.certification.sampling import voting
from rrcm.core.errors import BackendError
from rrcm.noise import streams

nan, inf = float("nan"), float("inf")


class Says(Linear):
    """Scores that are given, or made of the input."""

    def __init__(self, what):
        super().__init__(np.zeros((4, 3)), np.zeros(3))
        self.what = what

    def scores(self, x):
        return self.what(x) if callable(self.what) else torch.tensor(self.what)


def noisy(place, first, draws, *, split=SIX, seed=3):
    """The noisy inputs of some draws of an image, by the equation."""
    x, d = torch.from_numpy(split.pixels(place)), torch.arange(first, first + draws)
    image = torch.full_like(d, int(split.idx[place]))
    return x + SIGMA * streams.gaussian(seed, image, d, tuple(x.shape))


# What a row adds.


def test_a_vote_is_for_the_highest_score_and_the_lowest_class_among_equals():
    scores = [[1.0, 3.0, 2.0], [5.0, 5.0, 4.0], [0.0, 7.0, 7.0], [2.0, 2.0, 2.0]]

    added = voting.ballots(Says(scores), torch.zeros(4))

    assert added.tolist() == [[0, 1, 0, 0], [1, 0, 0, 0], [0, 1, 0, 0], [1, 0, 0, 0]]


def test_scores_that_are_no_numbers_are_counted_apart():
    scores = [[0.0, nan, 1.0], [nan, nan, nan], [0.0, 1.0, -inf]]

    assert voting.ballots(Says(scores), torch.zeros(3))[:, -1].tolist() == [1, 1, 0]


# Whose row it is.


@many
@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.integers(0, 10**6), st.integers(1, 20)),
        min_size=1,
        max_size=8,
    ),
    st.sampled_from([1, 7, 16]),
)
def test_noise_of_a_draw_goes_to_its_image_and_its_vote_to_its_piece(parts, batch_size):
    """Each piece alone, by the equation; however pieces share batches, and images pieces."""
    backend = linear()

    counts = counting(backend, batch_size=batch_size)(pieces(*parts))

    for (place, first, draws), found in zip(parts, counts, strict=True):
        label = linear().scores(noisy(place, first, draws)).argmax(dim=1)
        assert found.tolist() == np.bincount(label, minlength=3).tolist()
    assert {shape[0] for shape in backend.batches} == {batch_size}


def test_rows_that_only_fill_a_batch_are_not_counted():
    """Not even where they are no numbers: 5 draws in a batch of 64, of which the others are NaN."""

    def all_but_five(x):
        scores = torch.zeros(len(x), 3)
        scores[5:] = torch.nan
        return scores

    (counts,) = counting(Says(all_but_five), batch_size=64)(pieces((2, 10, 5)))

    assert counts.tolist() == [5, 0, 0]


def test_nan_names_the_image():
    """The one whose score it is, not its neighbours in the batch."""
    place = 4

    def broken(x):  # where the noisy input is one of image `place`
        mine = (x[:, None] == noisy(place, 0, 5)[None]).flatten(2).all(2).any(1)
        return torch.where(mine[:, None], torch.nan, torch.zeros(len(x), 3))

    parts = pieces((1, 0, 5), (place, 0, 5), (2, 0, 5))

    with refused(BackendError, f"NaN scores for image {SIX.idx[place]};"):
        counting(Says(broken))(parts)


# Batch invariance.


def shifted(x):
    """Looks at its place in the batch."""
    return linear().scores(x) + torch.arange(len(x))[:, None] * torch.tensor([1.0, 0, 0])


FUNCTIONS = {
    "linear": (lambda x: linear().scores(x), True),
    "constant": (lambda x: torch.zeros(len(x), 3), True),
    "its place": (shifted, False),
    "its neighbour": (lambda x: linear().scores(x + x.roll(1, 0)), False),
    "the batch's mean": (lambda x: linear().scores(x - x.mean(0)), False),
    "the batch's largest": (lambda x: linear().scores(x / x.amax()), False),
    "the first row": (lambda x: linear().scores(x - x[0]), False),
    "rounding in the tail of a batch": (
        lambda x: torch.cat([linear().scores(x[:-1]), linear().scores(x[-1:].float() * 1.0000001)]),
        False,
    ),
}


@pytest.mark.parametrize("size", [2, 16])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_batch_is_invariant_if_rows_do_not_depend_on_each_other(function, size):
    what, invariant = FUNCTIONS[function]
    x = noisy(0, 0, size)

    assert voting.is_batch_invariant(Says(what), x) == invariant
