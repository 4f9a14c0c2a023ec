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
from rrcm.certification.sampling import procedure
from rrcm.certification.sampling.journal import Journal
from rrcm.certification.stopping import spending
from rrcm.certification.votes import records
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


@pytest.fixture
def hasty(monkeypatch):
    """Disks are slow; a test that writes a thousand lines need not wait for them."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


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
        one = row(
            idx,
            draw(pick),
            np.bincount(draw(st.lists(pick, min_size=4, max_size=4)), minlength=classes),
            *looks,
            stop=draw(st.sampled_from(["n", "certified", "futile", "budget"])),
        )
        rows.append(one)
    return replace(definition, images=len(rows)), rows


@pytest.mark.parametrize("stop", ["none", "spending"])
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


def test_packed_votes_need_a_tenth_and_older_ones_are_read(path):
    """2,000 images of ten classes, of which twenty are simulated: at most a megabyte."""
    rng, draws = np.random.default_rng(0), spending.looks(100_000)[:90]
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


@pytest.mark.parametrize(
    ("looks", "words"),
    [
        ("3 2 0:C", "not a line of votes"),  # more looks than there are
        ("2 2 0:CCC", "not a line of votes"),
        ("2 2 0:g", "not a line of votes"),  # a number without an end
        (f"2 2 0:{'g' * 99}C", "not a line of votes"),
        ("2 2 0:C 0:C", "not a line of votes"),
        ("2 2 3:C", "votes for a class outside 0..2"),
        ("2 2 0:wB", "votes for a class"),  # 24 of 10 draws
    ],
)
def test_packed_looks_that_no_draws_have_are_refused(path, looks, words):
    write(path, definition=OFTEN)
    first, line, *rest = path.read_text().splitlines()
    value = json.loads(line) | {"looks": looks}
    del value["crc32"]
    path.write_text("\n".join([first, records.sealed(json.dumps(value)), *rest]) + "\n")

    with refused(VotesError, f"{path}:2: ", words):
        records.read(path)


@few
@given(files())
def test_evidence_is_the_votes_as_arrays(file):
    definition, rows = file
    for one in rows:
        found = one.votes(len(definition.classes))

        assert records.sparse(found.selection) == one.n0
        assert list(zip(found.draws, map(records.sparse, found.counts), strict=True)) == one.looks
        assert found.idx == one.idx
        assert all(0 not in v.values() for v in (one.n0, *(v for _, v in one.looks)))


def test_the_chosen_class_is_the_lowest_of_those_with_most_votes():
    found = ROWS[2].votes(3)

    assert found.c_A == 0
    assert found.history(2) == [(10, 3)]


def test_a_row_may_have_no_draws_at_all_where_a_budget_left_it(path):
    untouched, selected = row(1, 0, [0, 0, 0], stop="budget"), row(2, 0, [0, 9, 1], stop="budget")

    write(path, [untouched, selected])

    assert records.read(path)[1] == [untouched, selected]
    assert untouched.votes(3).counts.shape == (0, 3)


# Damage.

GOOD = {
    "idx": 8, "label": 0, "n0": {"0": 10}, "looks": [[20, {"0": 20}], [40, {"0": 39, "1": 1}]],
    "stop": "n",
}  # fmt: skip
BAD = [
    ({"idx": 7}, "image 7 comes twice"),
    ({"stop": ""}, "image 8 is unfinished"),
    ({"n0": {"0": 9}}, "n0 has 9 votes, expected 10"),
    ({"n0": {}}, "n0 has 0 votes, expected 10"),
    ({"n0": {}, "looks": []}, "n0 has 0 votes, expected 10"),
    ({"n0": {}, "stop": "budget"}, "n0 has 0 votes, expected 10"),
    ({"n0": {"3": 10}}, "n0 votes for a class outside 0..2"),
    ({"n0": {"0": 11, "1": -1}}, "n0 has -1 votes for a class"),
    ({"label": 3}, "label 3 is outside 0..2"),
    ({"label": -2}, "label -2 is outside 0..2"),
    ({"looks": [[20, {"0": 19}]]}, "looks has 19 votes, expected 20"),
    ({"looks": [[20, {"0": 50, "1": -30}]]}, "looks has -30 votes for a class"),
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


@pytest.mark.parametrize(("change", "words"), BAD, ids=[str(change) for change, _ in BAD])
def test_a_damaged_line_is_named(path, change, words):
    damaged(path, json.dumps(GOOD | change))

    with refused(VotesError, f"{path}:4: ", words):
        records.read(path)


@pytest.mark.parametrize("line", ["\0\0\0", "[1, 2]", "", "{}", '"idx"', '{"idx":8', "4e999"])
def test_a_line_that_is_none_is_named(path, line):
    damaged(path, line)

    for read in (records.read, lambda path: Journal(path, HEADER)):
        with refused(VotesError, f"{path}:4: not a line of votes"):
            read(path)


@pytest.mark.parametrize("key", GOOD)
def test_every_key_of_a_line_is_needed(path, key):
    damaged(path, json.dumps({k: v for k, v in GOOD.items() if k != key}))

    with refused(VotesError, f"{path}:4: not a line of votes"):
        records.read(path)


@pytest.mark.parametrize("changes", [{"label_aware": True}, {"soft": 1.0}, {"paired": 9}])
def test_votes_of_a_kind_that_is_no_longer_drawn_are_refused(path, changes):
    """Earlier versions stopped, counted or compared otherwise; a file of theirs says so."""
    path.write_text(json.dumps(records.fields(HEADER) | changes) + "\n")

    with refused(VotesError, f"{path}:1: ", *changes, "which this version no longer draws"):
        records.read(path)


@pytest.mark.parametrize("first", ["", "votes", "[]", "{}", '{"format":"rrcm-votes-6"}'])
def test_a_file_without_our_header_is_refused(path, first):
    path.write_text(f"{first}\n")

    with refused(VotesError, f"{path}:1: not the header of a votes file"):
        records.read(path)


@pytest.mark.parametrize("field", Header.__slots__)
def test_every_field_of_the_header_is_needed_and_typed(path, field):
    values = dataclasses.asdict(HEADER)
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
    path.unlink()
    with refused(VotesError, f"{path}: not found"):
        records.read(path)


# The journal.


def test_a_journal_remembers_the_latest_of_each_image(path):
    journalled(path, [*PARTLY, *ROWS])

    with Journal(path, HEADER) as journal:
        assert journal.rows == {one.idx: one for one in ROWS}


def test_what_was_appended_survives_the_process(path):
    """Nothing waits in a buffer of ours: a line is in the file when `append` returns."""
    with Journal(path, HEADER) as journal:
        for done, one in enumerate(ROWS, start=2):
            journal.append(one)
            assert len(path.read_bytes().splitlines()) == done
            assert path.read_bytes().endswith(b"\n")


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


def test_a_journal_cut_anywhere_has_all_whole_lines_of_it(path, hasty):
    """Whatever a crash cuts off, at most one line is lost, and no trace of it is left."""
    rows = [PARTLY[0], *ROWS[:2]]
    whole = journalled(path, rows)
    ends = [i + 1 for i, byte in enumerate(whole) if byte == ord("\n")]
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        lines = sum(end <= cut for end in ends)

        with Journal(path, HEADER) as journal:
            kept = {one.idx: one for one in rows[: max(lines - 1, 0)]}
            assert journal.rows == kept

        assert path.read_bytes() == whole[: max(ends[max(lines, 1) - 1], ends[0])]


CHANGED = {"slack": 1e-9, "stopping": {"beta": 0.5}, "classes": ["0", "1", "2", "3"]}


@pytest.mark.parametrize("field", Header.__slots__)
def test_votes_of_another_definition_are_not_continued(path, field):
    whole, was = journalled(path, ROWS), getattr(HEADER, field)
    now = CHANGED.get(field) or (was * 2 if was else 1)
    if field == "format":
        return  # nothing of another format is even read; see above

    with refused(VotesError, f"{path}: ", f"{field} was {was!r}, is {now!r}", "move the file away"):
        Journal(path, replace(HEADER, **{field: now}))

    assert path.read_bytes() == whole


# Shards.


def shards(folder, count, images=7, **changes):
    """A votes file for each of ``count`` shards, and all rows in order."""
    rows = [row(10 * i, i % 3, [10, 0, 0], [i, 40 - i, 0]) for i in range(images)]
    paths = [folder / f"{i}.jsonl" for i in range(1, count + 1)]
    for i, path in enumerate(paths, start=1):
        places = procedure.subset("all", images, shard=f"{i}/{count}")
        definition = header(shard=f"{i}/{count}", images=images, **changes)
        records.write(path, definition, [rows[p] for p in places])
    return paths, rows


@pytest.mark.parametrize("count", [1, 2, 3, 7, 9])
def test_shards_in_any_order_are_one_whole(tmp_path, count):
    paths, rows = shards(tmp_path, count)

    assert records.merge(paths) == records.merge(paths[::-1]) == (header(images=7), rows)


def test_a_shard_that_is_missing_is_named(tmp_path):
    paths, _ = shards(tmp_path, 3)

    with refused(VotesError, "shard 2/3 of 1/3 … 3/3 is missing"):
        records.merge([paths[0], paths[2]])


def test_a_shard_that_comes_twice_is_named(tmp_path):
    paths, _ = shards(tmp_path, 2)

    with refused(VotesError, f"{paths[0]}: shard 1/2 was given before"):
        records.merge([*paths, paths[0]])


def test_a_shard_of_another_seed_is_named(tmp_path):
    paths, _ = shards(tmp_path, 2)
    (tmp_path / "other").mkdir()
    others, _ = shards(tmp_path / "other", 2, seed=1)

    with refused(VotesError, f"{others[1]}: ", "seed was 1, is 0"):
        records.merge([paths[0], others[1]])


@pytest.mark.parametrize("reverse", [False, True])
def test_shards_of_another_cut_are_refused(tmp_path, reverse):
    """1/1 is all images already, with those of 1/2 and 2/2 among them."""
    paths, _ = shards(tmp_path, 2)
    (tmp_path / "other").mkdir()
    whole, _ = shards(tmp_path / "other", 1)

    with refused(VotesError, "is missing or foreign", "shard 1/"):
        records.merge([*paths, *whole] if reverse else [*whole, *paths])


@pytest.mark.parametrize("short", [0, 1])
def test_a_shard_that_lost_images_is_refused(tmp_path, short):
    paths, _ = shards(tmp_path, 3, images=9)
    lines = paths[short].read_bytes().splitlines(keepends=True)
    paths[short].write_bytes(b"".join(lines[:-1]))

    with refused(VotesError, f"{paths[short]}: 2 images, expected 3"):
        records.merge(paths)
