"""A votes file says what defines it, loses at most a torn line, and hides no damage."""

import dataclasses
import json
import os
import zlib
from dataclasses import replace

import numpy as np
import pytest
from builders import header, refused, row
from helpers import few
from hypothesis import given
from hypothesis import strategies as st

from rrcm.certification.sampling import journal as journal_module
from rrcm.certification.sampling.journal import Journal
from rrcm.certification.votes import boundaries, records
from rrcm.certification.votes.records import Header
from rrcm.core.errors import VotesError

HEADER = header(images=3)  # n0 = 10, n = 40, three classes
ROWS = [
    row(7, 2, [0, 0, 10], [1, 0, 9], [1, 0, 39]),
    row(3, 0, [4, 6, 0], [0, 40, 0]),
    row(11, 1, [5, 5, 0], [3, 4, 3], stop="futile"),
]
OFTEN = replace(HEADER, stop="spending")
PARTLY = [row(7, 2, [0, 0, 10], stop=""), row(3, 0, [4, 6, 0], [0, 20, 0], stop="")]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "votes.jsonl"


def journalled(path, rows, definition=HEADER):
    with Journal(path, definition) as journal:
        for one in rows:
            journal.append(one)
    return path.read_bytes()


def write(path, rows=ROWS, definition=HEADER):
    records.write(path, replace(definition, images=len(rows)), rows)
    return path.read_bytes()


# The file.


KEYS = (
    "format noise stream slack run weights sigma n0 n seed stop stopping certificate alpha "
    "label_aware soft paired budget backend provider precision batch_size split subset images "
    "pixels shard classes"
).split()


def test_the_format_is_the_documented_one(path):
    """One JSON object a line, the header first; classes without votes are left out."""
    first, *lines = write(path).decode().splitlines()

    said = json.loads(first)
    assert said.pop("crc32") == "17d3ca9d"
    assert [*said] == KEYS
    assert said == dataclasses.asdict(HEADER) | records.CONSTANT
    text = (
        '{"idx":7,"label":2,"n0":{"2":10},"looks":[[10,{"0":1,"2":9}],[40,{"0":1,"2":39}]],'
        '"stop":"n","soft":[0,0],"paired":[0,0]'
    )
    checksum = zlib.crc32((text + "}").encode())
    assert lines[0] == f'{text},"crc32":"{checksum:08x}"}}'


@st.composite
def files(draw):
    """A header of any size, and rows of any votes that it allows."""
    classes = draw(st.integers(2, 5))
    definition = header(classes=[str(k) for k in range(classes)], n0=4, n=99)
    rows = []
    for idx in draw(st.lists(st.integers(0, 2**32 - 1), unique=True, max_size=4)):
        pick = st.integers(0, classes - 1)
        ballots = draw(st.lists(pick, min_size=1, max_size=99))
        ends = draw(st.sets(st.integers(1, len(ballots)), max_size=3)) | {len(ballots)}
        looks = [np.bincount(ballots[:end], minlength=classes) for end in sorted(ends)]
        stop = draw(st.sampled_from(["n", "certified", "futile", "budget"]))
        one = row(
            idx,
            draw(pick),
            np.bincount(draw(st.lists(pick, min_size=4, max_size=4)), minlength=classes),
            *(looks if stop != "budget" or draw(st.booleans()) else []),
            stop=stop,
        )
        rows.append(one)
    return replace(definition, images=len(rows)), rows


@pytest.mark.parametrize("stop", ["none", "spending", "proportional"])
@few
@given(files())
def test_writing_and_reading_are_inverses(tmp_path_factory, stop, file):
    path = tmp_path_factory.mktemp("votes") / "votes.jsonl"
    definition, rows = replace(file[0], stop=stop), file[1]

    records.write(path, definition, rows)

    assert records.read(path) == (definition, rows)


