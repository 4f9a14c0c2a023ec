"""The field's table is read as people write it, written with radii rounded down, or refused."""

import gzip
import io
import sys

import pandas as pd
import pytest
from builders import certificates, refused

from rrcm.analysis import entries
from rrcm.auditing.audit import audit
from rrcm.certification import certify, tables, tsv
from rrcm.cli.commands import tables as commands
from rrcm.core.errors import DataError

HEADER = "idx\tlabel\tpredict\tradius\tcorrect\ttime\n"
ROWS = "0\t3\t3\t0.953\t1\t0:00:15.2\n100\t4\t-1\t0.0\t0\t0:00:14.9\n"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "a.tsv"


def read(path, text, encoding="utf-8"):
    path.write_bytes(text.encode(encoding))
    return tables.read(path)


def test_a_published_table_is_read(path):
    table = read(path, HEADER + ROWS)

    assert table["idx"].tolist() == [0, 100]
    assert table["radius"].tolist() == [0.953, 0.0]
    assert table["predict"].tolist() == [3, -1]
    assert table["time"].tolist() == ["0:00:15.2", "0:00:14.9"]
    assert table.attrs == {"header": tsv.COLUMNS, "numbered": False}


def test_a_table_may_lack_a_header_and_an_idx_and_have_other_columns(path):
    """The reference's rows are `label predict radius correct time`; then rows are counted."""
    table = read(path, "3\t3\t0.953\t1\t15.2\n4\t-1\t0.0\t0\t14.9\n")

    assert table["idx"].tolist() == [0, 1] and table["label"].tolist() == [3, 4]
    assert table.attrs == {"header": None, "numbered": True}
    assert [tsv.line(table, row) for row in (0, 1)] == [1, 2]
    numbered = read(path, ROWS)
    assert numbered["idx"].tolist() == [0, 100] and numbered.attrs["header"] is None
    by_name = read(path, "radius\tproved\tcorrect\tpredict\tlabel\n0.5\t1\t1\t2\t2\n")
    assert [*by_name.columns] == ["idx", "label", "predict", "radius", "correct"]
    assert by_name.iloc[0].tolist() == [0, 2, 2, 0.5, 1]


def test_how_it_was_typed_does_not_matter(path):
    """Other line ends, a blank last line, a byte order mark, no last line end, padding."""
    text = HEADER + ROWS
    expected = read(path, text)

    for ends in ("\r\n", "\r"):
        pd.testing.assert_frame_equal(read(path, text.replace("\n", ends)), expected)
    for typed in (text + "\n", "\ufeff" + text, text[:-1], text.replace("\t", " \t  ")):
        pd.testing.assert_frame_equal(read(path, typed), expected)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["a.tsv:1", "empty"]),
        (HEADER.replace("radius", "r") + ROWS, ["a.tsv:1", "'radius'"]),
        (HEADER.replace("time", "idx") + ROWS, ["a.tsv:1", "'idx'", "twice"]),
        (HEADER + "0\t3\t3\t0.9\t1\n", ["a.tsv:2", "5 columns, expected 6"]),
        (HEADER + ROWS.replace("0.953", "0,953"), ["a.tsv:2", "radius", "'0,953'"]),
        (HEADER + ROWS.replace("-1", "cat"), ["a.tsv:3", "predict", "'cat'", "whole number"]),
        (HEADER + ROWS.replace("100", "1" * 20), ["a.tsv:3", "idx"]),
        (HEADER + ROWS.replace("100", "٣"), ["a.tsv:3", "idx", "'٣'"]),
        (HEADER + ROWS.replace("0.953", "nan"), ["a.tsv:2", "radius nan", "audit"]),
        (HEADER + ROWS.replace("\t1\t", "\t2\t"), ["a.tsv:2", "correct 2", "audit"]),
        (HEADER + ROWS.replace("-1", "-2"), ["a.tsv:3", "predict -2"]),
        (HEADER, ["a.tsv", "no images"]),
        (HEADER + ROWS.replace("100", "0"), ["a.tsv:3", "idx 0 comes twice"]),
        (HEADER + ROWS.replace("14.9", "1\x004"), ["a.tsv:3", "time"]),
    ],
)
def test_anything_else_is_refused_with_its_place(path, text, words):
    path.write_text(text, newline="")
    with refused(DataError, *words):
        tables.read(path)
    with refused(DataError, "not UTF-8"):
        read(path, HEADER + "º", encoding="latin-1")


def test_our_certificates_become_the_fields_table(path):
    """The format is the documented one; radii are rounded down, and no time is invented."""
    tsv.write(certificates([0, 1, -1], [0.9528649, 0.5, 0.0]), path)

    assert path.read_bytes() == (
        HEADER + "0\t0\t0\t0.952864\t1\t\n1\t0\t1\t0.500000\t0\t\n2\t0\t-1\t0.000000\t0\t\n"
    ).encode("ascii")


