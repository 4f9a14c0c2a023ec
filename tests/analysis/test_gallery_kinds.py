"""Pages of a pair and of an attack show what the tests count, and what was found."""

import base64
import dataclasses
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from linear_smoothed import classifier
from PIL import Image
from scipy.stats import binomtest

from rrcm.analysis import entries
from rrcm.analysis.estimation import statistics
from rrcm.analysis.gallery import attack, pair
from rrcm.analysis.presentation import tables
from rrcm.certification.attacking import judging, pictures

N, RADII = 12, [0.0, 0.2]


def cards(path: Path) -> list[dict]:
    return json.loads(re.search(r'id="data">(.*?)</script>', path.read_text())[1])


@pytest.fixture(scope="module")
def pixels() -> np.ndarray:
    return np.random.default_rng(3).integers(0, 256, (N, 1, 2, 2)).astype(np.uint8)


def entry(name: str, pixels: np.ndarray, sigma: float):
    """A linear classifier's; labels are those of one at 0.3."""
    of = classifier(sigma=sigma)
    labels = of.backend.scores(torch.from_numpy(pixels / np.float32(255))).argmax(1).numpy()
    how = {"n": 100, "n0": 20, "stop": "none", "seed": int(sigma * 10), "progress": False}
    answers = of.certify(pixels, labels=labels, **how)
    return (
        of,
        of.split(pixels, labels),
        answers,
        entries.from_votes(name, answers.header, answers.rows),
    )


def test_a_pair_is_of_the_pictures_that_the_test_counts(pixels, tmp_path: Path):
    _, split, _, a = entry("a", pixels, 0.3)
    _, _, _, b = entry("b", pixels, 0.8)
    numbers = tables.comparison(a, b, radii=RADII, confidence=0.95)
    tests = tables.comparison_table([a, b], numbers)
    path = tmp_path / "pair.html"
    pair.write(path, (a, b), split, radii=RADII, tests=tests)

    shown = {card["idx"]: card for card in cards(path)}
    for radius in RADII:
        hits = [statistics.certified(one.table, radius) for one in (a, b)]
        differ = {i for i, (x, y) in enumerate(zip(*hits, strict=True)) if x != y}
        assert differ == {i for i, card in shown.items() if f"{radius:g}" in card["at"]}
        for i in differ:
            assert shown[i]["verdict"] == ("only A" if hits[0][i] else "only B")
        if differ:
            only = int((hits[0] & ~hits[1]).sum())
            assert f"<td>{binomtest(only, len(differ)).pvalue:.2g}</td>" in path.read_text()
    assert shown
    for i, card in shown.items():
        for one, said in zip((a, b), card["said"], strict=True):
            answer = one.table["predict"][i]
            assert said["answer"] == ("" if answer < 0 else one.votes[0].classes[answer])
            assert said["radius"] == ("" if answer < 0 else f"{one.table['radius'][i]:.8f}"[:6])


def test_a_found_picture_is_kept_in_8_bits_where_these_are_judged_alike(pixels, tmp_path: Path):
    """A picture of another image that is certified is; one with another class is not."""
    smoothed, split, answers, of = entry("a", pixels, 0.3)
    x, kept = split.pixels(), tmp_path / "kept.json"
    j = max(range(N), key=lambda i: answers[i].radius)
    rows, apart, to = [i for i in range(N) if i != j][:2], [np.nan] * N, [-1] * N
    for i, c in zip(rows, (answers[j].label, (answers[j].label + 1) % 3), strict=True):
        np.save(judging.picture(kept, i), x[j])
        apart[i], to[i] = max(0.5, float(np.linalg.norm(x[j] - x[i]))), c
    found_in = {"attacked": apart, "attacked_to": to}
    attacked = dataclasses.replace(answers, attacked=found_in)
    made = pictures.written(smoothed, split, attacked, kept=kept, folder=tmp_path / "found")

    png, npy = (
        tmp_path / "found" / f"{i}.{kind}" for i, kind in zip(rows, ("png", "npy"), strict=True)
    )
    assert {*(tmp_path / "found").iterdir()} == {png, npy}
    stored = np.asarray(Image.open(png)).astype(np.float32) / 255
    np.testing.assert_array_equal(stored, x[j, 0])
    np.testing.assert_array_equal(np.load(npy), x[j])
    said = float(made[rows[0]][1].rpartition(" ")[2])
    exact = np.linalg.norm(stored - x[rows[0], 0])
    assert exact <= said <= exact + 2e-4

    table = of.table.assign(**found_in)
    of = dataclasses.replace(of, table=table)
    attack.write(tmp_path / "a.html", of, split, made, backend=smoothed.backend, files={})
    shown = {card["idx"]: card for card in cards(tmp_path / "a.html")}
    assert len(shown) == N and cards(tmp_path / "a.html")[-1]["verdict"] != "attacked"
    before, after, last = shown[rows[0]]["shots"]
    times = int(last[0].removeprefix("difference × "))
    drawn = [np.asarray(Image.open(io.BytesIO(base64.b64decode(one[1]))).convert("L")).astype(int)
             for one in (before, after, last)]  # fmt: skip
    apart_by = (times * (drawn[1] - drawn[0])).clip(-127.5, 127.5)
    np.testing.assert_allclose(drawn[2] - 127.5, apart_by, atol=1)
    assert all(card["verdict"] == "nothing found" for i, card in shown.items() if i not in rows)