def test_votes_of_a_rule_that_looks_often_are_packed(path):
    """One line has all draws, and a line what they do not say; those of other looks stay."""
    own = row(5, 0, [10, 0, 0], [7, 0, 0], [7, 33, 0])
    first, *lines = write(path, [*ROWS, own], OFTEN).decode().splitlines()

    assert json.loads(first)["format"] == records.PACKED == "rrcm-votes-7"
    assert json.loads(first)["looks"] == [10, 40]
    text = '{"idx":7,"label":2,"n0":{"2":10},"looks":"2 2 0:C","stop":"n"'
    assert lines[0] == f'{text},"crc32":"{zlib.crc32((text + "}").encode()):08x}"}}'
    assert json.loads(lines[3])["looks"] == [[7, {"0": 7}], [40, {"0": 7, "1": 33}]]
    assert records.definition(path) == records.read(path)[0] == replace(OFTEN, images=4)
    path.write_text("\n".join([first, *lines[:-1]]) + "\n")
    with refused(VotesError, f"{path}: 3 images, expected 4; was it cut?"):
        records.read(path)


def test_packed_votes_need_a_tenth_and_older_ones_are_read(path):
    """2,000 images of ten classes, of which twenty are simulated: at most a megabyte."""
    rng, draws = np.random.default_rng(0), boundaries.looks(100_000)[:90]
    steps = np.diff(draws, prepend=0)
    rows = [
        row(idx, 0, [10, *[0] * 9], *rng.multinomial(steps, p).cumsum(axis=0))
        for idx, p in enumerate(rng.dirichlet([60.0, *[0.3] * 9], size=20))
    ]
    definition = replace(OFTEN, n=100_000, classes=[*"0123456789"], images=20)
    plain = journalled(path, rows, definition)
    older = records.read(path)

    size = len(write(path, rows, definition))

    assert records.read(path) == older == (definition, rows)
    assert b'"format":"rrcm-votes-6"' in plain
    assert size < 20 * 500 < len(plain) / 9


def test_packed_looks_that_no_draws_have_are_refused(path):
    write(path, definition=OFTEN)
    first, line, *rest = path.read_text().splitlines()
    for looks, words in [
        ("3 2 0:C", "not a line of votes"),  # more looks than there are
        ("2 2 0:CCC", "not a line of votes"),
        (f"2 2 0:{'g' * 99}C", "not a line of votes"),  # a number without an end
        ("2 2 0:C 0:C", "not a line of votes"),
        ("2 2 3:C", "votes for a class outside 0..2"),
        ("2 2 0:wB", "votes for a class"),  # 24 of 10 draws
    ]:
        value = json.loads(line) | {"looks": looks}
        del value["crc32"]
        path.write_text("\n".join([first, records.sealed(json.dumps(value)), *rest]) + "\n")

        with refused(VotesError, f"{path}:2: ", words):
            records.read(path)


# Damage.

GOOD = {
    "idx": 8, "label": 0, "n0": {"0": 10}, "looks": [[20, {"0": 20}], [40, {"0": 39, "1": 1}]],
    "stop": "n",
}  # fmt: skip
BAD = [
    ({"idx": 7}, "image 7 comes twice"),
    ({"stop": ""}, "image 8 is unfinished"),
    ({"n0": {"0": 9}}, "n0 has 9 votes, expected 10"),
    ({"n0": {}, "stop": "budget"}, "n0 has 0 votes, expected 10"),
    ({"n0": {"3": 10}}, "n0 votes for a class outside 0..2"),
    ({"n0": {"0": 11, "1": -1}}, "n0 has -1 votes for a class"),
    ({"label": 3}, "label 3 is outside 0..2"),
    ({"label": -2}, "label -2 is outside 0..2"),
    ({"looks": [[20, {"0": 19}]]}, "looks has 19 votes, expected 20"),
    ({"looks": [[41, {"0": 41}]]}, "looks do not add up: 41 draws after 0"),
    ({"looks": [[20, {"0": 20}], [20, {"0": 20}]]}, "do not add up: 20 draws after 20"),
    ({"looks": [[20, {"0": 20}], [40, {"0": 19, "1": 21}]]}, "do not add up: 40 draws after 20"),
    ({"looks": [[9, {"1": 9}], [20, {"1": 9, "2": 11}], [40, {"1": 40}]]}, "40 draws after 20"),
    ({"soft": [5, 7]}, "not a line of votes"),
    ({"idx": 1.5}, "not a line of votes"),
    ({"looks": [[20, {"0": 19.5, "1": 0.5}]]}, "not a line of votes"),
    ({"n0": {"zero": 10}}, "not a line of votes"),
]