# What people publish, as `rrcm audit`, `report` and `compare` read it.

OTHERS = {
    "a.tsv": lambda text: text,
    "a.csv": lambda text: text.replace("\t", ","),
    "b.txt": lambda text: text.replace("\t", ";"),
    "c.tsv": lambda text: text.replace("\t1\t0:", "\tTrue\t0:").replace("\t0\t0:", "\tFalse\t0:"),
    "d.tsv": lambda text: text.replace("100\t", "100.0\t").replace("\n0\t", "\n0.0\t"),
    "e.tsv": lambda text: text.replace("\t0.0\t", "\t-1\t"),
    "f.tsv": lambda text: text.replace("\tradius", "\tl2_radius"),
    "g.csv": lambda text: '"' + text.replace("\t", '","').replace("\n", '"\n"').rstrip('"'),
}


@pytest.mark.parametrize("name", OTHERS)
def test_every_form_that_people_publish_is_the_same_table(tmp_path, monkeypatch, name):
    (tmp_path / "plain").write_text(HEADER + ROWS)
    expected, raw = tables.read(tmp_path / "plain"), OTHERS[name](HEADER + ROWS).encode()
    path, packed = tmp_path / name, tmp_path / f"{name}.gz"
    path.write_bytes(raw)
    packed.write_bytes(gzip.compress(raw))

    for one in (path, packed, tables.STDIN):
        for read in (lambda p: commands.read(p).table, tables.read):
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw)))
            pd.testing.assert_frame_equal(read(one), expected)
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw)))
        assert audit(one).rows == 2 and audit(path).trusted is not False
    assert (
        commands.read(path).name
        == commands.read(packed).name
        == name.removesuffix(path.suffix) + (".txt" if path.suffix == ".txt" else "")
    )


def test_our_certificates_are_known_by_their_columns(tmp_path):
    made = certificates([0, 1, -1], [0.9528649, 0.5, 0.0])
    certify.write(made, tmp_path / "a.csv")
    packed, tabs = tmp_path / "a.csv.gz", tmp_path / "a.txt"
    packed.write_bytes(gzip.compress((tmp_path / "a.csv").read_bytes()))
    tabs.write_text((tmp_path / "a.csv").read_text().replace(",", "\t"))

    ends = [tmp_path / "crlf.csv", tmp_path / "cr.csv"]  # its last column is `stop`
    for path, end in zip(ends, (b"\r\n", b"\r"), strict=True):
        path.write_bytes((tmp_path / "a.csv").read_bytes().replace(b"\n", end))

    for path in (packed, tabs, *ends):
        assert tables.read(path).equals(certify.read(tmp_path / "a.csv"))
    for name in ("stop", "norm", "top"):
        part = certify.read(tmp_path / "a.csv").assign(norm="l1", top=3).drop(columns="p_A")
        part[["idx", "label", "predict", "radius", "correct", name]].to_csv(tmp_path / "b.csv")
        with refused(DataError, f"b.csv:1: column '{name}' is one of a table of rrcm", "n_A n p_A"):
            tables.read(tmp_path / "b.csv")
    damaged = tmp_path / "b.csv.gz"
    damaged.write_bytes(packed.read_bytes()[:-9])
    with refused(DataError, "b.csv.gz", "damaged gzip"):
        tables.read(damaged)


def test_a_run_that_is_there_twice_is_refused_also_without_numbers(path):
    rows = "".join(f"{i % 3}\t{i % 3}\t0.{i:02}\t1\t\n" for i in range(12))
    assert len(read(path, rows)) == 12

    with refused(DataError, "a.tsv:13: the rows from the first on, once more"):
        read(path, rows + rows)


def test_radii_of_another_norm_are_called_so_and_not_compared(tmp_path):
    """As adaptive smoothing publishes them, with a negative radius for an abstention."""
    path = tmp_path / "ars.txt"
    rows = "0 \t 3 \t 3 \t 0.00314 \t 0.75 \t 1 \t 9\n50 \t 9 \t -1 \t -0.0019 \t 0.3 \t 0 \t 9\n"
    path.write_text("idx \t label \t predict \t linf_radius \t prob_lb \t correct \t time\n" + rows)
    (tmp_path / "a.tsv").write_text(HEADER + ROWS)

    found, other = commands.read(path), commands.read(tmp_path / "a.tsv")

    assert found.table["radius"].tolist() == [0.00314, 0.0]
    assert found.method == "ars.txt (linf radii)"
    assert "of the norm linf" in str(audit(path)) and audit(path).trusted is None
    with refused(DataError, "linf radii", "l2 radii"):
        entries.require_alike([found, other])
