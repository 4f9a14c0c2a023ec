"""Differences from a published table are judged by the error of both samples, and of our seeds."""

import dataclasses
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from builders import certificates, refused
from report_entries import entry
from scipy.stats import norm
from workspace import ROOT

from rrcm.analysis import published, report
from rrcm.analysis.published import Published
from rrcm.config import params
from rrcm.core.errors import DataError

SHOWN = {"radii": [0.0, 0.25, 0.5], "confidence": 0.95}


def ours(name: str, share: float, images: int, *, radius: float = 0.3):
    """An entry whose first ``share`` of the images is certified up to ``radius``, drawn in full."""
    right = np.arange(images) < round(share * images)
    table = certificates([0 if r else -1 for r in right], [radius if r else 0.0 for r in right])
    return dataclasses.replace(entry(0), name=name, table=table.assign(label=0), votes=None)


def theirs(share: float, images: int = 10_000) -> dict[str, Published]:
    accuracy = {0.0: share, 0.25: share, 0.5: 0.0, 1.0: 0.0}
    one = Published(entry="a", seeds=5, images=images, acr=0.9, acr_sd=0.001, accuracy=accuracy)
    return {"a": one}


def test_a_difference_has_the_standard_error_of_two_independent_shares():
    """Closed form: p (1 - p) / n of each. Radii where nobody certifies are left out."""
    made = published.compare([ours("a", 0.90, 1000)], theirs(0.92), **SHOWN)

    error = np.sqrt(0.9 * 0.1 / 1000 + 0.92 * 0.08 / 10_000)
    assert made["radius"].tolist() == [0.0, 0.25]
    np.testing.assert_allclose(made["difference"], -0.02, atol=1e-12)
    np.testing.assert_allclose(made["errors"], -0.02 / error)
    np.testing.assert_allclose(made["high"] - made["low"], 2 * norm.isf(0.025) * error)


def test_seeds_are_averaged_and_their_spread_counts():
    found = [ours("a", 0.90, 1000), ours("a-seed1", 0.92, 1000), ours("a-seed2", 0.94, 1000)]

    made = published.compare(found, theirs(0.92), **SHOWN)

    assert made["seeds"].tolist() == [3, 3]
    error = np.sqrt(0.92 * 0.08 / 1000 + 0.92 * 0.08 / 10_000 + 0.02**2 / 3)
    np.testing.assert_allclose(made["ours"], 0.92)
    np.testing.assert_allclose(made["high"], norm.isf(0.025) * error)


def test_about_one_verdict_in_370_is_wrong_where_both_are_the_same():
    """By simulation of 20,000 tables: the normal law beyond 3 standard errors, 0.0027."""
    rng, trials, p = np.random.default_rng(0), 20_000, 0.9
    a, b = rng.binomial(2000, p, trials) / 2000, rng.binomial(10_000, p, trials) / 10_000
    errors = (a - b) / np.sqrt(a * (1 - a) / 2000 + b * (1 - b) / 10_000)
    expected = (np.abs(errors) > published.FAR).mean()
    assert expected == pytest.approx(0.0027, abs=0.0012)

    for one, other, error in zip(a[:20], b[:20], errors[:20], strict=True):
        made = published.compare([ours("a", one, 2000)], theirs(other), **SHOWN)
        assert made["errors"].iloc[0] == pytest.approx(error)


@pytest.mark.parametrize(
    ("share", "said"),
    [
        (0.92, "agrees: within 3 standard errors at each settled radius"),
        (0.85, "differs by more than 3 standard errors at r = 0 (-6.0), 0.25 (-6.0)"),
        (0.99, "differs by more than 3 standard errors at r = 0 (+16.8), 0.25 (+16.8)"),
    ],
)
def test_the_verdict_is_that_of_the_errors(share, said):
    made = published.compare([ours("a", share, 1000)], theirs(0.92), **SHOWN)

    assert published.verdict(made) == said
    assert published.table(made)["verdict"].tolist() == [said, ""]


def test_a_lower_bound_can_be_too_large_but_not_too_small():
    low = published.compare([ours("a", 0.5, 1000)], theirs(0.92), **SHOWN)
    high = published.compare([ours("a", 0.99, 1000)], theirs(0.92), **SHOWN)

    assert "undecided" in published.verdict(low.assign(lower_bound=True))
    assert "differs" in published.verdict(high.assign(lower_bound=True))
    assert published.table(low.assign(lower_bound=True))["ours %"].tolist() == ["≥ 50.00"] * 2


def test_the_page_has_a_section_where_there_are_published_rows(tmp_path: Path):
    found = [ours("a", 0.9, 100)]

    report.write(found, tmp_path / "with", subject="", published=theirs(0.92), **SHOWN)
    report.write(found, tmp_path / "without", subject="", published={}, **SHOWN)

    assert "Beside published numbers" in (tmp_path / "with/index.html").read_text()
    assert len(pd.read_csv(tmp_path / "with/published.csv")) == 2
    assert "Beside published" not in (tmp_path / "without/index.html").read_text()
    assert not (tmp_path / "without/published.csv").exists()


def test_the_files_in_the_project_name_evaluations_of_their_whole_preset():
    for path in (ROOT / "presets/published").glob("*.csv"):
        rows = published.read(path)
        whole = params.load(ROOT / f"presets/{path.stem}-all.yaml")
        assert rows and rows.keys() <= whole.evals.keys()
        for row in rows.values():
            assert row.accuracy.keys() <= {*whole.report.radii}
            shares = [row.accuracy[radius] for radius in sorted(row.accuracy)]
            assert shares == sorted(shares, reverse=True)  # as radii grow
            steps = np.array(shares)  # accuracy is at least that of the next radius
            assert 0.25 * steps[1:].sum() < row.acr < 0.25 * steps.sum()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("entry,seeds,images,acr,r0\na,5,10000,0.9,99\n", "no column acr_sd"),
        ("entry,seeds,images,acr,acr_sd,r0\na,5,10000,0.9,x,99\n", "a number is none"),
        ("entry,seeds,images,acr,acr_sd,r0\na,5,10000,0.9,0.1,101\n", "is not in 0 … 100 %"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, text: str, words: str):
    (tmp_path / "x.csv").write_text(text)
    with refused(DataError, str(tmp_path / "x.csv"), words):
        published.read(tmp_path / "x.csv")
    assert published.read(tmp_path / "no.csv") == {}
