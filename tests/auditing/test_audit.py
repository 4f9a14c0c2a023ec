"""The auditor finds planted faults, names their lines, and says nothing of honest tables."""

import dataclasses
import re

import numpy as np
import pandas as pd
import pytest
import typer.testing
from audit_tables import RULES, alarms, sampled, table
from builders import refused, row
from scipy.special import ndtri

from benchmarks.audit import FAULTS, simulate
from benchmarks.odd_sigma import outcomes
from rrcm.auditing import ladder
from rrcm.auditing.audit import audit
from rrcm.auditing.recount import common
from rrcm.certification import certify, tsv
from rrcm.certification.votes import records
from rrcm.certification.votes.bounds import complement
from rrcm.cli import main as cli
from rrcm.core.errors import CertificateError


def examine(folder, found, kind="csv", **stated):
    """Write a table and audit it."""
    path = folder / f"table.{kind}"
    (certify if kind == "csv" else tsv).write(found, path)
    return audit(path, **stated)


def judged(folder, definition, rows, **stated):
    """Write votes and audit them."""
    records.write(folder / "a.jsonl", definition, rows)
    return audit(folder / "a.jsonl", **stated)


def with_one(found, column, line, value):
    """The same with another value at a line of its file."""
    cells = found[column].tolist()
    cells[line - 2] = value
    return found.assign(**{column: cells})


# Honest tables.


@pytest.mark.parametrize("n", [100, 10_000, 100_000])  # others are of 1,000
@pytest.mark.parametrize("digits", [6, 3])
@pytest.mark.parametrize("kind", ["csv", "tsv"])
def test_a_clean_table_raises_no_alarm_and_tells_how_it_was_made(tmp_path, n, kind, digits):
    result = examine(tmp_path, table(n, digits=digits), kind)

    assert alarms(result) == []
    assert result.trusted and result.verdict == "can be trusted as far as a table shows"
    assert [(one.n, one.alpha, one.sigma) for one in result.inferred] == [(n, 0.001, 0.5)]


@pytest.mark.parametrize("digits", [3, 5])
def test_radii_that_were_rounded_again_accuse_nothing_else(tmp_path, digits):
    """To the nearest of fewer decimals than `certify` writes: alpha and sigma are still told."""
    found = table()
    found = found.assign(radius=found["radius"].round(digits))

    result = examine(tmp_path, found, n=1_000, alpha=0.001, sigma=0.5)

    texts = [text for _, _, text in alarms(result)]
    assert texts[0] == "radii were rounded to the nearest, beyond the certified ones"
    assert all("above that of unanimous votes" in text for text in texts[1:])  # these are, too
    assert [(one.n, one.alpha, one.sigma) for one in result.inferred] == [(1_000, 0.001, 0.5)]


@pytest.mark.parametrize("rule", RULES)
def test_no_stopping_rule_raises_an_alarm(tmp_path, rule):
    """Bounds of rules that stop early are on no ladder of n draws: that is no fault."""
    definition, rows = sampled(rule)
    records.write(tmp_path / "a.jsonl", definition, rows)
    found = certify.certify(definition, rows, certificates=["cohen", "two_class"], alpha=0.001)
    certify.write(found, tmp_path / "a.csv")
    tsv.write(found, tmp_path / "a.tsv")
    stated = {"n": 1_000, "alpha": 0.001, "sigma": 0.5}

    results = [audit(tmp_path / f"a.{kind}", **stated) for kind in ("jsonl", "csv", "tsv")]

    assert [alarms(result) for result in results] == [[], [], []]
    assert [result.trusted for result in results[:2]] == [True, True]


@pytest.mark.parametrize("rule", ["none", "grid", "anytime"])
def test_another_certificate_raises_no_alarm(tmp_path, rule):
    definition, rows = sampled(rule, images=200)
    found = certify.certify(definition, rows, certificates=["two_class"], alpha=0.001)

    assert alarms(examine(tmp_path, found)) == []
    halved = examine(tmp_path, found, alpha=0.0005)  # two_class halves alpha, and grid once more
    assert halved.trusted is False and "as stated" in halved.verdict


