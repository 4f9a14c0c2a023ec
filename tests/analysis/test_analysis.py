"""Results that are there are read whatever their kind; what may be concluded is said in words."""

import dataclasses

import numpy as np
import pandas as pd
import pytest
from audit_tables import sampled
from builders import certificates, random_votes, refused

from rrcm.analysis import entries
from rrcm.analysis.page import of_answers
from rrcm.auditing import audit
from rrcm.certification import certify, truncation, tsv
from rrcm.certification.answers import Answers
from rrcm.certification.votes import records
from rrcm.cli import requests
from rrcm.cli.commands import tables
from rrcm.cli.project import Project
from rrcm.core.errors import (
    CertificateError,
    ConfigError,
    DataError,
    RrcmError,
    VotesError,
)

GRID = {"radii": [0.0, 0.25, 0.5], "beta": 0.001}


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with votes, and certificates of them as CSV and in the field's table."""
    monkeypatch.chdir(tmp_path)
    drawn = random_votes(0, images=30, n=500, n0=20, stop="grid", stopping=GRID)
    records.write(tmp_path / "a.jsonl", *drawn)
    table = certify.certify(*drawn, certificates=["cohen"], alpha=0.001)
    certify.write(table, tmp_path / "a.csv")
    tsv.write(table, tmp_path / "a.tsv")
    records.write(tmp_path / "b.jsonl", *random_votes(1, images=30, n=500, n0=20))
    return tmp_path


def test_every_kind_of_file_holds_the_same_certificates_and_what_it_does_not_say_may_be_said(here):
    (here / "bare").write_bytes((here / "a.tsv").read_bytes())  # the field's files have no suffix

    found = [tables.read(here / name) for name in ("a.jsonl", "a.csv", "a.tsv", "bare")]

    known = ["idx", "label", "predict", "radius", "correct"]
    for entry in found:
        pd.testing.assert_frame_equal(entry.table[known], found[0].table[known])
    assert [entry.sigma for entry in found] == [0.5, None, None, None]
    assert [entry.alpha for entry in found] == [0.001, None, None, None]
    assert [entry.name for entry in found] == ["a", "a", "a", "bare"]
    assert found[0].votes and not found[1].votes
    told, laxer = (tables.read(here / name, alpha=0.01, sigma=0.5) for name in ("a.tsv", "a.jsonl"))
    assert [(one.alpha, one.sigma) for one in (told, laxer)] == [(0.01, 0.5)] * 2
    assert laxer.table["radius"].sum() > found[0].table["radius"].sum()


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("a.jsonl", {"sigma": 0.25}, "votes are of sigma = 0.5, not of 0.25"),
        ("none.csv", {"sigma": 0.25}, "radii are of sigma = 0.5, not of 0.25"),
        ("spending.csv", {"alpha": 1e-5}, "above that of unanimous votes at alpha = 1e-05"),
        ("none.csv", {"alpha": 1e-4}, "bounds are at alpha = 0.001, not at 0.0001"),
        ("none.csv", {"alpha": 0.01}, "bounds are at alpha = 0.001, less than the 0.01"),
        ("none.tsv", {"sigma": 0.25}, "the radii are of sigma = 0.5, not of 0.25"),
    ],
)
def test_options_that_a_file_contradicts_are_refused(here, name, value, said):
    for rule in ("none", "spending"):
        drawn = sampled(rule, images=200)
        found = certify.certify(*drawn, certificates=["cohen"], alpha=0.001)
        certify.write(found, here / f"{rule}.csv")
        tsv.write(found, here / f"{rule}.tsv")

    with refused(DataError, name, said, "leave the option out"):
        tables.report_files([here / name], out=None, **{"alpha": None, "sigma": None} | value)
    tables.read(here / name, alpha=0.001, sigma=0.5)


def test_votes_are_known_by_their_suffix_and_are_no_table(here):
    for name, other, error in [("x.jsonl", "a.csv", VotesError), ("x.tsv", "a.jsonl", DataError)]:
        (here / name).write_bytes((here / other).read_bytes())
        with refused(error, name):
            tables.read(here / name)


