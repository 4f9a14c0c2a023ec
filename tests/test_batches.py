"""Batches: every epoch a permutation of its own, and a function of (seed, step) alone."""

import pytest
import torch
from helpers import few
from hypothesis import given
from hypothesis import strategies as st

from rrcm import batches
from rrcm.errors import ConfigError

sizes = st.integers(1, 60).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n)))


def epoch(number, *, images, batch_size, seed):
    """The rows of one epoch, batch by batch."""
    per_epoch = batches.steps_per_epoch(images, batch_size=batch_size)
    steps = range(number * per_epoch, (number + 1) * per_epoch)
    return [batches.rows(s, images=images, batch_size=batch_size, seed=seed) for s in steps]


@few
@given(sizes, st.integers(0, 5), st.integers(0, 2**31))
def test_an_epoch_takes_full_batches_and_no_image_twice(size, number, seed):
    images, batch_size = size
    found = epoch(number, images=images, batch_size=batch_size, seed=seed)
    rows = torch.cat(found).tolist()

    assert {len(batch) for batch in found} == {batch_size}
    assert len({*rows}) == len(rows) == images - images % batch_size
    assert {*rows} <= {*range(images)}


@few
@given(sizes, st.integers(0, 1000), st.integers(0, 2**31))
def test_rows_are_a_function_of_seed_and_step_alone(size, step, seed):
    """Not of the batches before, nor of the global generator, which they leave as it was."""
    setting = {"images": size[0], "batch_size": size[1], "seed": seed}
    torch.manual_seed(0)
    before = torch.get_rng_state()
    first = batches.rows(step, **setting)

    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(1)
    batches.rows(step + 1, **setting)
    assert torch.equal(batches.rows(step, **setting), first)


@few
@given(st.integers(0, 2**31), st.integers(0, 1000))
def test_every_epoch_and_every_seed_has_an_order_of_its_own(seed, number):
    setting = {"images": 32, "batch_size": 32}
    (rows,) = epoch(number, seed=seed, **setting)

    for other in [epoch(number + 1, seed=seed, **setting), epoch(number, seed=seed + 1, **setting)]:
        assert not torch.equal(rows, other[0])


def test_the_dropped_remainder_is_another_one_each_epoch():
    """3 of 10 images sit out each epoch; in ten epochs, everyone plays."""
    played = [torch.cat(epoch(e, images=10, batch_size=7, seed=0)).tolist() for e in range(10)]

    assert {row for rows in played for row in rows} == {*range(10)}


def test_a_batch_larger_than_the_split_is_refused():
    with pytest.raises(ConfigError, match=r"^batch_size: 9 is larger than the training split, 8"):
        batches.rows(0, images=8, batch_size=9, seed=0)