@pytest.mark.parametrize("sigma", [0.5, 1 / 3])
def test_votes_of_two_classes_that_are_all_divided_are_recounted(tmp_path, sigma):
    """No radius is then a share of Phi^-1(p_A), and p_A may be below a half."""
    definition, rows = sampled("none", images=200, sure=0.0, sigma=sigma)
    found = certify.certify(definition, rows, certificates=["two_class"], alpha=0.001)
    assert ((found["radius"] > 0) & (found["p_A"] < 0.5)).any()

    result = examine(tmp_path, found)
    assert alarms(result) == [] and result.trusted is (True if sigma == 0.5 else None)
    assert result.inferred[0].alpha == pytest.approx(0.001)
    assert result.inferred[0].sigma == pytest.approx(sigma, rel=1e-3)
    assert "sigma is between" not in str(result)  # it is said to four digits
    stated = examine(tmp_path, found, sigma=2 * sigma)
    assert stated.trusted is False and "as stated" in stated.verdict

    line = int(np.flatnonzero(found["radius"] > 0.2)[3]) + 2
    by = 1e-4 if sigma == 0.5 else 0.5
    raised = with_one(found, "radius", line, found["radius"][line - 2] + by)
    assert [lines for _, lines, _ in alarms(examine(tmp_path, raised))] == [(line,)]


@pytest.mark.parametrize("sigma", [12 / 255, 20 / 3072**0.5])
@pytest.mark.parametrize(("kind", "digits"), [("csv", 6), ("tsv", 6), ("tsv", 4)])
def test_a_clean_table_of_any_sigma_raises_no_alarm_though_it_is_stated_to_six_digits(
    tmp_path, sigma, kind, digits
):
    found = table(10_000, sigma=sigma, digits=digits)
    stated = {"n": 10_000, "alpha": 0.001, "sigma": float(f"{sigma:.6g}")}

    plain, full = examine(tmp_path, found, kind), examine(tmp_path, found, kind, **stated)
    assert full.trusted and plain.trusted is None and "sigma is unusual" in plain.verdict
    for result in (plain, full):
        assert alarms(result) == []
        assert result.inferred[0].sigma == pytest.approx(sigma, rel=1e-3)
    for other in ({"sigma": 1.01 * stated["sigma"]}, {"n": 10}):  # 10 draws give hardly a radius
        assert "as stated" in examine(tmp_path, found, kind, **other).verdict


def test_tables_of_any_sigma_are_clean_in_all_formats():
    """The last five once raised an alarm: a usual sigma beside the stated one was preferred; sigma
    was at the end of its stated digits, or not their middle, or near a usual one whose radii were
    rounded up; a warning had two texts.
    """
    turns = [
        *((0, turn) for turn in range(20)),
        (0, 7019),
        (1, 3867),
        (1, 4258),
        (1, 6203),
        (1, 9449),
    ]
    happened = [one for seed, turn in turns for one in outcomes(seed, turn, faulty=0)]

    rows = {row for row, _ in happened}
    assert any(row.startswith("inferred right") for row in rows)
    assert not any(row.startswith(("false alarms", "inferred wrong")) for row in rows)


def test_votes_of_a_sigma_that_was_stated_to_six_digits_are_trusted(tmp_path):
    definition, rows = sampled("none", images=10, sigma=1 / 3)

    assert judged(tmp_path, definition, rows, sigma=0.333333).trusted
    assert not judged(tmp_path, definition, rows, sigma=0.333331).trusted


# Planted faults.


@pytest.mark.parametrize(("kind", "sigma"), [("csv", 0.5), ("tsv", 0.5), ("tsv", 1 / 3)])
def test_the_line_of_a_radius_that_was_rounded_up_is_named(tmp_path, kind, sigma):
    found = table(sigma=sigma)
    line = int(np.flatnonzero(found["radius"] > 0)[7]) + 2
    up = with_one(found, "radius", line, round(found["radius"][line - 2] + 1e-6, 6))

    assert [lines for _, lines, _ in alarms(examine(tmp_path, up, kind))] == [(line,)]


def test_larger_radii_are_of_two_classes_only_as_far_as_votes_allow(tmp_path):
    """Unanimous votes leave the runner-up none, and its bound is then no better than p_A's."""
    found, rng = table(), np.random.default_rng(0)
    large = found["radius"] > found["radius"].quantile(0.7)
    raised = (found["radius"] + large * rng.uniform(0.03, 0.07, len(found))).round(6)

    result = examine(tmp_path, found.assign(radius=raised))

    assert result.trusted is False and "sigma * Phi^-1(p_A)" in result.verdict


