"""docs/published.md has the numbers of presets/field, and these are what logs say."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from workspace import ROOT

from benchmarks import audit, published
from rrcm.certification.votes.bounds import complement, radius

PAGE = ROOT / "docs/published.md"
LOGS = pd.read_csv(ROOT / "presets/field/logs.csv")


@pytest.fixture(autouse=True)
def here(monkeypatch):
    monkeypatch.chdir(ROOT)


def test_page_is_rendered_from_its_data():
    assert published.page(published.FIELD) == PAGE.read_text()


def test_each_row_of_a_log_has_the_numbers_of_its_log():
    """Read back from the page, independently of how it was rendered."""
    seen = 0
    for title, part in re.findall(r"^## (CIFAR-10|ImageNet)\n(.*?)(?=^On training|^## )", PAGE.read_text(), re.M | re.S):
        head, _, *rows = (line.strip("|").split("|") for line in part.split("\n") if "|" in line)
        logs = LOGS[LOGS["dataset"] == title.lower().replace("-", "")]
        for row in (dict(zip(head, row, strict=True)) for row in rows):
            if not row["from"].startswith("log"):
                continue
            sigma, trained = re.fullmatch(r"(\S+?)(?: \((\S+)\))?", row["σ"]).groups()
            same = (logs["sigma"] == float(sigma)) & (logs["sigma_train"] == float(trained or sigma))
            [log] = logs[same & (logs["method"] == row["method"]) & (logs["source"] == row["source"])].to_dict("records")
            ends = ["_low", "_high"] if row["α"] == "0.001" else ["", ""]
            assert int(row["images"]) == log["images"]
            for name in ("ACR", *(key for key in row if key.startswith("r="))):
                text = row[name].split("–")
                want = [log[name.lower().replace("=", "") + end] for end in ends]
                assert [float(text[0]), float(text[-1])] == pytest.approx(want, abs=0.0501 if name != "ACR" else 0.000501)
            seen += 1

    assert seen == 2 * len(LOGS[LOGS["dataset"] != "imagenet, training images"]) - (LOGS["alpha"] == 0.001).sum() - LOGS["alpha"].isna().sum()
