"""Pictures of a page are those that were certified, with the very noise that was counted."""

import base64
import dataclasses
import io
import re

import numpy as np
import pandas as pd
import pytest
import torch
from builders import refused
from helpers import split as digits
from PIL import Image

import rrcm
from rrcm.analysis import report
from rrcm.analysis.presentation import pictures
from rrcm.analysis.presentation.extras import Extras
from rrcm.analysis.sources import from_votes
from rrcm.certification.certify import floor
from rrcm.core.errors import DataError
from rrcm.noise import streams

SIGMA, SEED = 2.0, 3
SPLIT = digits(40, 0)


class Rows(torch.nn.Module):
    """Class k for brightness in the rows of class k."""

    def forward(self, x):
        return 3 * x.mean(dim=(1, 3)).reshape(len(x), -1, 2).mean(dim=2)


@pytest.fixture(scope="module")
def answers():
    smoothed = rrcm.smooth(Rows().eval(), sigma=SIGMA, classes=len(SPLIT.classes))
    return smoothed.certify(
        torch.from_numpy(SPLIT.pixels()),
        labels=SPLIT.labels,
        n=60,
        n0=20,
        alpha=0.05,
        stop="none",
        seed=SEED,
        progress=False,
        workers=1,
    )


def levels(uri):
    head, _, data = uri.partition(",")
    assert head == "data:image/png;base64"
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(data))))


def entry(answers):
    return dataclasses.replace(from_votes("rows", answers.header, answers.rows), method="rows")


def given():
    return dataclasses.replace(SPLIT, images=SPLIT.pixels(), max_value=1)


def test_the_noise_is_that_of_the_first_draw(answers):
    made = pictures.groups([entry(answers)], given())

    kinds = {group.kind: group.pairs for group in made}
    assert {"Most robust", "Least robust"} <= kinds.keys()
    for pair in (pair for pairs in kinds.values() for pair in pairs):
        idx = int(pair.name.removeprefix("image "))
        x = SPLIT.pixels(slice(idx, idx + 1))
        z = streams.gaussian(SEED, torch.tensor([idx]), torch.tensor([0]), x.shape[1:]).numpy()
        for uri, want in ((pair.clean, x), (pair.noisy, x + np.float32(SIGMA) * z)):
            want = 255 * np.clip(want[0, 0], 0, 1)
            assert np.abs(levels(uri) - want).max() <= 0.501


def test_kinds_are_the_extremes_of_the_table(answers):
    table = entry(answers).table
    right = table[(table["correct"] == 1) & (table["radius"] > 0)]
    kinds = {group.kind: group.pairs for group in pictures.groups([entry(answers)], given())}

    for kind, extreme in (
        ("Most robust", right["radius"].max()),
        ("Least robust", right["radius"].min()),
    ):
        first = kinds[kind][0]
        assert first.caption.endswith(f"within r = {floor(extreme, 3):g}")
    abstained = table.loc[table["predict"] == -1, "idx"]
    shown = [pair.name for pair in kinds.get("Abstained", [])]
    assert shown == [f"image {idx}" for idx in abstained[: pictures.MOST]]
    assert len(abstained) > 0


def test_other_images_are_refused(answers):
    others = digits(40, 1)
    with refused(DataError, "rows: its votes are of other images"):
        pictures.groups(
            [entry(answers)], dataclasses.replace(others, images=others.pixels(), max_value=1)
        )
    with refused(DataError, "classifier: its votes are of other images"):
        rrcm.report(answers, images=torch.from_numpy(others.pixels()))


def test_a_page_has_pictures_only_if_it_is_given_images(answers, tmp_path):
    rrcm.report(answers).save(tmp_path / "bare.html")
    rrcm.report(answers, images=torch.from_numpy(SPLIT.pixels())).save(tmp_path / "page.html")
    rrcm.report(answers, images=torch.from_numpy(SPLIT.pixels())).save(tmp_path / "again.html")

    page = (tmp_path / "page.html").read_text()
    assert "<img" not in (tmp_path / "bare.html").read_text()
    found = re.findall(r'<img src="([^"]+)" alt="([^"]+)">', page)
    assert len(found) == page.count("<img") > 4
    assert all(uri.startswith("data:image/png;base64,") and alt for uri, alt in found)
    assert (tmp_path / "again.html").read_text() == page


def test_large_pictures_are_thinned_out_and_few(tmp_path):
    """Noise does not compress: a page of pictures of 224 x 224 has to stay below a megabyte."""
    images = torch.rand(6, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    smoothed = rrcm.smooth(Pooled().eval(), sigma=0.25, classes=2)
    answers = smoothed.certify(
        images, labels=[0] * 6, n=50, n0=5, alpha=0.05, seed=1, stop="none", progress=False
    )

    rrcm.report(answers, images=images).save(tmp_path / "page.html")
    one = pictures.groups(
        [entry(answers)],
        dataclasses.replace(
            SPLIT, idx=np.arange(6), images=images.numpy(), labels=np.zeros(6, int), max_value=1
        ),
    )

    assert (tmp_path / "page.html").stat().st_size < 1_000_000
    clean = levels(one[0].pairs[0].clean)
    idx = int(one[0].pairs[0].name.removeprefix("image "))
    assert clean.shape == (75, 75, 3)
    assert np.abs(clean - 255 * np.moveaxis(images[idx].numpy(), 0, -1)[::3, ::3]).max() <= 0.501


class Pooled(torch.nn.Module):
    """Two classes by the mean of all pixels."""

    def forward(self, x):
        mean = x.mean(dim=(1, 2, 3))
        return torch.stack([mean, 0.3 - mean], dim=1)


def test_extras_are_chapters_of_the_page(answers, tmp_path):
    extras = Extras(
        versions=pd.DataFrame([{"stages": "sample (2)", "torch": "2.0<x>"}]), recorded="commit abc"
    )
    report.write(
        [entry(answers)], tmp_path, radii=[0.0], confidence=0.95, subject="", extras=extras
    )

    page = (tmp_path / "index.html").read_text()
    assert "sample (2)" in page and "2.0&lt;x&gt;" in page and "commit abc" in page