def test_derived_certificates_are_those_of_the_votes(here):
    """Without options they are the certificates themselves."""
    said = tables.derive(
        here / "a.jsonl", n=200, alpha=0.01, certificates=["two_class", "cohen"], out=None
    )

    cut = truncation.truncate(*records.read(here / "a.jsonl"), 200)
    digest = records.digest(cut[0])[:8]  # votes elsewhere, of the same name, have another
    path = here / f"results/a-{digest}-n200-two_class-cohen-a0.01.csv"
    certify.write(
        certify.certify(*cut, certificates=["two_class", "cohen"], alpha=0.01), here / "want.csv"
    )
    assert path.read_bytes() == (here / "want.csv").read_bytes()
    assert "n = 200, alpha = 0.01, certificate two_class, cohen" in said
    assert "laid out for cohen at alpha = 0.001" in said
    assert "certify at --alpha 0.01 / m" in said  # n was chosen
    assert "r = 0.25" in said and str(path.relative_to(here)) in said

    plain = {"n": None, "alpha": None, "certificates": ["cohen"]}
    for out in (here / "new/again.csv", here / "again.tsv"):
        said = tables.derive(here / "a.jsonl", **plain, out=out)
        warning = f"warning: {out} has no ≥, a TSV does not say that drawing stopped early"
        assert (warning in said) == (out.suffix == ".tsv")

    assert (here / "new/again.csv").read_bytes() == (here / "a.csv").read_bytes()
    assert (here / "again.tsv").read_bytes() == (here / "a.tsv").read_bytes()


def test_top_k_certificates_make_tables_of_their_own(here):
    """In CSV, report, comparison and audit."""
    plain = {"n": None, "alpha": None, "certificates": []}
    said = tables.derive(here / "a.jsonl", **plain, out=None, top=2, values=64)

    entry = entries.from_votes("a", *records.read(here / "a.jsonl"), top=2)
    (path,) = (here / "results").glob("a-*-n500-top2-a0.001.csv")
    assert certify.read(path)["top"].unique().tolist() == [2] and entry.certificate == "top 2"
    assert entry.table["correct"].sum() >= tables.read(here / "a.jsonl").table["correct"].sum()
    assert "certified top-2 accuracy, %" in said and "certificate top2" in said
    assert "ℓ∞, as a consequence of ℓ₂: r is r/√64" in said and "0.25 is 0.03125 (7)" in said

    answers = Answers(*records.read(here / "a.jsonl"))
    pd.testing.assert_frame_equal(answers.to_pandas(top=2), entry.table)
    assert "certified top-2 accuracy" in repr(of_answers(answers, top=2))
    shown = tables.report_files([path], out=here / "page", alpha=None, sigma=None)
    page = (here / "page/index.html").read_text()
    assert "certified top-2 accuracy" in shown and "<h1>Certified top-2 accuracy</h1>" in page
    assert "one of the 2 most probable" in page and "ℓ∞" not in page
    third = here / "third.csv"
    certify.write(entry.table.assign(radius=entry.table["radius"] / 2), third)
    compared = tables.compare([str(path), str(third)], Project(), radii="0.25")
    assert f"A: {path} (top 2)" in compared

    for other, words in ((here / "a.csv", "of one class"), (here / "b.jsonl", "of one class")):
        for made in (
            lambda other: tables.report_files([path, other], out=None, alpha=None, sigma=None),
            lambda other: tables.compare([str(path), str(other)], Project(), radii=None),
        ):
            with refused(DataError, "has radii of top 2", words, "report them apart"):
                made(other)
    audited = audit.audit(path)
    assert audited.trusted is None and "audit the votes" in audited.verdict
    for changes, words in (
        ({"top": 3}, "top 3: of 3 classes"),
        ({"top": 0}, "--top: must be 1 or more"),
        ({"top": 1, "certificates": ["cohen"]}, "leave --certificate out"),
        ({"top": 1, "out": here / "top.tsv"}, "write a .csv"),
        ({"values": 0}, "--linf: the values of an image"),
    ):
        with refused(RrcmError, words):
            tables.derive(here / "a.jsonl", **plain | {"out": here / "out.csv"} | changes)
    assert not (here / "out.csv").exists() and not (here / "top.tsv").exists()


def test_what_cannot_be_derived_is_refused_and_nothing_is_written(here):
    plain = {"n": None, "alpha": None, "certificates": ["cohen"]}
    for changes, error, said in (
        ({"n": 300}, VotesError, "the nearest is 315"),
        ({"alpha": 1.0}, ConfigError, "--alpha: must be in (0, 1)"),
        ({"alpha": 2.0**-600}, CertificateError, "can never certify"),
        ({"certificates": ["cohn"]}, ConfigError, "Did you mean 'cohen'?"),
    ):
        with refused(error, said):
            tables.derive(here / "a.jsonl", **plain | changes, out=here / "out.csv")
    assert not (here / "out.csv").exists()


def test_a_report_of_files_of_any_kind(here, undrawn):
    said = tables.report_files(
        [here / "a.jsonl", here / "b.jsonl"], out=None, alpha=None, sigma=None
    )
    page = here / "report-a/index.html"

    assert "the report: report-a/index.html" in said and page.exists()
    assert (here / "report-a/curves/b.csv").exists()
    assert len(pd.read_csv(here / "report-a/comparisons.csv")) == 3
    with refused(DataError, "two files of this name"):
        tables.report_files([here / "a.csv", here / "a.tsv"], out=None, alpha=None, sigma=None)
    for wrong in ({"alpha": 0.0, "sigma": None}, {"alpha": None, "sigma": -1.0}):
        with refused(ConfigError, "must"):
            tables.report_files([here / "a.csv"], out=None, **wrong)


