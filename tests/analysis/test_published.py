"""Differences from a published table are judged by the error of both samples, and of our seeds."""

import dataclasses
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from builders import certificates, refused
from helpers import shipped
from report_entries import entry
from scipy.stats import norm
from statsmodels.stats.proportion import confint_proportions_2indep
from workspace import ROOT, tracked

from rrcm.analysis import published, report
from rrcm.core.errors import DataError

SHOWN = {"radii": [0.0, 0.25, 0.5], "confidence": 0.95}


def ours(name: str, share: float, images: int, *, radius: float = 0.3):
    """An entry whose first ``share`` of the images is certified up to ``radius``, drawn in full."""
    right = np.arange(images) < round(share * images)
    table = certificates([0 if r else -1 for r in right], [radius if r else 0.0 for r in right])
    return dataclasses.replace(entry(0), name=name, table=table.assign(label=0), votes=None)


def theirs(share: float) -> pd.DataFrame:
    accuracy = {"r0": 100 * share, "r0.25": 100 * share, "r0.5": 0.0, "r1": 0.0}
    return pd.DataFrame({"sigma": 0.5, "alpha": 0.001, "images": 10_000.0} | accuracy, index=["a"])


def pooled(share: float, images: int) -> float:
    """The standard error of two independent shares if they are equal."""
    both = (share * images + 0.92 * 10_000) / (images + 10_000)
    return np.sqrt(both * (1 - both) * (1 / images + 1 / 10_000))


def test_a_difference_has_the_standard_error_and_interval_of_two_independent_shares():
    """By statsmodels, for the interval. Radii where nobody certifies are left out."""
    made = published.compare([ours("a", 0.90, 1000)], theirs(0.92), **SHOWN)

    assert made["radius"].tolist() == [0.0, 0.25]
    np.testing.assert_allclose(made["difference"], -0.02, atol=1e-12)
    np.testing.assert_allclose(made["errors"], -0.02 / pooled(0.90, 1000))
    ends = confint_proportions_2indep(900, 1000, 9200, 10_000, method="newcomb", compare="diff")
    np.testing.assert_allclose(made[["low", "high"]], [ends] * 2)


@pytest.mark.parametrize(("share", "published_share"), [(1.0, 0.98), (0.0, 0.015), (1.0, 1.0)])
def test_few_images_of_one_answer_do_not_differ_from_a_share_that_explains_them(
    share, published_share
):
    """100 of 100 have probability 0.13 at 98 %, and 0 of 100 have 0.22 at 1.5 %: no 3 errors."""
    mine = [ours("a", share, 100)]
    made = published.compare(mine, theirs(published_share), **SHOWN)

    assert published.verdict(made).startswith("agrees")
    assert (made["low"] <= 0).all() and (made["high"] >= 0).all()


def test_seeds_are_averaged_and_their_spread_counts():
    found = [ours("a", 0.90, 1000), ours("a-seed1", 0.92, 1000), ours("a-seed2", 0.94, 1000)]

    made = published.compare(found, theirs(0.92), **SHOWN)

    assert made["seeds"].tolist() == [3, 3]
    (one,) = published.compare([ours("a", 0.92, 1000)], theirs(0.92), **SHOWN)["high"][:1]
    spread = norm.isf(0.025) * 0.02 / np.sqrt(3)
    np.testing.assert_allclose(made["ours"], 0.92)
    np.testing.assert_allclose(made["high"], np.hypot(one, spread))
    other = published.compare(found, theirs(0.90), **SHOWN)
    share = (920 + 9000) / 11_000
    error = np.sqrt(share * (1 - share) * (1 / 1000 + 1 / 10_000) + 0.02**2 / 3)
    np.testing.assert_allclose(other["errors"], 0.02 / error)


@pytest.mark.parametrize(
    ("share", "said"),
    [
        (0.92, "agrees: within 3 standard errors at each settled radius"),
        (0.85, "differs by more than 3 standard errors at r = 0 (-7.5), 0.25 (-7.5)"),
        (0.99, "differs by more than 3 standard errors at r = 0 (+8.1), 0.25 (+8.1)"),
    ],
)
def test_the_verdict_is_that_of_the_errors(share, said):
    made = published.compare([ours("a", share, 1000)], theirs(0.92), **SHOWN)

    assert published.verdict(made) == said
    assert published.table(made)["verdict"].tolist() == [said, ""]


def test_a_lower_bound_can_be_too_large_but_not_too_small():
    low = published.compare([ours("a", 0.5, 1000)], theirs(0.92), **SHOWN)
    high = published.compare([ours("a", 0.99, 1000)], theirs(0.92), **SHOWN)

    assert "undecided" in published.verdict(low.assign(undecided=True))
    assert "differs" in published.verdict(high.assign(undecided=True))
    assert published.table(low.assign(lower_bound=True))["ours %"].tolist() == ["≥ 50.00"] * 2


