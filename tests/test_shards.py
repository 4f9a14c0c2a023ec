"""Raw data is what it was, shards are the same wherever they are built, and damage is noticed."""

import hashlib
import os
import time
from collections import Counter
from itertools import chain, combinations

import numpy as np
import pytest
from builders import examples, refused
from helpers import few
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_digits

from rrcm import shards
from rrcm.data import digits
from rrcm.errors import DataError
from rrcm.files import sha256
from rrcm.shards import Example

PRESET = {"test": 500, "validation": 100, "seed": 0}  # of presets/digits.yaml
SOME = examples()[:150]
LABELS = [example.label for example in examples()]


def write(out, images=SOME, **changes):
    arguments = {"test": 40, "validation": 20, "seed": 0, "shard_size": 64} | changes
    shards.write(images, out, classes=digits.CLASSES, white=digits.WHITE, **arguments)
    return out


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    return write(tmp_path_factory.mktemp("built") / "shards")


@pytest.fixture
def copy(built, tmp_path):
    """Shards to damage."""
    for path in built.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path


def test_raw_data_is_the_pinned_one(tmp_path):
    assert sha256(digits.fetch(tmp_path)) == digits.SHA256
    assert digits.SHA256.startswith("6ebb3d2fee24")  # scikit-learn 1.9.1


def test_images_and_labels_are_those_of_scikit_learn():
    bunch = load_digits()

    assert [e.idx for e in examples()] == list(range(1797))
    assert LABELS == bunch.target.tolist()
    np.testing.assert_array_equal([e.image[0] for e in examples()], bunch.images)
    assert examples()[0].image.dtype == np.uint8


def test_altered_raw_data_is_refused_with_the_cure(tmp_path):
    path = digits.fetch(tmp_path)
    path.write_bytes(path.read_bytes().replace(b"0", b"1", 1))

    with refused(DataError, str(path), "SHA-256", "`rrcm data digits` restores it"):
        next(digits.examples(tmp_path))
    digits.fetch(tmp_path)

    assert next(digits.examples(tmp_path)).label == 0


def test_missing_raw_data_names_the_command(tmp_path):
    with refused(DataError, "digits.csv: not found", "`rrcm data digits`"):
        next(digits.examples(tmp_path))


def test_an_altered_scikit_learn_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(digits, "SHA256", "0" * 64)

    with refused(DataError, "scikit-learn's copy", "requirements.lock"):
        digits.fetch(tmp_path)

    assert not list(tmp_path.iterdir())


def test_certified_images_never_change():
    """Golden: computed once, by the rule of `split`, for presets/digits.yaml."""
    test = shards.split(LABELS, **PRESET)["test"]

    assert test[:5] == [0, 10, 16, 26, 28]
    assert hashlib.sha256(str(test).encode()).hexdigest() == (
        "4489f4c61ed444359b2bc26d537a33aa6177ee523487c098e55ccc7d77d05d7a"
    )


def test_splits_are_disjoint_balanced_and_complete():
    rows = shards.split(LABELS, **PRESET)

    assert sorted(chain(*rows.values())) == list(range(1797))
    assert all(chosen == sorted(chosen) for chosen in rows.values())
    for name in ("test", "validation"):
        assert Counter(LABELS[i] for i in rows[name]) == dict.fromkeys(
            range(10), PRESET[name] // 10
        )


def test_the_rule_is_the_documented_one():
    """Within a class, positions are ranked by SHA-256 of "seed/position"."""
    for seed in (0, 7):
        rows = shards.split(LABELS, test=30, validation=20, seed=seed)
        threes = sorted(
            (i for i, label in enumerate(LABELS) if label == 3),
            key=lambda i: hashlib.sha256(f"{seed}/{i}".encode()).hexdigest(),
        )

        assert [i for i in rows["test"] if LABELS[i] == 3] == sorted(threes[:3])
        assert [i for i in rows["validation"] if LABELS[i] == 3] == sorted(threes[3:5])


def test_seeds_split_differently():
    tests = [set(shards.split(LABELS, **PRESET | {"seed": s})["test"]) for s in range(4)]

    for a, b in combinations(tests, 2):
        assert len(a & b) < 200  # 139 are expected, with a deviation of 8


@few
@given(st.permutations(range(10)))
def test_renaming_classes_moves_no_image(names):
    renamed = [names[label] for label in LABELS]

    assert shards.split(renamed, **PRESET) == shards.split(LABELS, **PRESET)


