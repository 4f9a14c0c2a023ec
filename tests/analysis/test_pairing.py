"""Pairs are of the same pictures, and sentences say no more than the corrected tests allow."""

import dataclasses
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from builders import certificates, random_votes, refused
from report_entries import GRID, entry

from rrcm.analysis import pairing, report
from rrcm.analysis.entries import Entry
from rrcm.analysis.presentation import tables
from rrcm.certification import certify
from rrcm.certification.votes import records
from rrcm.cli.commands import tables as commands
from rrcm.cli.project import Project
from rrcm.core.errors import DataError

SHOWN = {"radii": [0.0, 0.25, 0.5], "confidence": 0.95}
RADII = [0.0, 0.5, 1.0, 2.0]
N = 200


def votes(name: str, **changes: object) -> Entry:
    """Votes of a network with the name of ``name``; all of them are right on the same images."""
    seed = int(changes.pop("drawn", 0))
    return entry(seed, name=name, method=name, **changes)


def with_header(of: Entry, **changes: object) -> Entry:
    head, rows = of.votes
    return dataclasses.replace(of, votes=(dataclasses.replace(head, **changes), rows))


def test_other_pictures_are_not_paired_and_unknown_ones_are_assumed_to_be_the_same(
    tmp_path, undrawn
):
    mine, same, others = (votes("a"), votes("b"), votes("c", pixels="2" * 64))

    assert [pairing.same_pictures(mine, one) for one in (same, others)] == [True, False]
    assert pairing.pairs([mine, same, others]) == [(mine, same)]
    (note,) = pairing.notes([mine, others])
    assert note == "a and c have other pictures, and are not compared in pairs."
    assert tables.comparisons([mine, others], **SHOWN).empty
    unknown = dataclasses.replace(others, votes=None)  # the certificates alone, as from a CSV file
    assert pairing.same_pictures(mine, unknown) is None and pairing.same_images(mine, unknown)
    assert pairing.assumed(mine, unknown)[0] == "pictures" and not pairing.assumed(mine, same)

    report.write([mine, unknown], tmp_path, subject="images", **SHOWN)

    page = (tmp_path / "index.html").read_text()
    assumed = "Not recorded of both, and so assumed to be the same in pairs: pictures"
    assert assumed in page[: page.index("<svg")] and "in at most 5 %" in page
    assert pd.read_csv(tmp_path / "comparisons.csv")["undecided"].dtype == bool


def test_a_digest_of_more_pictures_or_other_labels_decides_nothing():
    """It is of all shards and of the labels as they were, so that other ones may be the cause."""
    mine, others = votes("a"), votes("c", pixels="2" * 64)

    assert pairing.same_pictures(mine, with_header(others, shard="1/2")) is None
    assert pairing.same_pictures(mine, dataclasses.replace(others, relabelled=True)) is None
    assert pairing.same_pictures(mine, dataclasses.replace(votes("b"), relabelled=True))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"n0": 30}, "n₀ 20 and 30"),
        ({"noise": "sound", "slack": 1e-9}, "noise gaussian and sound"),
        ({"budget": 60.0}, "budget 60 s"),
        ({"stopping": GRID | {"beta": 0.01}}, "rule grid, "),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)
def test_settings_that_differ_are_named_and_nothing_is_concluded(changes, said):
    mine = votes("a")
    other = dataclasses.replace(with_header(mine, **changes), name="b", method="b")
    found = [mine, other]

    (differs,) = pairing.differing(*found).values()
    assert said in differs
    compared = tables.comparisons(found, **SHOWN).assign(undecided=False, p_holm=0.0)
    sentences = pairing.of_images(found, compared.assign(only_first=1), level=0.05)
    assert sentences == [
        f"σ = 0.5: a and b were certified with other settings ({differs}), which may be why they "
        "differ."
    ]


def test_the_alpha_of_a_rule_that_stops_nowhere_is_no_difference():
    never = [
        dataclasses.replace(
            votes("a"),
            votes=random_votes(0, images=15, n=500, n0=20, stop="none", stopping={}, alpha=alpha),
        )
        for alpha in (0.001, 0.01)
    ]
    assert not pairing.differing(*never)


