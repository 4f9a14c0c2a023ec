"""The simulated schedule of benchmarks.makespan keeps the bounds of list scheduling."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.makespan import Piece, schedule

NETWORKS = {"a": 1e9, "b": 2e9}
PIECES = st.lists(
    st.builds(
        lambda network, seconds: Piece(network=network, seconds=seconds),
        st.sampled_from([*NETWORKS]),
        st.floats(0.1, 100),
    ),
    min_size=1,
    max_size=40,
)


def laid(queue, *, gpus, start=0.0, kept=False, rate=float("inf")):
    return schedule(queue, gpus=gpus, start=start, kept=kept, sizes=NETWORKS, images=4e9, rate=rate)


@given(queue=PIECES, gpus=st.integers(1, 20))
def test_no_schedule_is_shorter_than_its_work_or_longer_than_graham_allows(queue, gpus):
    """Graham (1966): at most the mean load and the longest piece."""
    seconds = [piece.seconds for piece in queue]
    found = laid(queue, gpus=gpus)

    assert found.drawing == pytest.approx(sum(seconds))
    lower = max(sum(seconds) / gpus, max(seconds))
    assert lower * (1 - 1e-9) <= found.makespan
    assert found.makespan <= (sum(seconds) / gpus + (1 - 1 / gpus) * max(seconds)) * (1 + 1e-9)


@given(queue=PIECES)
def test_one_gpu_takes_the_sum_of_pieces_starts_and_fetches(queue):
    names = [piece.network for piece in queue]
    changes = sum(a != b for a, b in zip([None, *names], names, strict=False))
    fetched = 4e9 + sum(NETWORKS[name] for name in {*names})
    for kept, starts in ((False, len(queue)), (True, changes)):
        found = laid(queue, gpus=1, start=5.0, kept=kept, rate=1e9)
        assert found.fetched == fetched
        assert found.makespan == pytest.approx(found.drawing + 5.0 * starts + fetched / 1e9)


def test_each_host_fetches_once_and_its_gpus_wait_for_that():
    queue = [Piece(network="a", seconds=10.0)] * 16
    found = laid(queue, gpus=16, rate=1e9)

    assert (found.fetched, found.makespan) == (10e9, 15.0)
