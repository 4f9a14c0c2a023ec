"""The page of certified pictures shows what was drawn, and names on it stay text."""

import base64
import dataclasses
import hashlib
import io
import json
import re
from pathlib import Path

import browsers
import numpy as np
import pandas as pd
import pytest
import torch
from linear_smoothed import classifier
from PIL import Image
from scipy.stats import beta, norm

from rrcm.analysis import entries
from rrcm.analysis.gallery import certified as gallery
from rrcm.analysis.gallery import pages
from rrcm.analysis.presentation.votes import COPIES
from rrcm.certification.distributions import gaussian

HOSTILE = "</script><img src=x onerror=alert(1)>\u202e.png"
KEY, N, SIGMA = 7, 200, 0.25


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The first of two pages of five grey pictures of 2 x 2 pixels; and what it is of."""
    path = tmp_path_factory.mktemp("page") / "some & pictures.html"
    smoothed, pixels = (
        classifier(sigma=SIGMA),
        np.random.default_rng(0).integers(0, 256, (5, 1, 2, 2)),
    )
    images, labels = pixels.astype(np.uint8), [0, 1, 0, 1, -1]
    how = {"n": N, "n0": COPIES, "stop": "none", "seed": KEY}
    answers = smoothed.certify(images, labels=labels, progress=False, **how)
    split = smoothed.split(images, labels)
    header = dataclasses.replace(answers.header, classes=["<b>a</b>", "b", "c"])
    entry = entries.from_votes("e", header, answers.rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pages, "MOST", 4)
        files = {row.idx: f"{row.idx}{HOSTILE}" for row in answers.rows}
        paths = gallery.write(path, entry, split, backend=smoothed.backend, files=files)

    assert paths == [path, path.with_name("some & pictures-2.html")]
    return path, entry, split


@pytest.fixture
def page(written) -> Path:
    return written[0]


def data(path: Path) -> dict:
    return {"cards": json.loads(re.search(r'id="data">(.*?)</script>', path.read_text())[1])}


def test_the_copies_are_those_that_voted(written):
    """n0 is their number here: they have the votes of the selection, pixel by pixel eq. 2."""
    page, entry, split = written
    rows = {row.idx: row for row in entry.votes[1]}
    for card in data(page)["cards"]:
        classes = [c for _, c in card["copies"]]
        names = {entry.votes[0].classes[c]: many for c, many in rows[card["idx"]].n0.items()}
        assert {c: classes.count(c) for c in classes} == names
        shown = np.stack([np.asarray(picture(image)) for image, _ in card["copies"]])
        draws = torch.arange(COPIES)
        x = torch.from_numpy(split.pixels([card["idx"]])).expand(len(draws), -1, -1, -1)
        noisy = gaussian.noisy(
            x,
            SIGMA,
            seed=KEY,
            images=torch.full_like(draws, card["idx"]),
            draws=draws,
            max_value=255,
        )
        drawn = (255 * noisy[:, 0].clamp(0, 1)).round().numpy()
        np.testing.assert_array_equal(shown, drawn)
    (last,) = data(page.with_name("some & pictures-2.html"))["cards"]
    assert last["copies"] == []


def test_without_the_classifier_the_copies_are_the_same(written, tmp_path):
    page, entry, split = written
    known = {card["idx"]: card["copies"] for card in data(page)["cards"]}
    gallery.write(tmp_path / "a.html", entry, split, backend=None, files={})

    for card in data(tmp_path / "a.html")["cards"][: len(known)]:
        assert card["copies"] == [[image, ""] for image, _ in known[card["idx"]]]


def picture(image: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(image))).convert("L")


def test_radii_at_other_n_and_alpha_are_those_of_the_same_share(written):
    page, entry, _ = written
    table = entry.table.set_index("idx")
    for card in data(page)["cards"]:
        assert card["radii"][0] == ["n", "α = 0.0001", "α = 0.001", "α = 0.01"]
        assert [row[0] for row in card["radii"][1:]] == ["20", "200", "2,000"]
        shown = f"{card['radius']:.8f}"[:6] if card["radius"] else "abstains"
        assert card["radii"][2][2] == shown
        k = 10 * int(table["n_A"][card["idx"]])
        radius = SIGMA * norm.ppf(beta.ppf(0.01, k, 10 * N - k + 1))
        shown = card["radii"][3][3]
        assert float(shown if shown != "abstains" else 0) == pytest.approx(max(radius, 0), abs=1e-4)


def test_the_most_informative_come_first():
    """In turn wrong and far, nearest to an answer, right and near, right and far."""
    rows = [
        (0, 0, 0.1),
        (0, 0, 0.9),
        (0, 1, 0.2),
        (0, 1, 0.4),
        (0, -1, 0),
        (0, -1, 0),
        (-1, 1, 0.5),
    ]
    table = pd.DataFrame(rows, columns=["label", "predict", "radius"])
    table = table.assign(correct=[1, 1, 0, 0, 0, 0, 0], p_A=[0.6, 0.9, 0.7, 0.8, 0.2, 0.4, 0.8])

    assert gallery.informative(table) == [3, 5, 0, 1, 2, 4, 6]


def test_nothing_but_its_own_script_can_run(page: Path):
    text = page.read_text()
    policy = re.search(r'Security-Policy" content="(.*?)"', text)[1]
    for tag in ("style", "script"):
        (own,) = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(own.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'; img-src data:;") and "unsafe" not in policy
    before, names, after = re.split(r'id="data">(.*?)</script>', text, maxsplit=1, flags=re.DOTALL)
    assert not re.search(r"https?:|\son\w+=|\sstyle=", before + after)
    assert "<" not in names and "onerror" in names and "\u202e" not in names


def test_in_a_browser_it_sorts_filters_and_opens(page: Path, browser):
    cards = data(page)["cards"]
    with browsers.tab(browser, page.as_uri()) as tab:
        tiles = tab.locator("#grid button")

        tab.select_option("#order", "-radius")
        names = tab.locator("#grid .said > .name:first-child").all_inner_texts()
        assert names == [c["name"] for c in sorted(cards, key=lambda card: -card["radius"])]
        tab.select_option("#label", "<b>a</b>")
        assert tiles.count() == sum(card["label"] == "<b>a</b>" for card in cards)
        tab.select_option("#label", "")
        for verdict in {card["said"][0]["verdict"] for card in cards}:
            tab.select_option("#verdict", verdict)
            assert tiles.count() == sum(card["said"][0]["verdict"] == verdict for card in cards)
        tiles.first.focus()
        tab.keyboard.press("Enter")
        assert HOSTILE[:9] in tab.locator("#title").inner_text()
        assert tab.locator("#copies img").count() == COPIES
        tab.keyboard.press("Escape")
        tab.get_by_role("link", name="2").click()
        assert tiles.count() == 1


def test_axe_finds_nothing_serious(page: Path, browser):
    with browsers.tab(browser, page.as_uri()) as tab:
        assert browsers.flaws(tab) == []
        tab.locator("#grid button").first.click()
        assert browsers.flaws(tab) == []
