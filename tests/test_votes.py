"""A votes file says what defines it, loses at most a torn line, and hides no damage."""

import dataclasses
import json
import os

import numpy as np
import pytest
from builders import header, refused
from helpers import few
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from rrcm import votes
from rrcm.errors import VotesError
from rrcm.votes import Header, Row

HEADER = header()
ROWS = [
    Row(idx=7, label=2, n0={2: 10}, n={0: 1, 2: 39}),
    Row(idx=3, label=0, n0={0: 4, 1: 6}, n={1: 40}),
    Row(idx=11, label=1, n0={0: 5, 1: 5}, n={0: 10, 1: 20, 2: 10}),
]


def write(path, rows=ROWS):
    assert list(votes.append(path, HEADER, rows)) == rows
    return path.read_bytes()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "votes.jsonl"


@pytest.fixture
def hasty(monkeypatch):
    """Disks are slow; a test that writes a thousand lines need not wait for them."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def test_what_is_written_is_read(path):
    write(path)

    assert votes.read(path) == (HEADER, ROWS)


def test_the_format_is_the_documented_one(path):
    """One JSON object a line, the header first; classes without votes are left out."""
    first, *lines = write(path).decode().splitlines()

    assert json.loads(first) == dataclasses.asdict(HEADER)
    assert lines[0] == '{"idx":7,"label":2,"n0":{"2":10},"n":{"0":1,"2":39}}'


def test_a_row_is_on_the_disk_before_the_next_is_asked_for(path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(os.fstat(file).st_size))

    def rows():
        for done, row in enumerate(ROWS):
            assert len(synced) == 1 + done  # the header, and all rows so far
            assert synced[-1] == path.stat().st_size
            assert votes.read(path) == (HEADER, ROWS[:done])
            yield row

    assert list(votes.append(path, HEADER, rows())) == ROWS
    assert synced[-1] == path.stat().st_size


def test_a_file_cut_anywhere_resumes_to_the_same_bytes(path, hasty):
    """Whatever a crash cuts off, at most one image is lost, and no trace of it is left."""
    whole = write(path)
    ends = [i + 1 for i, byte in enumerate(whole) if byte == ord("\n")]
    for cut in (0, 1, ends[0] - 1, *range(ends[0], len(whole) + 1)):
        path.write_bytes(whole[:cut])

        done = votes.resume(path, HEADER)
        kept = path.read_bytes()
        write(path, [row for row in ROWS if row.idx not in done])

        assert kept == whole[: max((end for end in ends if end <= cut), default=0)]
        assert path.read_bytes() == whole


def test_nothing_is_resumed_where_nothing_is(path):
    assert votes.resume(path, HEADER) == set()
    assert not path.exists()


@pytest.mark.parametrize("field", Header.__slots__)
def test_votes_of_another_definition_are_not_continued(path, field):
    whole = write(path)
    was = getattr(HEADER, field)
    now = [*was, "3"] if field == "classes" else was * 2 if was else 1

    with refused(VotesError, f"{path}: ", f"{field} was {was!r}, is {now!r}", "move the file away"):
        votes.resume(path, header(**{field: now}))

    assert path.read_bytes() == whole


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"idx":7,"label":0,"n0":{"0":10},"n":{"0":40}}', "image 7 comes twice"),
        ('{"idx":8,"label":0,"n0":{"0":9},"n":{"0":40}}', "n0 has 9 votes, expected 10"),
        ('{"idx":8,"label":0,"n0":{"0":10},"n":{"0":41}}', "n has 41 votes, expected 40"),
        ('{"idx":8,"label":0,"n0":{},"n":{"0":40}}', "n0 has 0 votes"),
        ('{"idx":8,"label":0,"n0":{"0":10},"n":{"0":50,"1":-10}}', "n has -10 votes"),
        ('{"idx":8,"label":0,"n0":{"3":10},"n":{"0":40}}', "n0 votes for a class outside 0..2"),
        ('{"idx":8,"label":0,"n0":{"0":10},"n":{"-1":40}}', "n votes for a class outside"),
        ('{"idx":8,"label":3,"n0":{"0":10},"n":{"0":40}}', "label 3 is outside 0..2"),
        ('{"idx":8,"label":0,"n0":{"0":10}}', "not a line of votes"),
        ('{"idx":8,"label":0,"n0":[10],"n":{"0":40}}', "not a line of votes"),
        ('{"idx":8,"label":0,"n0":{"0":10},"n":{"0":4e999}}', "not a line of votes"),
        ('{"idx":8,"label":0,"n0":{"0":10},"n":{"0":39.9,"1":1}}', "not a line of votes"),
        ("\0\0\0", "not a line of votes"),
        ("[1, 2]", "not a line of votes"),
        ("", "not a line of votes"),
    ],
)
def test_a_damaged_line_is_named(path, line, words):
    lines = write(path).decode().splitlines()
    path.write_text("\n".join([*lines[:3], line, *lines[3:]]) + "\n")

    for read in (votes.read, lambda path: votes.resume(path, HEADER)):
        with refused(VotesError, f"{path}:4: ", words):
            read(path)


@pytest.mark.parametrize("first", ["", "votes", "[]", "{}", '{"format":"rrcm-votes-1"}'])
def test_a_file_without_our_header_is_refused(path, first):
    path.write_text(f"{first}\n")

    with refused(VotesError, f"{path}:1: not the header of a votes file"):
        votes.read(path)


def test_unfinished_votes_are_not_read(path):
    whole = write(path)
    for text in (whole[:-1], whole[:-20]):
        path.write_bytes(text)
        with refused(VotesError, "the last line is torn; sampling has not finished"):
            votes.read(path)
    path.unlink()
    with refused(VotesError, f"{path}: not found"):
        votes.read(path)


@few
@given(arrays(np.int64, st.tuples(st.just(2), st.integers(1, 30)), elements=st.integers(0, 99)))
def test_sparse_and_dense_counts_are_inverses(dense):
    row = Row(idx=0, label=0, n0=votes.sparse(dense[0]), n=votes.sparse(dense[1]))

    np.testing.assert_array_equal(row.counts(dense.shape[1]), dense)
    assert 0 not in {*row.n0.values(), *row.n.values()}