@pytest.mark.parametrize("kind", ["csv", "tsv"])
@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault != "none"])
def test_every_fault_is_found_where_rungs_are_wide(tmp_path, kind, fault):
    planted = FAULTS[fault](table(), table(sigma=1.0), np.full(200, 1e-6), np.random.default_rng(1))
    stated = {"alpha": 0.0005} if fault == "another alpha stated" else {}

    result = examine(tmp_path, planted, kind, **stated)

    assert alarms(result)
    assert (result.trusted is False) == (fault != "three images missing")


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("radius", -0.25, "negative"),
        ("radius", np.inf, "not a finite"),
        ("radius", 9.0, "above"),
        ("n_A", 2_000, "are not votes"),
        ("n", 500, "mixed n"),
        ("p_A", 0.999999, "above the share"),
        ("p_A", 0.6, "is not the bound"),
        ("label", -2, "label is no class"),
        ("predict", -7, "prediction is no class"),
        ("predict", -1, "an abstention has a radius"),
    ],
)
def test_a_number_that_cannot_be_is_found_in_our_table(tmp_path, column, value, words):
    found = table()
    certain = np.flatnonzero(found["radius"] > 0)
    line = int(next(i for i in certain if 0.6 < found["p_A"][i] < 0.9)) + 2

    result = examine(tmp_path, with_one(found, column, line, value))

    assert any(words in text and line in lines for _, lines, text in alarms(result)), str(result)
    assert result.trusted is False


def test_images_without_a_label_beside_others_are_no_errors_of_the_classifier(tmp_path):
    found = table()
    unlabelled = found.assign(label=-1, correct=0)

    some = examine(tmp_path, pd.concat([found[:3], unlabelled[3:]]))
    none = examine(tmp_path, unlabelled)

    text = (
        f"{len(found) - 3:,} of {len(found):,} images have no label: an accuracy is of the others"
    )
    assert [f.level for f in some.findings if text in f.text] == ["warning"]
    without = "no image has a label: the table says nothing about accuracy"
    assert [f.text for f in none.findings if "label" in f.text] == [without]


def test_a_running_total_is_called_one(tmp_path):
    """`correct` as the certifier of Carlini et al. (2022) writes it; other numbers are just odd."""
    found = table()
    total, odd = found["correct"].cumsum(), 3 * found["correct"]

    results = [examine(tmp_path, found.assign(correct=column)) for column in (total, odd)]

    assert "running total" in results[0].verdict and "neither 0 nor 1" in results[1].verdict


def test_radii_of_three_significant_digits_are_known_to_be_rounded_to_the_nearest(tmp_path):
    """As Python's {:.3} does it, which most published tables were written with."""
    path = tmp_path / "a.tsv"
    exact = simulate(np.random.default_rng(0), n=1_000, alpha=0.001, sigma=0.5, images=200)
    text = exact.assign(radius=[f"{r:.3}" for r in exact["radius"]], time="0:00:01")
    text[list(tsv.COLUMNS)].to_csv(path, sep="\t", index=False)

    result = audit(path)

    assert [level for level, _, _ in alarms(result)] == ["warning"]
    assert "half exceed the certified ones, by up to 0.005" in result.findings[0].text


@pytest.mark.parametrize(
    ("stated", "words"),
    [
        ({"n": 2_000}, "n = 1000, not of 2000"),
        ({"alpha": 0.0001}, "alpha = 0.001, not of 0.0001"),
        ({"sigma": 0.25}, "sigma = 0.5, not of 0.25"),
    ],
)
def test_what_was_stated_otherwise_is_found(tmp_path, stated, words):
    result = examine(tmp_path, table(), "tsv", **stated)

    assert words in result.verdict
    assert examine(tmp_path, table(), "csv", **stated).trusted is False
    assert examine(tmp_path, table(), "csv", n=1_000, alpha=0.001, sigma=0.5).trusted


def stopped(rule, certificates=("cohen",)):
    definition, rows = sampled(rule)
    return certify.certify(definition, rows, certificates=[*certificates], alpha=0.001)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("share", "radius"), [(100, 5.0), (3, 99.0), (1, 5.0)])
def test_no_radius_above_that_of_unanimous_votes_passes(tmp_path, rule, share, radius):
    """Whatever the rule, the certificate, the level and the share of such rows."""
    found = stopped(rule)
    wrong = (found["radius"] > 0) & (np.arange(len(found)) % share == 0)
    high = found.assign(radius=found["radius"].mask(wrong, radius))

    for stated in ({"n": 1_000, "alpha": 0.001, "sigma": 0.5}, {"sigma": 0.5}, {}):
        result = examine(tmp_path, high, **stated)
        assert result.trusted is False, str(result)


def test_votes_that_an_editor_made_unanimous_are_not_those_of_the_bounds(tmp_path):
    """Bounds that are far below them are of an alpha that may be 0."""
    found = stopped("none")

    result = examine(tmp_path, found.assign(n_A=found["n"]))

    assert result.trusted is False and "p_A is no Clopper–Pearson bound" in str(result)


