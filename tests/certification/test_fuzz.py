"""Whatever a file holds, a reader returns a valid table or refuses it in one line."""

import json
import math
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from builders import certificates, header, refused, row
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rrcm.auditing.audit import audit
from rrcm.certification import certify, tables, tsv
from rrcm.certification.sampling.journal import Journal
from rrcm.certification.votes import records
from rrcm.core.errors import RrcmError

ROWS = [
    row(7, 2, [0, 0, 10], [1, 0, 9], [1, 0, 39]),
    row(3, 0, [4, 6, 0], [0, 40, 0]),
    row(11, 1, [5, 5, 0], [3, 4, 3], stop="n"),
]
HEADER = header(images=len(ROWS))
TABLE = certificates([0, 1, -1, 0], [0.25, 0.5, 0.0, 0.125])
DEEP = b"[" * 100_000
NASTY = [
    *(DEEP, b"9" * 4300),
    *(b"", b"\n", b"\r\n", b"\0", b"\xff", b"\xef\xbb\xbf", b'"', b"{}", b"[]", b"{", b"-", b"-0"),
    *(b"nan", b"NaN", b"Infinity", b"-inf", b"1e999", b"1e-999", b"1" * 5000, b"9" * 19, b"0x10"),
    *("٣".encode(), "１".encode(), "\u2028".encode(), "\u00a0".encode(), b"1_0", b"+1", b"1.0"),
    *(b"null", b"true", b'"1"', b"\t", b",", b" ", b"x" * 100_000, b"-9223372036854775808"),
]


@pytest.fixture(scope="module")
def valid(tmp_path_factory) -> dict[str, bytes]:
    """A valid file of each kind."""
    folder = tmp_path_factory.mktemp("valid")
    records.write(folder / "a.jsonl", HEADER, ROWS)
    certify.write(TABLE, folder / "a.csv")
    tsv.write(TABLE, folder / "a.tsv")
    often = replace(HEADER, stop="spending", stopping={"radii": [0.0, 0.2], "beta": 0.01})
    records.write(folder / "a.packed.jsonl", often, ROWS)
    kinds = ("jsonl", "packed.jsonl", "csv", "tsv")
    return {kind: (folder / f"a.{kind}").read_bytes() for kind in kinds}


@st.composite
def damage(draw):
    """A function that changes some bytes, words or lines of a file."""
    pieces = st.sampled_from(NASTY) | st.binary(max_size=8)
    steps = draw(
        st.lists(
            st.tuples(
                st.sampled_from(["insert", "delete", "word", "line", "twice", "cut", "flip"]),
                st.floats(0, 1, exclude_max=True),
                pieces,
            ),
            min_size=1,
            max_size=4,
        )
    )
    return lambda data: _damaged(data, steps)


def just(data: bytes) -> Callable[[bytes], bytes]:
    """A function that puts ``data`` in the place of a file."""
    return lambda before: data


def _damaged(data: bytes, steps: list[tuple[str, float, bytes]]) -> bytes:
    for how, where, piece in steps:
        at = int(where * len(data))
        lines = data.split(b"\n")
        line = int(where * len(lines))
        if how == "insert":
            data = data[:at] + piece + data[at:]
        elif how == "delete":
            data = data[:at] + data[at + 1 + len(piece) :]
        elif how == "flip" and data:
            data = data[:at] + bytes([data[at] ^ 1 << len(piece) % 8]) + data[at + 1 :]
        elif how == "cut":
            data = data[:at]
        elif how == "line":
            data = b"\n".join([*lines[:line], piece, *lines[line + 1 :]])
        elif how == "twice":
            data = b"\n".join([*lines[:line], lines[line], *lines[line:]])
        elif how == "word" and (words := [*re.finditer(rb"\w+", data)]):  # a number or a name
            start, end = words[int(where * len(words))].span()
            data = data[:start] + piece + data[end:]
    return data


def read(path: Path) -> None:
    """Read a file by all its readers; what they return is what they promise."""
    if path.suffix == ".csv":
        with refusals():
            table = certify.read(path)
            assert {*certify.COLUMNS} <= {*table.columns} and not table.isna().any(axis=None)
            assert {table[c].dtype.kind for c in ("idx", "label", "predict", "correct")} == {"i"}
            assert {table[c].dtype.kind for c in ("radius", "p_A")} == {"f"}
    elif path.suffix == ".tsv":
        with refusals():
            table = tables.scan(path)
            assert [c for c in tsv.COLUMNS if c in table] == [*table.columns]
            assert {table[c].dtype.kind for c in tsv.COLUMNS[:3]} == {"i"}
        with refusals():
            table = tables.read(path)
            assert (np.isfinite(table["radius"]) & (table["radius"] >= 0)).all()
            assert table["correct"].isin((0, 1)).all() and table["idx"].is_unique
    else:
        with refusals():
            definition, rows, _ = records.scan(path)
            assert 0 < definition.alpha < 1 and 0 < definition.sigma < math.inf
            for one in rows:
                assert one.votes(len(definition.classes)).counts.min(initial=0) >= 0
        with refusals():
            definition, rows = records.read(path)
            records.write(path.with_suffix(".again"), definition, rows)
            assert records.read(path.with_suffix(".again")) == (definition, rows)
    with refusals():
        assert audit(path).verdict.startswith(("can be", "cannot be"))
    if path.suffix == ".jsonl":
        with refusals(), Journal(path, HEADER):
            pass


class refusals(suppress):
    """Suppresses errors that a user can fix, if they are of one line."""

    def __init__(self) -> None:
        super().__init__(RrcmError)

    def __exit__(self, kind, error, trace) -> bool:
        if isinstance(error, RrcmError):
            assert str(error) and "\n" not in str(error) and len(str(error)) < 2000
        return super().__exit__(kind, error, trace)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


@pytest.mark.parametrize("kind", ["jsonl", "packed.jsonl", "csv", "tsv"])
@settings(deadline=None, max_examples=30)
@given(
    change=damage() | (st.binary(max_size=200) | st.text(max_size=200).map(str.encode)).map(just)
)
@example(change=just(DEEP))
@example(change=just(b"\n" + DEEP))
@example(change=just(b'{"a":' * 50_000))
def test_any_bytes_and_a_damaged_file_are_read_or_refused(folder, valid, kind, change):
    path = folder / f"damaged.{kind}"
    path.write_bytes(change(valid[kind]))

    read(path)


def test_a_header_that_means_nothing_is_refused(tmp_path):
    path = tmp_path / "a.jsonl"
    records.write(path, HEADER, ROWS)
    first, *others = path.read_text().splitlines(keepends=True)
    for key, value in [
        *(("shard", value) for value in ("", "a/b", "0/1", "2/1", "1/1/1")),
        *((key, value) for key in ("images", "n", "n0") for value in (-1, 10**30)),
        *(("sigma", 0.0), ("sigma", 1e999), ("alpha", 0.0), ("alpha", 1.0)),
        *(("budget", -1.0), ("slack", math.nan), ("classes", [])),
    ]:
        path.write_text(json.dumps(json.loads(first) | {key: value}) + "\n" + "".join(others))

        with refused(RrcmError, str(path)):
            records.read(path)