def test_undecided_radii_count_for_nobody():
    found = [votes("a"), votes("b", drawn=1)]
    between = tables.comparisons(found, radii=[0.25, 0.3], confidence=0.95)

    assert between["undecided"].tolist() == [False, True]
    assert tables.comparison_table(found, between.assign(only_first=1))["r"].tolist() == ["0.25"]
    claimed = between.assign(only_first=9, only_second=0, difference=0.5, p_holm=0.0)
    sentence = "σ = 0.5: a certifies more images than b at r = 0.25."
    assert pairing.of_images(found, claimed, level=0.05) == [sentence]
    of_seeds = claimed.assign(sigma="0.5", first="a", second="b")
    assert pairing.of_seeds(of_seeds, level=0.05) == [sentence]


def reaching(name: str, shares: list[float], sigma: float = 0.5) -> Entry:
    """Right and certified at each radius of `RADII` for these shares of the images."""
    reached = np.array([0.0, *RADII])[
        np.sum([np.arange(N) < share * N for share in shares], axis=0)
    ]
    answered = np.where(np.arange(N) < shares[0] * N, 0, -1)
    table = certificates(answered.tolist(), reached.tolist())
    drawn = random_votes(0, images=1, n=500, n0=20, sigma=sigma, stop="none", stopping={})
    return Entry(
        name=name, model="m", method=name, sigma=sigma, table=table, alpha=0.001, votes=drawn
    )


def said(*found: Entry, level: float = 0.05) -> list[str]:
    compared = tables.comparisons([*found], radii=RADII, confidence=0.95)
    return pairing.of_images([*found], compared, level=level)


def test_a_sentence_names_the_better_the_radii_and_what_is_open():
    ours = reaching("ours", [0.9, 0.8, 0.01, 0.0])
    worse = reaching("worse", [0.9, 0.5, 0.0, 0.0])
    better = reaching("better", [0.99, 0.8, 0.0, 0.0])

    assert said(ours, worse, better) == [
        "σ = 0.5: ours certifies more images than worse at r = 0.5; these 200 images do not tell "
        "them apart at r = 1.",
        "σ = 0.5: better certifies more images than ours at r = 0; these 200 images do not tell "
        "them apart at r = 1.",
    ]
    open_ = ["σ = 0.5: these 200 images do not tell ours and worse apart at any radius."]
    assert said(ours, worse, level=1e-20) == open_
    assert said(ours) == [] == said(ours, reaching("far", [0.5, 0.1, 0.0, 0.0], sigma=1.0))
    assert said(reaching("a", [0.9, 0.2, 0.0, 0.0]), reaching("b", [0.7, 0.6, 0.0, 0.0])) == [
        "σ = 0.5: a certifies more images than b at r = 0, b certifies more images than a at "
        "r = 0.5."
    ]


def test_what_is_not_recorded_of_both_is_a_condition_and_no_line_of_a_report():
    """Certificates of the same votes by another theorem or alpha are not a better classifier."""
    worse, better = (
        reaching(name, [share, 0.3, 0.0, 0.0]) for name, share in (("worse", 0.5), ("better", 0.9))
    )
    assert "better certifies more" in said(worse, better)[0]
    unmarked = better.table.drop(columns="stop")
    unknown = dataclasses.replace(better, votes=None, alpha=None, table=unmarked)
    numbers = tables.comparison(worse, unknown, **SHOWN)

    assert said(worse, unknown) == said(dataclasses.replace(unknown, name="a"), unknown) == []
    sentence = pairing.conclusion(worse, unknown, numbers, labels=("A", "B"), level=0.05)
    assert sentence.startswith(
        "If both have the same pictures, α, n₀, n, rule, certificate, noise, and no drawing "
        "stopped early: B certifies more images than A at r = 0"
    )
    laxer = dataclasses.replace(unknown, alpha=0.05)  # what is known to differ is said
    assert "other settings (α 0.001 and 0.05)" in said(worse, laxer)[0]


