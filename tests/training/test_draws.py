"""Randomness of a step: a function of (seed, step, call) and of a row's place in the batch."""

import pytest
import torch
from helpers import few
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from rrcm.training.engine.draws import BLOCK, Draws

KINDS = {
    "normal": lambda draw, x: draw.normal(x),
    "uniform": lambda draw, x: draw.uniform(x),
    "uniform of a shape": lambda draw, x: draw.uniform(x, 2, 3),
}
kinds = pytest.mark.parametrize("kind", KINDS)


def rows(count, *shape):
    return torch.zeros(count, *(shape or (3, 2)))


@kinds
@few
@given(st.integers(2, 3 * BLOCK), st.data())
def test_parts_of_a_batch_draw_what_the_whole_would(kind, count, data):
    """Wherever it is cut, in the middle of a block or at its edge."""
    cut = data.draw(st.integers(1, count - 1))
    whole = KINDS[kind](Draws(1, 2), rows(count))

    parts = [
        KINDS[kind](Draws(1, 2, first=first), rows(stop - first))
        for first, stop in ((0, cut), (cut, count))
    ]

    assert torch.equal(torch.cat(parts), whole)


@kinds
def test_every_call_seed_step_and_purpose_draws_anew(kind):
    draw, x = Draws(0, 0), rows(8)
    found = [KINDS[kind](draw, x) for _ in range(3)]
    found += [KINDS[kind](other, x) for other in (Draws(1, 0), Draws(0, 1))]
    found += [KINDS[kind](Draws(0, 0, purpose="augment"), x)]

    values = torch.cat([each.flatten() for each in found])

    assert len(values.unique()) == len(values), "some numbers were drawn twice"


def test_the_same_call_draws_the_same_and_leaves_the_global_generator_alone():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    first = Draws(7, 9).normal(rows(5)), Draws(7, 9).integer(100)
    second = Draws(7, 9).normal(rows(5)), Draws(7, 9).integer(100)

    assert torch.equal(first[0], second[0]) and first[1] == second[1]
    assert torch.equal(torch.get_rng_state(), before)


def test_numbers_have_their_distributions():
    x = rows(300, 100)
    normal, uniform = Draws(0, 0).normal(x).flatten(), Draws(0, 1).uniform(x, 100).flatten()

    assert stats.kstest(normal.numpy(), "norm").pvalue > 0.01
    assert stats.kstest(uniform.numpy(), "uniform").pvalue > 0.01


def test_whole_numbers_are_uniform_and_one_for_the_batch():
    """Whatever part of the batch the rows are."""
    found = [Draws(0, step).integer(4) for step in range(2000)]

    assert {*found} == {0, 1, 2, 3}
    assert stats.chisquare([found.count(i) for i in range(4)]).pvalue > 0.01
    assert [Draws(0, step, first=99).integer(4) for step in range(50)] == found[:50]


def test_pairs_of_neighbours_are_drawn_in_proportion_to_their_weights_or_all_alike():
    weights = torch.tensor([1.0, 0.0, 3.0, 4.0])
    found = [Draws(0, step, first=step).pair(5, weights) for step in range(2000)]
    counts = [found.count(i) for i in range(4)]

    assert counts[1] == 0
    assert stats.chisquare([counts[i] for i in (0, 2, 3)], [250, 750, 1000]).pvalue > 0.01

    alike = [Draws(0, step, first=step).pair(5, None) for step in range(2000)]
    assert stats.chisquare([alike.count(i) for i in range(4)]).pvalue > 0.01
