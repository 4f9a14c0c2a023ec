"""Batches on the device: the same rows and pixels, however they are made."""

import random
from dataclasses import asdict

import numpy as np
import pytest
import torch
from builders import images, refused, some
from lookalikes import encoded

from rrcm.core.errors import ConfigError, DataError
from rrcm.data.splits import pictures
from rrcm.data.splits.pictures import Fit
from rrcm.data.splits.shards import KIND, Pictures, Split
from rrcm.training.engine import distributed
from rrcm.training.engine.draws import Draws
from rrcm.training.engine.inputs import augment, loading, order

POLICY = {"randaugment": {"policy": "rand-m9-mstd0.5-inc1"}}
CROP = {"resized_crop": {"scale": [0.3, 1.0], "ratio": [0.75, 1.3333]}}
FLIP = {"flip": {"p": 0.5}}
VIEWS = {"first": [CROP, FLIP], "second": [CROP, {"gain": {"amount": 0.1}}], "plain": [FLIP]}
FIT = Fit(shape=(3, 16, 16), resize="crop", ratio=0.875)
SIZES = (7, 5, 8)  # images of each shard


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """A split of picture files: their bytes one after the other in three files."""
    folder = tmp_path_factory.mktemp("train")
    rows = np.zeros(sum(SIZES), dtype=KIND)
    files = {}
    for i, shard in enumerate(np.repeat(np.arange(3), SIZES)):
        raw, before = encoded(i % 3, i), files.setdefault(f"{shard:06d}.tar", b"")
        rows[i] = (100 + i, i % 3, shard, len(before), len(raw))
        files[f"{shard:06d}.tar"] = before + raw
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return Split(
        idx=rows["idx"].copy(),
        images=Pictures(folder, tuple(files), rows, FIT),
        labels=rows["label"].copy(),
        classes=("a", "b", "c"),
        max_value=255,
    )


@pytest.fixture(params=["arrays", "pictures"])
def source(request, photos):
    """A split, and views of it."""
    if request.param == "pictures":
        return photos, VIEWS | {"second": [POLICY, FLIP]}
    return images(sum(SIZES), (3, 8, 8)), VIEWS


def load(split, views, **changed):
    asked = {"batch_size": 6, "seed": 0, "start": 0, "stop": 4, "workers": 0, "where": "pretrain"}
    return [*loading.batches(split, views, device="cpu", **asked | changed)]


def assert_same(one, other):
    """Two lists of batches are equal, bit for bit."""
    found, expected = ([asdict(batch) for batch in batches] for batches in (one, other))
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_workers_and_the_step_of_resuming_do_not_matter(source):
    """Nor that there are fewer cores than asked for, of which torch would warn.

    Nor does the epoch that a step is in: an epoch is 3 steps. And no global generator moves.
    """
    torch.manual_seed(0)
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    whole = load(*source, stop=8)

    assert_same(load(*source, start=5, stop=8, workers=64), whole[5:])
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    assert np.random.get_state()[1].tolist() == before[2]


def test_what_is_skipped_is_not_read(photos, monkeypatch):
    read = []
    monkeypatch.setattr(Pictures, "encoded", lambda self, i: read.append(i) or encoded(0, i))
    load(photos, VIEWS, start=1000, stop=1001)

    assert len(read) == 6, "a picture is read once for all of its views"


def test_processes_that_share_a_batch_have_the_rows_of_one(source, monkeypatch):
    whole = load(*source)
    monkeypatch.setattr(distributed, "world", lambda: 3)
    for rank in range(3):
        monkeypatch.setattr(distributed, "rank", lambda rank=rank: rank)
        rows = slice(2 * rank, 2 * rank + 2)
        expected = [
            loading.Batch(
                step=batch.step,
                views={name: view[rows] for name, view in batch.views.items()},
                labels=batch.labels[rows],
                rows=batch.rows[rows],
            )
            for batch in whole
        ]

        assert_same(load(*source), expected)


def test_every_step_and_view_and_place_has_draws_of_its_own(source):
    """One image in all rows of all batches, and no two of its crops alike."""
    split, _ = source
    one = some(split, [0] * 6)
    found = load(one, {"first": [CROP], "second": [CROP]}, stop=3)

    views = torch.cat([view for batch in found for view in batch.views.values()])

    assert len(views.unique(dim=0)) == len(views) == 36


def test_without_augmentation_batches_are_what_evaluation_sees(photos):
    for split, shards in ((images(20, max_value=16), (20,)), (photos, SIZES)):
        for batch in load(split, {"plain": []}):
            rows = order.rows(batch.step, shards=shards, batch_size=6, seed=0).numpy()

            assert torch.equal(batch.views["plain"], torch.from_numpy(split.pixels(rows)))
            assert torch.equal(batch.labels, torch.from_numpy(split.labels[rows]))
            assert batch.rows.tolist() == rows.tolist()


def test_what_is_done_to_batches_comes_after_pictures(photos):
    """By hand: crop each picture with its own generator, then flip by the draws of the view."""
    (batch,) = load(photos, {"first": [CROP, FLIP]}, start=2, stop=3)
    made = augment.build([CROP, FLIP], where="", encoded=True)
    rows = order.rows(2, shards=SIZES, batch_size=6, seed=0).tolist()
    cropped = []
    for place, row in enumerate(rows):
        raw = photos.images.folder / photos.images.tars[photos.images.rows[row]["shard"]]
        offset, size = photos.images.rows[row]["offset"], photos.images.rows[row]["size"]
        path = raw.with_name("one.jpeg")
        path.write_bytes(raw.read_bytes()[offset : offset + size])
        picture = pictures.decode(path, 3, name="it")
        rng = random.Random(f"0/2/{place}/first")
        cropped.append(made.render(picture, FIT, rng, name="it"))
    x = torch.from_numpy(np.stack(cropped)).float() / 255

    expected = made(x, Draws(0, 2, purpose="augment/first"))

    torch.testing.assert_close(batch.views["first"], expected)


def test_arrays_are_no_pictures_for_randaugment():
    with refused(ConfigError, "pretrain: augment: randaugment works on picture files"):
        load(images(12, (1, 8, 8)), {"first": [POLICY]}, stop=1)


def test_a_damaged_picture_is_named_in_one_line(photos, monkeypatch):
    monkeypatch.setattr(
        Pictures, "encoded", lambda self, i: encoded(0, i)[: 300 if i == 3 else None]
    )

    with refused(DataError, "000000.tar:00000103: a damaged picture"):
        load(photos, VIEWS, workers=2)
