"""Pairs are of the same pictures, and what settings may be the cause of is no one's merit."""

import dataclasses

import pandas as pd
import pytest
from builders import random_votes, refused
from report_entries import GRID, entry

from rrcm.analysis import conclusions, pairing, report, sources
from rrcm.analysis.entries import Entry
from rrcm.analysis.presentation import tables
from rrcm.certification import certify
from rrcm.certification.votes import records
from rrcm.cli.commands import tables as commands
from rrcm.cli.project import Files
from rrcm.core.errors import DataError

SHOWN = {"radii": [0.0, 0.25, 0.5], "confidence": 0.95}


def votes(name: str, **changes: object) -> Entry:
    """Votes of a network with the name of ``name``; all of them are right on the same images."""
    seed = int(changes.pop("drawn", 0))
    return entry(seed, name=name, method=name, **changes)


def bare(of: Entry) -> Entry:
    """The certificates alone, as from a CSV file."""
    return dataclasses.replace(of, votes=None)


def test_other_pictures_are_not_paired_and_unknown_ones_are_assumed_to_be_the_same():
    mine, same, others = (votes("a"), votes("b"), votes("c", pixels="2" * 64))

    assert [pairing.same_pictures(mine, one) for one in (same, others)] == [True, False]
    assert pairing.same_images(mine, same) and not pairing.same_images(mine, others)
    assert pairing.pairs([mine, same, others]) == [(mine, same)]
    (note,) = pairing.notes([mine, others])
    assert note == "a and c have other pictures, and are not compared in pairs."
    unknown = bare(others)
    assert pairing.same_pictures(mine, unknown) is None and pairing.same_images(mine, unknown)
    assert pairing.assumed(mine, unknown)[0] == "pictures" and not pairing.assumed(mine, same)
    (note,) = pairing.notes([mine, unknown])
    assert note.startswith("Not recorded of both, and so assumed to be the same in pairs: pictures")
    assert tables.comparisons([mine, others], **SHOWN).empty


@pytest.mark.parametrize("shard", ["1/2", "2/2"])
def test_a_digest_of_more_pictures_or_other_labels_decides_nothing(shard):
    """It is of all shards and of the labels as they were, so that other ones may be the cause."""
    mine, others = votes("a"), votes("c", pixels="2" * 64)
    head, rows = others.votes
    part = dataclasses.replace(others, votes=(dataclasses.replace(head, shard=shard), rows))

    assert pairing.same_pictures(mine, part) is None
    assert pairing.same_pictures(mine, dataclasses.replace(others, relabelled=True)) is None
    assert pairing.same_pictures(mine, dataclasses.replace(votes("b"), relabelled=True))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"n0": 30}, "n₀ 20 and 30"),
        ({"alpha": 0.01}, "rule grid, "),
        ({"noise": "sound", "slack": 1e-9}, "noise gaussian and sound"),
        ({"budget": 60.0}, "budget 60 s"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_settings_that_differ_are_named_and_nothing_is_concluded(changes, said):
    mine = votes("a")
    head, rows = mine.votes
    other = dataclasses.replace(
        mine, name="b", method="b", votes=(dataclasses.replace(head, **changes), rows)
    )
    found = [mine, other]

    (differs,) = pairing.differing(*found).values()
    assert said in differs
    compared = tables.comparisons(found, **SHOWN).assign(undecided=False, p_holm=0.0)
    sentences = conclusions.of_images(found, compared.assign(only_first=1), level=0.05)
    assert sentences == [
        f"σ = 0.5: a and b were certified with other settings ({differs}), which may be why they "
        "differ."
    ]


def test_rules_differ_by_name_and_constants_and_by_what_they_are_laid_out_for():
    mine = votes("a")
    for header in (
        {"stop": "anytime", "stopping": {"tolerance": 0.1, "beta": 0.01}},
        {"stopping": GRID | {"beta": 0.01}},
        {"alpha": 0.01},
    ):
        head, rows = mine.votes
        other = dataclasses.replace(mine, votes=(dataclasses.replace(head, **header), rows))
        (differs,) = pairing.differing(mine, other).values()
        assert differs.startswith("rule grid, ") and " and " in differs
    never = [
        dataclasses.replace(
            mine,
            votes=random_votes(0, images=15, n=500, n0=20, stop="none", stopping={}, alpha=alpha),
        )
        for alpha in (0.001, 0.01)
    ]
    assert not pairing.differing(*never)  # it stops nowhere, so only the alpha of the table counts


def test_undecided_radii_count_for_nobody():
    found = [votes("a"), votes("b", drawn=1)]
    between = tables.comparisons(found, radii=[0.25, 0.3], confidence=0.95)

    assert between["undecided"].tolist() == [False, True]
    assert tables.comparison_table(found, between.assign(only_first=1))["r"].tolist() == ["0.25"]
    claimed = between.assign(only_first=9, only_second=0, difference=0.5, p_holm=0.0)
    (sentence,) = conclusions.of_images(found, claimed, level=0.05)
    assert sentence == "σ = 0.5: a certifies more images than b at r = 0.25."


def kept(folder, name: str, **changes: object) -> str:
    head, rows = random_votes(
        0, images=15, **({"n": 500, "n0": 20, "stop": "grid", "stopping": GRID} | changes)
    )
    records.write(folder / f"{name}.jsonl", head, rows)
    return str(folder / f"{name}.jsonl")


def test_compare_refuses_other_pictures_and_begins_with_the_settings(tmp_path):
    mine, others = kept(tmp_path, "a"), kept(tmp_path, "b", pixels="2" * 64)
    fewer = kept(tmp_path, "c", n=200)
    certify.write(sources.read(tmp_path / "a.jsonl").table, tmp_path / "a.csv")

    with refused(DataError, "not of the same images", "their pictures differ"):
        commands.compare(mine, others, Files(), radii=None)
    first, *rest = commands.compare(mine, fewer, Files(), radii=None).splitlines()
    assert first == "settings that differ: n 500 and 200"
    assert (
        "Nothing about the classifiers follows: the certificates were made with another n"
        in (rest[-1])
    )
    assert not any("certifies more" in line or "tell A and B apart" in line for line in rest)
    first, *rest = commands.compare(mine, str(tmp_path / "a.csv"), Files(), radii=None).splitlines()
    assert first.startswith("assumed alike, as not both record it: pictures, σ, α, n₀, n, rule")
    same = commands.compare(mine, mine, Files(), radii="0.25,0.3").splitlines()
    assert same[0].startswith("A: ") and "At r = 0.3 drawing stopped before every image" in same[-2]


def test_the_page_says_what_is_assumed(tmp_path):
    found = [votes("a"), bare(votes("b", drawn=1))]

    report.write(found, tmp_path, subject="images", **SHOWN)

    page = (tmp_path / "index.html").read_text()
    assert "assumed to be the same in pairs: pictures" in page[: page.index("<svg")]
    assert pd.read_csv(tmp_path / "comparisons.csv")["undecided"].dtype == bool
