"""Files of every kind hold the same certificates, and say what they know."""

import pandas as pd
import pytest
from builders import random_votes, refused

from rrcm.analysis import sources
from rrcm.certification import certify, tsv
from rrcm.certification.votes import records
from rrcm.core.errors import DataError, VotesError


@pytest.fixture
def here(tmp_path):
    """A folder with votes, and certificates of them as CSV and in the field's table."""
    stopping = {"radii": [0.0, 0.25, 0.5], "beta": 0.001}
    drawn = random_votes(0, images=30, n=500, n0=20, stop="grid", stopping=stopping)
    records.write(tmp_path / "a.jsonl", *drawn)
    table = certify.certify(*drawn, certificates=["cohen"], alpha=0.001)
    certify.write(table, tmp_path / "a.csv")
    tsv.write(table, tmp_path / "a.tsv")
    return tmp_path


def test_every_kind_of_file_holds_the_same_certificates(here):
    (here / "bare").write_bytes((here / "a.tsv").read_bytes())  # the field's files have no suffix

    found = [sources.read(here / name) for name in ("a.jsonl", "a.csv", "a.tsv", "bare")]

    known = ["idx", "label", "predict", "radius", "correct"]
    for entry in found:
        pd.testing.assert_frame_equal(entry.table[known], found[0].table[known])
    assert [entry.sigma for entry in found] == [0.5, None, None, None]
    assert [entry.alpha for entry in found] == [0.001, None, None, None]
    assert [entry.name for entry in found] == ["a", "a", "a", "bare"]
    assert found[0].votes and not found[1].votes


def test_what_a_file_does_not_say_may_be_said(here):
    told = sources.read(here / "a.tsv", alpha=0.01, sigma=0.25)
    known = sources.read(here / "a.jsonl", alpha=0.01, sigma=0.25)

    assert (told.alpha, told.sigma) == (0.01, 0.25)
    assert (known.alpha, known.sigma) == (0.01, 0.5)  # votes know their sigma
    assert known.table["radius"].sum() > sources.read(here / "a.jsonl").table["radius"].sum()


def test_a_file_of_another_kind_than_its_suffix_is_refused(here):
    for name, other, error in [
        ("x.jsonl", "a.csv", VotesError),
        ("x.csv", "a.tsv", DataError),
        ("x.tsv", "a.jsonl", DataError),
    ]:
        (here / name).write_bytes((here / other).read_bytes())
        with refused(error, name):
            sources.read(here / name)
    for missing in ("no.jsonl", "no.csv", "no.tsv"):
        with refused((VotesError, DataError), missing, "not found"):
            sources.read(here / missing)