def test_the_page_has_a_section_where_there_are_published_rows(tmp_path: Path, undrawn):
    found = [ours("a", 0.9, 100)]

    report.write(found, tmp_path / "with", subject="", published=theirs(0.92), **SHOWN)
    report.write(found, tmp_path / "without", subject="", **SHOWN)

    assert "Beside published numbers" in (tmp_path / "with/index.html").read_text()
    assert len(pd.read_csv(tmp_path / "with/published.csv")) == 2
    assert "Beside published" not in (tmp_path / "without/index.html").read_text()
    assert not (tmp_path / "without/published.csv").exists()


@pytest.mark.parametrize(
    "changes",
    [
        {"stale": ("a reason",)},
        {"sigma": 0.25},
        {"alpha": 0.01},
        {"certificate": "two_class"},
        {"split": "choice"},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_what_has_only_the_name_of_a_published_row_is_not_put_beside_it(changes):
    row, mine = theirs(0.92), ours("a", 0.92, 1000)
    split = {"table": mine.table.assign(split=changes.pop("split"))} if "split" in changes else {}
    other = dataclasses.replace(mine, name="a-seed1", **changes, **split)

    assert published.compare([mine], row, **SHOWN)["seeds"].tolist() == [1, 1]
    assert published.compare([mine, other], row, **SHOWN)["seeds"].tolist() == [1, 1]
    assert published.compare([other], row, **SHOWN).empty


PUBLISHED = tracked("presets/published/*.csv")


def imported(name: str) -> str:
    """The evaluation of our training whose published row a checkpoint of the authors has, too."""
    return name.replace("-imported-", "-rrcm-")


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.stem)
def test_the_files_in_the_project_name_evaluations_of_their_whole_preset(path: Path):
    rows = published.read(path)
    whole = shipped({"mnist": "mnist-all"}.get(path.stem, path.stem))

    assert len(rows) and {imported(name) for name in rows.index} <= whole.evals.keys()
    assert whole.data.name == path.stem  # `rrcm report` finds the file by it
    accuracy = rows.filter(regex="^r") / 100
    radii = np.array([float(name[1:]) for name in accuracy])
    assert {*radii} <= {*whole.report.radii} and (np.diff(radii) > 0).all()
    for name, shares in accuracy.iterrows():
        assert shares.equals(accuracy.loc[imported(name)])
        assert shares.is_monotonic_decreasing  # as radii grow
        sigma = whole.evals[imported(name)].sigma
        assert rows.loc[name, ["sigma", "alpha"]].tolist() == [sigma, 0.001]
        reach = sigma * norm.isf(-np.expm1(np.log(0.001) / 100_000))  # all of 100,000 votes agree
        assert ((shares == 0) == (radii > reach)).all()
        if not np.isnan(acr := rows.loc[name, "acr"]):  # accuracy is at least that of the next
            assert 0.25 * shares[1:].sum() < acr < 0.25 * shares.sum()


def test_the_best_of_each_radius_is_the_papers_table():
    """Lei et al. (2025): a network's row in a table is its best noise level at each radius."""
    said = {
        ("cifar10", "b-rrcm"): [83.6, 73.4, 61.4, 48.0, 39.2],
        ("imagenet", "b-rrcm"): [76.8, 63.0, 45.6, 34.8, 28.0, 22.6],
        ("imagenet", "b_deep-rrcm"): [77.4, 64.0, 51.2, 40.0, 32.6, 25.0],
    }
    for (data, network), expected in said.items():
        table = pd.read_csv(ROOT / f"presets/published/{data}.csv", index_col="entry")
        best = table[table.index.str.startswith(network)].filter(regex=r"^r\d").max()

        assert best.tolist() == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("sigma,alpha,images,r0\n1,.1,500,99\n", "entry"),
        ("entry,sigma,alpha,r0\na,1,.1,99\n", "images"),
        ("entry,sigma,images,r0\na,1,500,99\n", "alpha"),
        ("entry,sigma,alpha,images,r0\na,1,.1,500,x\n", "could not convert string to float: 'x'"),
        ("entry,sigma,alpha,images,r0\na,1,.1,500,101\n", "out of range"),
        ("entry,sigma,alpha,images,r0\na,0,.1,500,99\n", "out of range"),
        ("entry,sigma,alpha,images,r0\na,1,.1,500,0.99\n", "1 % at most; they are written in perc"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, text: str, words: str):
    (tmp_path / "x.csv").write_text(text)
    with refused(DataError, str(tmp_path / "x.csv"), words):
        published.read(tmp_path / "x.csv")
    assert published.read(tmp_path / "no.csv").empty
