"""Batches: every epoch is a permutation of its own, within windows of shards."""

import pytest
import torch
from helpers import few
from hypothesis import given
from hypothesis import strategies as st

from rrcm.core.errors import ConfigError
from rrcm.training.engine.inputs import order

many = st.lists(st.integers(0, 5), min_size=order.WINDOW + 1, max_size=50)
shards = (st.lists(st.integers(0, 60), min_size=1, max_size=3) | many).filter(any)


def epoch(number, *, shards, batch_size, seed):
    """The rows of one epoch, batch by batch."""
    per_epoch = order.steps_per_epoch(sum(shards), batch_size=batch_size)
    steps = range(number * per_epoch, (number + 1) * per_epoch)
    return [order.rows(s, shards=shards, batch_size=batch_size, seed=seed) for s in steps]


@few
@given(shards.map(tuple), st.integers(0, 5), st.integers(0, 2**31), st.data())
def test_an_epoch_takes_full_batches_and_no_image_twice(shards, number, seed, data):
    """Of few shards and of more than a window; the last images that fill no batch are left out."""
    images = sum(shards)
    batch_size = data.draw(st.integers(1, images) | st.just(images))
    found = epoch(number, shards=shards, batch_size=batch_size, seed=seed)
    rows = torch.cat(found).tolist()

    assert {len(batch) for batch in found} == {batch_size}
    assert len({*rows}) == len(rows) == images - images % batch_size
    assert {*rows} <= {*range(images)}


def test_weights_are_relative_frequencies_of_an_epoch():
    """Independent draws: 10 % more or fewer of 10,000 would be ten standard errors; 0 is never."""
    weights = torch.tensor([0.0, 1.0, 2.0, 3.0], dtype=torch.float64).repeat(10_000)
    setting = {"shards": (40_000,), "batch_size": 40_000, "seed": 3, "weights": weights}
    (one, other) = (order.rows(step, **setting) for step in range(2))

    assert (one % 4).bincount().tolist() == pytest.approx([0, 6667, 13_333, 20_000], rel=0.05)
    assert not torch.equal(one, other) and len(one.unique()) < len(one)
    halves = [order.rows(step, **setting | {"batch_size": 20_000}) for step in range(2)]
    assert torch.equal(torch.cat(halves), one), "one order for an epoch"
    again = order.rows(0, **setting | {"weights": weights.clone()})
    assert torch.equal(again, one) and not torch.equal(
        order.rows(0, **setting | {"weights": weights.flip(0)}), one
    )


@few
@given(st.integers(0, 2**31), st.integers(0, 1000))
def test_every_epoch_and_every_seed_has_an_order_of_its_own(seed, number):
    setting = {"shards": (32,), "batch_size": 32}
    (rows,) = epoch(number, seed=seed, **setting)

    for other in [epoch(number + 1, seed=seed, **setting), epoch(number, seed=seed + 1, **setting)]:
        assert not torch.equal(rows, other[0])


def test_a_batch_larger_than_the_split_is_refused():
    with pytest.raises(ConfigError, match=r"^batch_size: 9 is larger than the training split, 8"):
        order.rows(0, shards=(8,), batch_size=9, seed=0)


def test_images_are_shuffled_within_windows_of_shuffled_shards():
    """A step reads from at most two windows, and from nearly all shards of its window."""
    sizes, batch_size = (10,) * 64, 80
    shard = torch.arange(64).repeat_interleave(10)
    windows = []
    for step in range(8):
        rows = order.rows(step, shards=sizes, batch_size=batch_size, seed=0)
        windows.append({*shard[rows].tolist()})

    assert all(10 < len(window) <= order.WINDOW for window in windows)
    for one, other in zip(windows[::2], windows[1::2], strict=True):
        assert len(one | other) == order.WINDOW  # two batches of 80 are a window of 160
    assert sorted(windows[0]) != [*range(min(windows[0]), max(windows[0]) + 1)]
