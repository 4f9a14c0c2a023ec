"""A batch of scores adds to the counts of its own images, and of no others."""

import functools

import numpy as np
import pytest
import torch
from ballot_counters import SIX, counting, pieces
from builders import SIGMA, Linear, linear, many, refused
from hypothesis import given
from hypothesis import strategies as st

from rrcm.certification.sampling import voting
from rrcm.certification.votes.counts import SOFT
from rrcm.core.errors import BackendError
from rrcm.noise import streams


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

    added = voting.hard(Says(scores))(torch.zeros(4))

    assert added.votes.tolist() == [[0, 1, 0], [1, 0, 0], [0, 1, 0], [1, 0, 0]]
    assert added.nan.tolist() == [[0]] * 4
    assert added.soft.shape == added.squares.shape == (4, 0)


nan, inf = float("nan"), float("inf")


SOFTLY = functools.partial(voting.soft, beta=1.0)
FIELDS = ("votes", "soft", "squares", "nan")


@pytest.mark.parametrize("kind", [voting.hard, SOFTLY])
def test_scores_that_are_no_numbers_are_counted_apart(kind):
    scores = [[0.0, nan, 1.0], [nan, nan, nan], [0.0, 1.0, -inf]]

    assert kind(Says(scores))(torch.zeros(3)).nan.tolist() == [[1], [1], [0]]


@many
@given(
    st.lists(st.lists(st.floats(-30, 30, width=32), min_size=3, max_size=3), min_size=1),
    st.sampled_from([0.5, 1.0, 16.0]),
)
def test_soft_votes_are_probabilities_in_float64_rounded_down(scores, beta):
    """Never above the probability, by less than a step below it; squares are exact."""
    exact = np.exp(beta * (np.array(scores) - np.max(scores, axis=1, keepdims=True)))
    exact /= exact.sum(axis=1, keepdims=True)

    added = voting.soft(Says(scores), beta=beta)(torch.zeros(len(scores)))
    steps = added.soft.numpy()

    assert steps.shape == (len(scores), 3)
    assert torch.equal(added.votes, voting.hard(Says(scores))(torch.zeros(len(scores))).votes)
    assert (steps <= exact * SOFT * (1 + 1e-12)).all()
    assert (steps > exact * SOFT - 1 - 1e-6).all()
    assert (steps.sum(axis=1) <= SOFT).all()
    assert (added.squares.numpy() == steps**2).all()


def test_disagreement_compares_votes_not_scores():
    ours = Says([[1.0, 0.0, 0.0], [0.0, 2.0, 1.0], [0.0, 0.0, 3.0], [1.0, nan, 0.0]])
    theirs = Says([[9.0, 8.0, 0.0], [3.0, 2.0, 1.0], [0.0, 0.0, nan], [1.0, 0.0, 0.0]])

    added = voting.disagreement(ours, theirs)(torch.zeros(4))

    assert added.votes[:2].tolist() == [[1, 0], [0, 1]]
    assert added.nan.tolist() == [[0], [0], [1], [1]]


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

    counts = counting(voting.hard(backend), batch_size=batch_size)(pieces(*parts))

    for (place, first, draws), found in zip(parts, counts, strict=True):
        label = linear().scores(noisy(place, first, draws)).argmax(dim=1)
        assert found.votes.tolist() == np.bincount(label, minlength=3).tolist()
    assert {shape[0] for shape in backend.batches} == {batch_size}


def test_rows_that_only_fill_a_batch_are_not_counted():
    """Not even where they are no numbers: 5 draws in a batch of 64, of which the others are NaN."""

    def all_but_five(x):
        scores = torch.zeros(len(x), 3)
        scores[5:] = torch.nan
        return scores

    (counts,) = counting(voting.hard(Says(all_but_five)), batch_size=64)(pieces((2, 10, 5)))

    assert counts.votes.tolist() == [5, 0, 0]


@pytest.mark.parametrize("batch_size", [4, 7, 18])
def test_counts_of_a_piece_are_sums_over_its_draws(batch_size):
    """Votes, soft votes and squares, each of its own rows, however the batches fall."""
    ballot = SOFTLY(linear())
    parts = ((0, 0, 9), (1, 3, 9))

    found = counting(ballot, batch_size=batch_size)(pieces(*parts))

    for counts, part in zip(found, parts, strict=True):
        rows = ballot(noisy(*part))
        for name in FIELDS:
            total = getattr(counts, name)
            assert total.dtype == torch.int64
            assert torch.equal(total, getattr(rows, name).sum(dim=0))


def test_nan_names_the_image():
    """The one whose score it is, not its neighbours in the batch."""
    place = 4

    def broken(x):  # where the noisy input is one of image `place`
        mine = (x[:, None] == noisy(place, 0, 5)[None]).flatten(2).all(2).any(1)
        return torch.where(mine[:, None], torch.nan, torch.zeros(len(x), 3))

    parts = pieces((1, 0, 5), (place, 0, 5), (2, 0, 5))

    with refused(BackendError, f"NaN scores for image {SIX.idx[place]};"):
        counting(voting.hard(Says(broken)))(parts)


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


@pytest.mark.parametrize("size", [2, 7, 16])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_batch_is_invariant_if_rows_do_not_depend_on_each_other(function, size):
    what, invariant = FUNCTIONS[function]
    x = noisy(0, 0, size)

    assert voting.is_batch_invariant(Says(what), x) == invariant


def test_a_single_row_is_batch_invariant():
    assert voting.is_batch_invariant(linear(), noisy(0, 0, 1))
