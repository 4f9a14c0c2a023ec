"""Votes that are cut are the votes that fewer draws make, whatever the rule."""

from dataclasses import replace
from functools import cache

import builders
import pytest
import sampling_runs
from builders import images, linear, refused, row
from sampling_runs import CONSTANTS, header_and_rows

from rrcm.certification import certify, truncation
from rrcm.certification.votes import records
from rrcm.certification.votes.records import BUDGET
from rrcm.core.errors import VotesError

MANY, FEW = 10_000, 1_000
CFG = replace(sampling_runs.CFG, batch_size=1000, n=MANY, alpha=0.001)
SPLIT = images(12)
every_rule = pytest.mark.parametrize("stop", CONSTANTS)


@cache
def sampled(stop, n):
    """Votes that were drawn, with at most ``n`` draws an image; none of them is undecided only."""
    cfg = replace(CFG, stop=stop, n=n)
    drawn = sampling_runs.sampled(cfg, SPLIT, make=lambda: linear((-0.4, 0.2, 0.1)))
    return drawn, *header_and_rows(drawn)


def written(folder, head, rows):
    """The bytes of a votes file, and of its certificates."""
    records.write(folder / "votes.jsonl", head, rows)
    table = certify.certify(head, rows, certificates=["cohen", "two_class"], alpha=head.alpha)
    certify.write(table, folder / "table.csv")
    return (folder / "votes.jsonl").read_bytes(), (folder / "table.csv").read_bytes()


@every_rule
def test_cut_votes_are_those_that_fewer_draws_make(tmp_path, stop):
    """To the last byte, of the votes and of the table: sampled twice, with the same seed."""
    _, *many = sampled(stop, MANY)
    drawn, *fewer = sampled(stop, FEW)
    last = [row.looks[-1][0] for row in many[1]]
    assert stop == "none" or min(last) < FEW < max(last)  # so that both are tried

    cut = written(tmp_path, *truncation.truncate(*many, FEW))

    assert cut == written(tmp_path, *fewer)
    assert cut[0] == drawn


def random_votes(stop, seed, **changes):
    return builders.random_votes(seed, n=1000, stop=stop, stopping=CONSTANTS[stop], **changes)


def test_votes_cannot_be_cut_where_nobody_looked():
    for stop, n, nearest in [("none", 600, "630"), ("grid", 555, "500"), ("none", 5, "100")]:
        with refused(VotesError, f"n = {n}", f"the nearest is {nearest}"):
            truncation.truncate(*random_votes(stop, 0), n)


def test_boundaries_that_belong_to_n_cannot_be_cut():
    """Not even where the looks of a smaller n are the first ones."""
    constants = {"radii": [0.0, 0.25], "beta": 0.01}
    head, rows = builders.random_votes(0, n=1000, stop="spending", stopping=constants)

    for n in (100, 118):
        with refused(VotesError, "the boundaries of the rule spending", f"--n {n}"):
            truncation.truncate(head, rows, n)
    assert truncation.truncate(head, rows, 1000) == (head, rows)


def test_what_nobody_finished_stays_as_it_is():
    head, _ = random_votes("grid", 0)
    open_row = row(0, 0, [10, 0, 0], [70, 30, 0], stop=BUDGET)
    unseen = row(1, 0, [0, 10, 0], stop=BUDGET)

    _, rows = truncation.truncate(head, [open_row, unseen], 500)

    assert rows == [open_row, unseen]


def test_rows_that_a_rule_would_not_have_stopped_are_refused():
    head, _ = random_votes("none", 0)
    short = row(7, 0, [10, 0, 0], [100, 0, 0], stop="certified")

    with refused(VotesError, "image 7", "after 100 draws", "500"):
        truncation.truncate(head, [short], 500)