def pair(here, only_first, only_second, both=20):
    """Files of two classifiers, of which each certifies images that the other does not."""
    predict = [0] * only_first + [1] * only_second + [0] * both
    other = [1] * only_first + [0] * only_second + [0] * both
    for name, answers in (("one", predict), ("two", other)):
        certify.write(certificates(answers, [0.6] * len(answers)), here / f"{name}.csv")
    return [str(here / f"{name}.csv") for name in ("one", "two")]


def test_radii_that_are_not_significant_together_are_not_called_so(here):
    """(20, 7) alone has p = .019; among three equal tests Holm makes it .06."""
    files = pair(here, 20, 7)

    alone = tables.compare(files, Project(), radii="0.5")
    assert "A certifies more" in alone and "not about how they were trained" in alone
    assert "A certifies more" not in tables.compare(files, Project(), radii="0.1,0.3,0.5")


def test_comparisons_need_the_same_images(here):
    first, _ = pair(here, 3, 3)
    certify.write(certificates([0] * 5, [0.1] * 5).assign(idx=range(900, 905)), here / "five.csv")

    with refused(DataError, "one.csv", "five.csv", "the same images"):
        tables.compare([first, str(here / "five.csv")], Project(), radii=None)
    named = certificates([0] * 5, [0.1] * 5)
    for name in ("cat", "dog"):
        certify.write(named.assign(file=[f"{name}/{i}.png" for i in range(5)]), here / name)
    with refused(DataError, "their names of files differ"):
        tables.compare([str(here / "cat"), str(here / "dog")], Project(), radii=None)
    with refused(DataError, "nowhere: no such file"):
        tables.compare([first, "nowhere"], Project(), radii=None)


def test_not_all_answers_are_the_same_if_one_differs(here):
    for name, last in (("one", 0), ("two", 1)):
        certify.write(certificates([0] * 2000 + [last], [0.1] * 2001), here / f"{name}.csv")
    one, two = (str(here / f"{name}.csv") for name in ("one", "two"))

    assert "the same answer on 99.9 %" in tables.compare([one, two], Project(), radii="0")
    assert "the same answer on 100.0 %" in tables.compare([one, one], Project(), radii="0")


def test_a_share_is_called_one_and_an_empty_share_is_refused(here):
    header, rows = random_votes(0, images=3)
    for i in (2, 4):
        part = dataclasses.replace(header, shard=f"{i}/4")
        records.write(here / f"{i}of4.jsonl", part, rows[i - 1 : i])
    how = {"alpha": None, "out": None}
    share, nothing, whole = here / "2of4.jsonl", here / "4of4.jsonl", here / "a.jsonl"

    report = tables.report_files([share], sigma=None, **how)
    derived = tables.derive(share, n=None, certificates=["cohen"], **how)

    words = "certified accuracy, share 2/4 of the images alone, %"
    assert report.startswith(words) and derived.startswith(words)
    assert "share 2/4 of the images alone" in (here / "report-2of4/index.html").read_text()
    assert "share" not in tables.derive(whole, n=None, certificates=["cohen"], **how)
    for empty in (
        lambda: tables.report_files([nothing], sigma=None, **how),
        lambda: tables.derive(nothing, n=None, certificates=["cohen"], **how),
    ):
        with refused(DataError, "4of4: no images; it is share 4/4 of 3"):
            empty()


def test_radii_are_numbers():
    for text in ("", "x", "0;1", "-1", "nan", "inf", "0,,1"):
        with refused(ConfigError, "--radii: expected radii such as 0,0.25,0.5", repr(text)):
            requests.parse_radii(text)
    assert requests.parse_radii("0.5, 0,1e-1,0.5") == [0.0, 0.1, 0.5]


def test_radii_that_nobody_chose_are_those_that_the_rule_settled(here):
    entry = tables.read(here / "a.jsonl")
    foreign = tables.read(here / "a.tsv")

    assert entries.default_radii([entry, foreign]) == GRID["radii"]
    largest = foreign.table["radius"].max()
    assert entries.default_radii([foreign]) == [r for r in entries.SERIES if r <= largest]
    nothing = certificates([-1], [0.0])
    certify.write(nothing, here / "nothing.csv")
    assert entries.default_radii([tables.read(here / "nothing.csv")]) == [0.0]
    assert np.isfinite(entries.SERIES).all()
