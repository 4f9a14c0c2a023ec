"""docs/published.md has the numbers of presets/field, and votes are recovered from radii."""

import re

import numpy as np
import pandas as pd
import pytest
from workspace import ROOT

from benchmarks import audit, published
from rrcm.certification import tables, tsv
from rrcm.certification.votes import bounds

PAGE = (ROOT / "docs/published.md").read_text()
LOGS = pd.read_csv(ROOT / "presets/field/logs.csv")
GIVEN = pd.read_csv(ROOT / "presets/field/rows.csv")


def test_page_is_rendered_from_its_data(monkeypatch):
    monkeypatch.chdir(ROOT)
    assert published.page(published.FIELD) == PAGE


@pytest.mark.parametrize("title, dataset", [("CIFAR-10", "cifar10"), ("ImageNet", "imagenet")])
def test_rows_have_the_numbers_of_their_log_or_publication(title: str, dataset: str):
    """Read back from the page, whatever rendered it; rRCM's rows are of presets/published."""
    part = PAGE.split(f"\n## {title}\n\n")[1].split("\n\n")[0]
    head, _, *lines = (line[1:-1].split("|") for line in part.splitlines())
    rows = [dict(zip(head, line, strict=True)) for line in lines if "Lei 2025" not in line]
    for row in rows:
        sigma, trained = re.fullmatch(r"(\S+)(?: \((\S+)\))?", row["σ"]).groups()
        log = row["from"].startswith("log")
        key = {"sigma": float(sigma), "sigma_train": float(trained or sigma), "dataset": dataset}
        key |= {"method": row["method"], "source": row["source"]}
        data = LOGS if log else GIVEN
        [found] = data[(data[list(key)] == pd.Series(key)).all(axis=1)].to_dict("records")
        ends = ("_low", "_high") if log and row["α"] == "0.001" else ("", "")
        for name in ("ACR", *(name for name in head if name.startswith("r="))):
            said = [float(end or "nan") for end in row[name].split("–")]
            wanted = [found[name.lower().replace("=", "") + end] for end in ends]
            near = (0.0005 if name == "ACR" else 0.05) * log + 1e-9
            assert [said[0], said[-1]] == pytest.approx(wanted, abs=near, nan_ok=True), (row, name)

    logs = LOGS[LOGS["dataset"] == dataset]
    assert sum(row["from"].startswith("log") for row in rows) == (
        len(logs) + (logs["alpha"] > published.ALPHA).sum()
    )


def test_votes_certify_no_more_than_the_radii_of_the_log():
    """Those of a log may be more: many radii were rounded up."""
    for name in published.NUMBERS[1:]:
        assert not (LOGS[f"{name}_low"] > LOGS[f"{name}_high"]).any()
        assert not (LOGS[f"{name}_low"] > LOGS[name]).any()


def test_what_was_trained_here_is_as_its_own_page_says():
    text = (ROOT / "docs/results-mnist.md").read_text()
    for row in GIVEN[GIVEN["source"] == "trained here"].to_dict("records"):
        block = text.split(f"`lenet-{row['method']}-s{100 * row['sigma']:03.0f}-")[1].split("`")[1]
        ours = dict(re.findall(r"\| ([\d.]+) \| ([\d.]+) \|", block))
        assert ours == {f"{float(r):g}": f"{row[f'r{r}']:.2f}" for r in ours}


@pytest.mark.parametrize("digits", [3, 6])
def test_the_radius_at_another_alpha_is_between_its_ends(digits: int, tmp_path):
    """Of votes that are known, at alpha = 0.01; six decimals leave one number of votes of 1,000."""
    n, sigma = (100_000, 0.5) if digits == 3 else (1_000, 0.25)
    truth = audit.simulate(np.random.default_rng(0), n=n, alpha=0.01, sigma=sigma, images=500)
    (audit.write_published if digits == 3 else tsv.write)(truth, tmp_path / "log.tsv")

    low, high = published.harmonised(tables.read(tmp_path / "log.tsv"), sigma=sigma)

    for k, predict, a, b in zip(
        truth["n_A"], truth["predict"], low["radius"], high["radius"], strict=True
    ):
        exact = bounds.radius(bounds.complement(k, n, published.ALPHA), sigma=sigma)
        exact = max(exact, 0.0) if predict >= 0 else 0.0
        assert a - 1e-9 <= exact <= b + 1e-9 and (digits == 3 or b - a < 1e-9)
    assert (low["correct"] <= truth["correct"]).all()
