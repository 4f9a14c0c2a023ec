"""Clean accuracy is of all pictures of a table, for one pass over them."""

import dataclasses

import numpy as np
import torch
from builders import Linear, images, linear, random_votes
from torch import nn

import rrcm
from rrcm.certification import clean
from rrcm.certification.votes.counts import ABSTAIN

IMAGES, BATCH = 11, 4
SPLIT = images(IMAGES)


class Asked(Linear):
    """Takes batches of one size; a score of the third image is NaN."""

    def scores(self, x, z=None):
        assert len(x) == BATCH
        third = (x == torch.from_numpy(SPLIT.pixels([2]))).flatten(1).all(1)
        return super().scores(x).masked_fill(third[:, None], torch.nan)


def column(backend: Asked, *, path=None, **changes) -> list[int]:
    head, rows = random_votes(0, images=IMAGES, batch_size=BATCH, **changes)
    pairs = zip(rows, SPLIT.idx.tolist(), strict=True)
    rows = [dataclasses.replace(row, idx=idx) for row, idx in pairs][::-1]
    found = clean.column(backend, SPLIT, head, rows, path=path, shown=False)
    return (found or [])[::-1]


def test_every_picture_is_answered_in_one_pass_which_is_kept(tmp_path):
    backend, path = linear(kind=Asked), tmp_path / "clean.json"
    expected = linear().scores(torch.from_numpy(SPLIT.pixels(np.arange(IMAGES)))).argmax(1).tolist()
    expected[2] = ABSTAIN  # a score is NaN

    assert column(backend, path=path) == expected and len(backend.batches) == 3
    assert column(backend, path=path, n=500) == expected and len(backend.batches) == 3
    assert column(backend, path=path, pixels="2" * 64) == expected and len(backend.batches) == 6
    assert column(backend, budget=5.0) == [] and len(backend.batches) == 6


def test_the_table_of_answers_begins_with_clean_accuracy():
    """Noise hides a contrast of 0.1 from a network that the pictures themselves do not confuse."""
    x = torch.tensor([0.45, 0.45, 0.55, 0.55]).reshape(4, 1, 1, 1)
    network = nn.Sequential(nn.Flatten(), Light()).eval()
    how = {"n": 40, "alpha": 0.01, "stop": "none", "seed": 1, "progress": False}

    answers = rrcm.smooth(network, sigma=0.5, classes=2).certify(x, labels=[0, 1, 1, 1], **how)

    table = rrcm.report({"known": answers}).table
    assert answers.to_pandas()["clean"].tolist() == [0, 0, 1, 1]
    assert list(table)[:3] == ["σ", "method", "clean"] and table["clean"][0].startswith("75.0 [")
    bare = type(answers)(answers.header, answers.rows)
    both = rrcm.report({"known": answers, "unknown": bare}).table
    assert both["clean"].tolist() == [table["clean"][0], "?"]
    assert "clean" not in rrcm.report(bare).table


class Light(nn.Module):
    """Class 1 where a picture is lighter than grey."""

    def forward(self, x):
        return torch.cat([0.5 - x, x - 0.5], dim=1)