@few
@given(st.integers(1, 60), st.integers(1, 60), st.integers(0, 2**64))
def test_counts_that_classes_do_not_divide_are_met(test, validation, seed):
    rows = shards.split(LABELS[:300], test=test, validation=validation, seed=seed)

    for name, total in (("test", test), ("validation", validation)):
        share = Counter(LABELS[i] for i in rows[name])
        assert len(rows[name]) == total
        assert {share[c] for c in range(10)} <= {total // 10, -(-total // 10)}


def test_every_class_keeps_an_image_to_train_on():
    with refused(DataError, "class 8 has 174 images", "lower data.test or data.validation"):
        shards.split(LABELS, test=1640, validation=100, seed=0)

    assert min(Counter(LABELS).values()) == 174
    assert shards.split(LABELS, test=1630, validation=100, seed=0)


def test_reading_gives_back_what_was_written(built):
    rows = shards.split(LABELS[:150], test=40, validation=20, seed=0)
    for name in shards.SPLITS:
        got = shards.read(built, name)
        want = [examples()[i] for i in rows[name]]

        assert got.idx.tolist() == rows[name]
        assert got.labels.tolist() == [e.label for e in want]
        assert (got.classes, got.white) == (digits.CLASSES, digits.WHITE)
        np.testing.assert_array_equal(got.images, [e.image for e in want])
        assert got.images.dtype == np.uint8


def test_names_are_places_in_the_raw_data(tmp_path):
    """An image keeps its `idx` even where only some of the images are written."""
    out = write(tmp_path / "shards", images=examples()[1000:1150])

    assert min(shards.read(out, "test").idx) >= 1000


def test_shards_are_the_same_wherever_and_whenever_they_are_built(built, tmp_path, monkeypatch):
    later, mask = time.time() + 1e8, os.umask(0o077)
    monkeypatch.setattr(time, "time", lambda: later)
    monkeypatch.setenv("TZ", "Asia/Kathmandu")
    time.tzset()
    try:
        again = write(tmp_path / "elsewhere" / "shards")
    finally:
        os.umask(mask)
        monkeypatch.undo()
        time.tzset()

    assert contents(again) == contents(built)
    assert len(contents(built)) == 5  # 90 + 20 + 40 images in shards of 64, and the index


def test_another_seed_is_another_build(built, tmp_path):
    assert contents(write(tmp_path / "shards", seed=1)) != contents(built)


def truncate(path):
    os.truncate(path, path.stat().st_size - 512)


def alter(path):
    path.write_bytes(path.read_bytes().replace(b"\x10", b"\x0f", 1))


@pytest.mark.parametrize(
    ("damage", "words"),
    [(truncate, "truncated or altered"), (alter, "truncated or altered"), (os.unlink, "missing")],
)
def test_a_damaged_shard_is_refused(copy, damage, words):
    damage(copy / "train-000001.tar")

    with refused(DataError, "train-000001.tar", words, "dvc repro -f shard"):
        shards.read(copy, "train")

    assert len(shards.read(copy, "test").idx) == 40  # the other splits are as good as ever


def test_a_missing_index_is_refused(tmp_path):
    with refused(DataError, "index.json: not found", "`dvc repro shard`"):
        shards.read(tmp_path, "test")


@pytest.mark.parametrize("text", [b"", b'{"classes": [', b"\xff\xfe", b"{}", b"[]"])
def test_a_damaged_index_is_refused(copy, text):
    (copy / "index.json").write_bytes(text)

    with refused(DataError, "index.json: damaged", "dvc repro -f shard"):
        shards.read(copy, "test")


def test_an_index_of_other_images_is_refused(copy):
    path = copy / "index.json"
    first = shards.read_index(copy)["splits"]["test"]["idx"][0]
    path.write_text(path.read_text().replace(f"        {first},\n", "", 1))

    with refused(DataError, "images of split 'test' are not those of index.json"):
        shards.read(copy, "test")


@pytest.mark.parametrize("before", [True, False])
def test_a_failing_build_leaves_what_was_there(built, tmp_path, before):
    out = tmp_path / "shards"
    if before:
        write(out)
    broken = Example(idx=150, image=np.array([None]), label=0)  # cannot be saved without pickle

    with pytest.raises(ValueError, match="allow_pickle"):
        write(out, images=[*SOME, broken])

    assert [path.name for path in tmp_path.iterdir()] == ["shards"] * before
    assert not before or contents(out) == contents(built)


def test_a_new_build_replaces_the_old_one(built, tmp_path):
    """No shard of an earlier, larger build is left."""
    write(tmp_path / "shards", shard_size=8)

    assert contents(write(tmp_path / "shards")) == contents(built)


def test_pixels_are_shares_of_white(built):
    got = shards.read(built, "test")

    assert got.pixels().dtype == np.float32
    assert (got.pixels().min(), got.pixels().max()) == (0, 1)
    np.testing.assert_array_equal(got.pixels() * 16, got.images)
    np.testing.assert_array_equal(got.pixels(slice(3)), got.pixels()[:3])
    np.testing.assert_array_equal(got.pixels(5), got.pixels()[5])