@pytest.mark.parametrize("rule", ["none", "grid", "anytime", "spending"])
def test_a_bound_that_no_votes_give_is_found_whatever_its_radius(tmp_path, rule):
    """Unanimous votes bound p by alpha^(1/n) at most; one certificate beside another, too."""
    found = stopped(rule, ["cohen", "two_class"] if rule != "spending" else ["cohen"])
    line = int(np.flatnonzero(found["n_A"] == found["n"])[0]) + 2
    high = with_one(with_one(found, "p_A", line, 0.999999), "radius", line, 2.376711)
    draws, stated = int(found["n"][line - 2]), {"alpha": 0.001, "sigma": 0.5}
    largest = -0.5 * ndtri(complement(draws, draws, 0.001))

    for values in (stated, {}):
        assert line in error_lines(examine(tmp_path, high, **values))
    for times, wrong in ((1.0001, [line]), (0.9999, [])):
        of_two = np.where(found.index == line - 2, times * largest, 0.0)
        beside = found.assign(predict_two_class=found["predict"], radius_two_class=of_two)
        assert error_lines(examine(tmp_path, beside, **stated)) == wrong


def test_an_unusual_alpha_that_nobody_stated_is_named(tmp_path):
    """A p_A of unanimous votes that only holds at alpha = 0.2."""
    found = stopped("spending")
    line = int(np.flatnonzero(found["n_A"] == found["n"])[0]) + 2
    p = 0.2 ** (1 / found["n"][line - 2])
    lax = with_one(with_one(found, "p_A", line, p), "radius", line, 0.5 * ndtri(p) - 1e-6)

    result = examine(tmp_path, lax)

    assert result.trusted is None and alarms(result) == []
    assert result.verdict.startswith("cannot be checked: it needs alpha = 0.2 or more")
    assert examine(tmp_path, lax, alpha=0.2).trusted
    assert line in error_lines(examine(tmp_path, lax, alpha=0.1))


def error_lines(result):
    return [line for level, lines, _ in alarms(result) if level == "error" for line in lines]


def test_abstentions_among_the_labels_are_called_swapped(tmp_path):
    found = table()
    swapped = found.rename(columns={"label": "predict", "predict": "label"})

    for kind in ("csv", "tsv"):
        assert "`label` and `predict` swapped" in examine(tmp_path, swapped, kind).verdict


