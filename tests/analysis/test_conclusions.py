"""Sentences say what the corrected tests allow, and nothing where they decide nothing."""

import numpy as np
import pandas as pd
import pytest
from builders import certificates

from rrcm.analysis import conclusions, report
from rrcm.analysis.entries import Entry
from rrcm.analysis.presentation import tables

RADII = [0.0, 0.5, 1.0, 2.0]
N = 200


def entry(name: str, shares: list[float], sigma: float = 0.5) -> Entry:
    """Right and certified at each radius of `RADII` for these shares of the images."""
    reached = np.array([0.0, *RADII])[
        np.sum([np.arange(N) < share * N for share in shares], axis=0)
    ]
    answered = np.where(np.arange(N) < shares[0] * N, 0, -1)
    table = certificates(answered.tolist(), reached.tolist())
    return Entry(name=name, model="m", method=name, sigma=sigma, table=table, alpha=0.001)


def said(*found: Entry) -> list[str]:
    compared = tables.comparisons([*found], radii=RADII, confidence=0.95)
    return conclusions.of_images([*found], compared, level=0.05)


def test_a_sentence_names_the_better_the_radii_and_what_is_open():
    ours = entry("ours", [0.9, 0.8, 0.01, 0.0])
    worse = entry("worse", [0.9, 0.5, 0.0, 0.0])
    better = entry("better", [0.99, 0.8, 0.0, 0.0])

    assert said(ours, worse, better) == [
        "σ = 0.5: ours certifies more images than worse at r = 0.5; these 200 images do not tell "
        "them apart at r = 1.",
        "σ = 0.5: better certifies more images than ours at r = 0; these 200 images do not tell "
        "them apart at r = 1.",
    ]
    assert said(ours, entry("twin", [0.9, 0.8, 0.0, 0.0])) == [
        "σ = 0.5: these 200 images do not tell ours and twin apart at any radius."
    ]
    assert said(ours) == [] == said(ours, entry("far", [0.5, 0.1, 0.0, 0.0], sigma=1.0))


def test_both_can_be_better_somewhere():
    (sentence,) = said(entry("a", [0.9, 0.2, 0.0, 0.0]), entry("b", [0.7, 0.6, 0.0, 0.0]))

    assert sentence == (
        "σ = 0.5: a certifies more images than b at r = 0, b certifies more images than a at "
        "r = 0.5."
    )


def test_claims_of_seeds_leave_out_what_was_not_decided():
    rows = [("0.5", "a", "b", 0.0, 0.1, 0.01, False), ("0.5", "a", "b", 1.0, 0.2, 0.001, True)]
    columns = ["sigma", "first", "second", "radius", "difference", "p_holm", "undecided"]

    found = conclusions.of_seeds(pd.DataFrame(rows, columns=columns), level=0.05)

    assert found == ["σ = 0.5: a certifies more images than b at r = 0."]


@pytest.mark.parametrize("level", [0.05, 0.001])
def test_a_claim_needs_the_level(level: float):
    found = conclusions.claims([(0.0, 0.1, 0.01), (1.0, -0.1, 1e-4), (2.0, 0.0, 1.0)], level=level)

    assert (found.first, found.second) == ([0.0] if level == 0.05 else [], [1.0])
    assert 2.0 in found.open


def test_the_page_begins_with_it(tmp_path):
    found = [entry("ours", [0.9, 0.8, 0.0, 0.0]), entry("worse", [0.9, 0.5, 0.0, 0.0])]

    report.write(found, tmp_path, radii=RADII, confidence=0.95, subject="images")

    page = (tmp_path / "index.html").read_text()
    assert "ours certifies more images than worse at r = 0.5" in page[: page.index("<svg")]
    assert "in at most 5 %" in page