def damaged(path, line, definition=HEADER):
    """A file whose fourth line is this one."""
    records.write(path, replace(definition, images=len(ROWS) + 1), ROWS)
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:3], records.sealed(line), *lines[3:]]) + "\n")


def test_a_damaged_line_is_named(path):
    for change, words in BAD:
        damaged(path, json.dumps(GOOD | change))
        with refused(VotesError, f"{path}:4: ", words):
            records.read(path)
    lacking = [json.dumps({k: v for k, v in GOOD.items() if k != key}) for key in GOOD]
    for line in ("\0\0\0", "[1, 2]", "", '"idx"', '{"idx":8', "4e999", *lacking):
        damaged(path, line)
        for read in (records.read, lambda path: Journal(path, HEADER)):
            with refused(VotesError, f"{path}:4: not a line of votes"):
                read(path)


def test_a_file_without_our_header_is_refused(path):
    """Nor are votes of a kind that earlier versions drew, stopped or counted otherwise."""
    for first in ("", "votes", "[]", "{}", '{"format":"rrcm-votes-6"}'):
        path.write_text(f"{first}\n")
        with refused(VotesError, f"{path}:1: not the header of a votes file"):
            records.read(path)
    for changes in ({"label_aware": True}, {"soft": 1.0}, {"paired": 9}):
        path.write_text(json.dumps(records.fields(HEADER) | changes) + "\n")
        with refused(VotesError, f"{path}:1: ", *changes, "which this version no longer draws"):
            records.read(path)


def test_every_field_of_the_header_is_needed_and_typed(path):
    values = dataclasses.asdict(HEADER)
    for field in Header.__slots__:
        for wrong in ({k: v for k, v in values.items() if k != field}, values | {field: None}):
            path.write_text(json.dumps(wrong) + "\n")
            with refused(VotesError, f"{path}:1: ", field):
                records.read(path)


def test_unfinished_votes_are_not_read(path):
    whole = write(path)
    for text in (whole[:-1], whole[:-20]):
        path.write_bytes(text)
        with refused(VotesError, "the last line is torn; sampling has not finished"):
            records.read(path)


# The journal.


def test_the_disk_hears_of_it_soon_and_at_the_end(path, monkeypatch):
    clock, synced = iter([0, 0.5, 1.5, 1.6, 3.0]), []
    monkeypatch.setattr(journal_module.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(os.fstat(file).st_size))
    with Journal(path, HEADER) as journal:
        journal.append(ROWS[0])
        assert not synced
        journal.append(ROWS[1])
        assert synced == [path.stat().st_size]

    assert len(synced) == 2


def test_a_journal_cut_anywhere_has_all_whole_lines_of_it(path):
    """Whatever a crash cuts off, at most one line is lost, and no trace of it is left."""
    rows = [PARTLY[0], *ROWS[:2]]
    whole = journalled(path, rows)
    ends = [i + 1 for i, byte in enumerate(whole) if byte == ord("\n")]
    for cut in sorted({*range(0, len(whole), 29), *(e + i for e in ends for i in (-1, 0, 1))}):
        path.write_bytes(whole[:cut])
        lines = sum(end <= cut for end in ends)

        with Journal(path, HEADER) as journal:
            kept = {one.idx: one for one in rows[: max(lines - 1, 0)]}
            assert journal.rows == kept

        assert path.read_bytes() == whole[: max(ends[max(lines, 1) - 1], ends[0])]


CHANGED = {"slack": 1e-9, "stopping": {"beta": 0.5}, "classes": ["0", "1", "2", "3"]}


def test_votes_of_another_definition_are_not_continued(path):
    whole = journalled(path, ROWS)
    for field in Header.__slots__[1:]:  # nothing of another format is even read; see above
        was = getattr(HEADER, field)
        now = CHANGED.get(field) or (was * 2 if was else 1)
        words = f"{field} was {was!r}, is {now!r}", "move the file away"
        with refused(VotesError, f"{path}: ", *words):
            Journal(path, replace(HEADER, **{field: now}))
        assert path.read_bytes() == whole