def test_a_missing_header_and_a_table_that_does_not_tell(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("3\t3\t0.953\t1\t15.2\n4\t-1\t0.0\t0\t14.9\n")

    result = audit(path)

    assert result.trusted is None and result.verdict.startswith("cannot be checked")
    assert any("no header" in text for _, _, text in alarms(result))


# Votes.


def test_stopping_when_it_looked_good_is_found(tmp_path):
    definition, rows = sampled("none", images=10)
    early = [dataclasses.replace(rows[3], looks=rows[3].looks[:4]), *rows[4:]]

    result = judged(tmp_path, definition, [*rows[:3], *early])

    assert [lines for _, lines, _ in alarms(result)] == [(5,)]


def test_going_on_where_the_rule_gives_up_is_found(tmp_path):
    """30 hits in 100 draws are futile; whoever draws on until it looks better has no guarantee."""
    definition, _ = sampled("grid", images=0)
    looks = [[draws - 70, 70, 0, 0] for draws in definition.rule().looks]
    one = row(0, 0, [100, 0, 0, 0], *looks)

    result = judged(tmp_path, dataclasses.replace(definition, images=1), [one])

    assert [lines for _, lines, _ in alarms(result)] == [(2,)]


def test_selecting_and_certifying_with_the_same_votes_is_found(tmp_path):
    definition, rows = sampled("none", images=20)
    consistent = []
    for one in rows:
        looks = [(100, one.n0)]
        votes_ = dict(one.n0)
        top = max(votes_, key=votes_.get)
        for draws, _ in one.looks[1:]:
            votes_ = votes_ | {top: votes_[top] + draws - looks[-1][0]}
            looks.append((draws, votes_))
        consistent.append(dataclasses.replace(one, looks=looks))

    result = judged(tmp_path, definition, consistent)

    assert any("chose the class" in text for _, _, text in alarms(result))


@pytest.mark.parametrize(
    ("changes", "level", "words"),
    [
        ({"alpha": 1e-40, "n": 100}, "error", "never certify"),
        ({"slack": 0.01}, "error", "is spent"),
        ({"slack": 1e-9}, "note", "of alpha"),
        ({"shard": "1/1", "budget": 5.0}, "note", "after 5 seconds"),
        ({"precision": "int8"}, "note", "int8"),
        ({"subset": "first:10"}, "note", "first:10"),
        ({"split": "choice"}, "note", "on which recipes are compared"),
    ],
)
def test_a_header_admits_what_matters(tmp_path, changes, level, words):
    definition, rows = sampled("none", n=changes.get("n", 1_000), images=10)

    result = judged(tmp_path, dataclasses.replace(definition, **changes), rows)

    assert any(one.level == level and words in one.text for one in result.findings), str(result)


def test_votes_of_other_values_than_stated_are_found(tmp_path):
    votes, stopped = sampled("none", images=10), sampled("grid", images=10)

    assert judged(tmp_path, *votes, n=1_000, alpha=0.001, sigma=0.5).trusted
    assert judged(tmp_path, *votes, n=10_000).trusted is False
    assert judged(tmp_path, *votes, alpha=1e-5).trusted  # all draws were made, whatever alpha
    assert judged(tmp_path, *stopped, alpha=1e-5).trusted is False


def test_a_table_whose_images_all_stopped_before_n_is_no_fault(tmp_path):
    """More draws than stated are, and fewer where nothing stops drawing."""
    definition, rows = sampled("grid", n=100_000, images=60)
    short = [row for row in rows if row.looks[-1][0] < 50_000]
    found = certify.certify(definition, short, certificates=["cohen"], alpha=0.001)
    n = int(found["n"].max())

    stopped = examine(tmp_path, found, n=100_000, alpha=0.001, sigma=0.5)

    assert len(short) > 30 and stopped.trusted
    said = f"up to {n:,} draws were made of the 100,000"
    assert any(said in one.text for one in stopped.findings)
    assert f"n = {n:,} (the most that was drawn)" in str(stopped)
    text = "the table does not tell whether alpha is 0.01 as stated"
    assert text in str(examine(tmp_path, found, alpha=0.01)) and text not in str(stopped)
    assert not examine(tmp_path, found, n=n // 2).trusted
    assert not examine(tmp_path, table(), n=10_000).trusted


# What is around it.


def test_what_nothing_can_be_made_with_is_refused(tmp_path):
    for stated in ({"n": 0}, {"alpha": 1.0}, {"sigma": -1.0}, {"sigma": np.inf}):
        with refused(CertificateError, "got"):
            audit(tmp_path / "none.tsv", **stated)


def test_the_command_prints_what_was_found_in_each_file_and_exits_1_if_one_is_bad(tmp_path):
    """One that cannot be read does not hide the others."""
    names = ("good.csv", "none.tsv", "broken.jsonl", "bad.csv")
    good, none, broken, bad = (tmp_path / name for name in names)
    certify.write(table(), good)
    certify.write(FAULTS["an image twice"](table(), None, 0, np.random.default_rng(0)), bad)
    broken.write_text("{}\n")

    def run(*words):
        return typer.testing.CliRunner().invoke(cli.app, ["audit", *map(str, words)])

    one, every, senseless = run(good), run(good, none, broken, bad), run(good, "--n", 0)

    assert one.exit_code == 0 and "n = 1,000, alpha = 0.001, sigma = 0.5" in one.output
    assert every.exit_code == 1 and every.output.count("verdict: can be trusted") == 1
    assert "an image comes more than once" in every.output
    assert re.search(r"error: lines \d+, 202: ", every.output)
    assert f"error: {none}: not found" in every.output and f"error: {broken}:1" in every.output
    assert isinstance(senseless.exception, CertificateError) and not senseless.output


def test_a_short_decimal_in_most_intervals_is_no_reason_to_distrust_the_others():
    """Unless it is so near to what all have in common that one of them must be wrong."""
    low, high = np.full(200, 0.333), np.full(200, 0.3336)
    low[0] = 0.33325
    near, far = np.full(200, 0.499), np.full(200, 0.501)
    near[0] = 0.5 + 1e-7

    _, _, inside = common(low, high)

    assert inside.all()
    assert common(near, far)[0] == 0.5


def test_ten_thousand_rows_are_quick(tmp_path, monkeypatch):
    """Work does not grow with the rows but for looking each radius up: no list of rungs is made."""
    evaluated = []
    rung = ladder.rung
    monkeypatch.setattr(ladder, "rung", lambda k, *a: evaluated.append(np.size(k)) or rung(k, *a))

    assert examine(tmp_path, table(100_000, images=10_000), "tsv").trusted
    assert sum(evaluated) < 1_000_000