def kept(folder, name: str, **changes: object) -> str:
    head, rows = random_votes(
        0, images=15, **({"n": 500, "n0": 20, "stop": "grid", "stopping": GRID} | changes)
    )
    records.write(folder / f"{name}.jsonl", head, rows)
    return str(folder / f"{name}.jsonl")


def compared(first: str, second: str, radii: str | None = None) -> list[str]:
    return commands.compare([first, second], Project(), radii=radii).splitlines()


def test_compare_refuses_other_pictures_and_names_other_settings(tmp_path):
    mine, others = kept(tmp_path, "a"), kept(tmp_path, "b", pixels="2" * 64)
    fewer = kept(tmp_path, "c", n=200)

    with refused(DataError, "not of the same images", "their pictures differ"):
        compared(mine, others)
    text = "\n".join(compared(mine, fewer))
    assert "A and B were certified with other settings (n 500 and 200)" in text
    assert "certifies more" not in text and "these 15 images do not tell" not in text
    condition = "If both have the same pictures, σ, α, n₀, n, rule, certificate, noise: "
    one, other = str(tmp_path / "one.csv"), str(tmp_path / "two.csv")
    for path, answers in ((one, [0] * 9), (other, [-1] * 9)):
        certify.write(certificates(answers, [0.0] * 9), Path(path))
    (last,) = (line for line in compared(one, other, "0") if line.startswith("If both"))
    assert last == f"{condition}A certifies more images than B at r = 0."
    same = compared(mine, mine, "0.25,0.3")
    assert same[0].startswith("A: ") and "no image differs at r = 0.25" in same
    assert any("At r = 0.3 drawing stopped before every image" in line for line in same)


def test_what_is_undecided_is_counted_and_never_called_equal(tmp_path):
    """Of certificates alone no radius is decided where any drawing stopped early."""
    answers = {"a": [0, 0, 0, 1, -1, 0], "b": [0, -1, 0, -1, 1, 0]}
    radii = {"a": [0.5, 0.5, 0.2, 0.5, 0.0, 0.5], "b": [0.5, 0.0, 0.5, 0.0, 0.1, 0.2]}
    stops = ["grid"] * 5 + ["n"]  # of the last all was drawn; an answer of 1 is wrong
    for name, predict in answers.items():
        table = certificates(predict, radii[name]).assign(stop=stops)
        certify.write(table, tmp_path / f"{name}.csv")
    one, other = (str(tmp_path / f"{name}.csv") for name in answers)

    lines = [" ".join(line.split()) for line in compared(one, other, "0.25")]
    same = "\n".join(compared(one, one, "0.25"))

    assert lines[lines.index("r both only A only B neither undecided") + 1] == "0.25 1 2 1 2 4"
    assert "6 images; the same answer on 50.0 %, by the draws that were made" in lines
    assert "At r = 0.25 drawing stopped before every image was decided" in same
    assert "differs" not in same and "no radius" not in same and "apart at" not in same


def test_radii_that_are_undecided_are_not_among_those_that_show_no_difference():
    found = [votes("a"), votes("b", drawn=1)]
    numbers = tables.comparison(*found, radii=[0.25, 0.3], confidence=0.95).assign(p_holm=1.0)

    assert pairing.conclusion(*found, numbers, labels=("A", "B"), level=0.05) == (
        "these 15 images do not tell A and B apart at r = 0.25."
    )


def test_a_table_of_more_images_is_compared_on_those_of_the_other(tmp_path):
    """A published log of 10,000 images beside 500 of them; nothing else about the tests changes."""
    rng = np.random.default_rng(0)
    table, other = (certificates(rng.integers(2, size=40), rng.random(40)) for _ in range(2))
    paths = [tmp_path / f"{name}.csv" for name in ("some", "all", "cut")]
    for path, rows in zip(paths, (table.iloc[::4], other, other.iloc[::4]), strict=True):
        certify.write(rows, path)
    some, whole, cut = map(str, paths)

    found, wanted = compared(some, whole), compared(some, cut)

    assert "B: 10 of its 40 images" in found
    assert [line for line in found if "B: " not in line] == [
        line for line in wanted if "B: " not in line
    ]
