"""Raw data is what it was, shards are the same wherever they are built, and damage is noticed."""

import errno
import hashlib
import io
import os
import shutil
import signal
import time
import tracemalloc
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path

import lookalikes
import numpy as np
import pytest
from builders import listing, refused
from helpers import contents, few
from hypothesis import given
from hypothesis import strategies as st
from lookalikes import origin
from PIL import Image
from sklearn.datasets import load_digits
from webdataset.tariterators import group_by_keys, tar_file_expander

from benchmarks.drills.operations import Operations
from pipeline.runtime import training
from pipeline.stages import train
from rrcm.config.sections import Data
from rrcm.core.errors import ConfigError, DataError
from rrcm.core.files import sha256
from rrcm.data.datasets import digits
from rrcm.data.ingest import sharding
from rrcm.data.ingest.listing import Listing, Place
from rrcm.data.splits import pictures, shards
from rrcm.data.splits.pictures import Fit

PRESET = {"test": 500, "validation": 100, "choice": 200, "seed": 1}  # of presets/digits.yaml
LABELS = listing().labels.tolist()
CFG = Data(
    name="digits", seed=0, test=40, validation=20, choice=10, shard_size=64,
    size=8, channels=1, crop=1.0,
)  # fmt: skip
SEEN = Data(
    name="folder", seed=0, test=0, validation=3, choice=2, shard_size=5,
    size=24, channels=3, crop=0.75,
)  # fmt: skip


def part(some: slice) -> Listing:
    """Some of the digits."""
    whole = listing()
    keys = ("idx", "labels", "held", "images")
    return replace(whole, **{key: getattr(whole, key)[some] for key in keys})


SOME = part(slice(150))


def write(out: Path, images: Listing = SOME, cfg: Data = CFG, workers: int = 1, **changes) -> Path:
    cfg, scratch = replace(cfg, **changes), out.with_name("scratch")
    counts = [*sharding.write(images, out, cfg, scratch=scratch, workers=workers)]

    assert counts == sorted(counts) and counts[-1] == len(images.labels)
    assert not scratch.exists()
    return out


def pictured(root: Path, count: int = 24) -> Listing:
    """Picture files of three classes, the last quarter of them of a test split."""
    lookalikes.folders(root, parts=(("", count // 3),))
    files = sorted(root.rglob("*.*"))
    held = np.arange(len(files)) % 4 == 3
    return Listing(
        classes=("cat", "dog", "owl"),
        max_value=255,
        idx=np.where(held, np.cumsum(held), np.cumsum(~held)) - 1,
        labels=np.array([("cat", "dog", "owl").index(path.parent.name) for path in files]),
        held=held,
        images=[Place(path.name, str(path)) for path in files],
        size=sum(path.stat().st_size for path in files),
    )


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    return write(tmp_path_factory.mktemp("built") / "shards")


@pytest.fixture
def copy(built: Path, tmp_path: Path) -> Path:
    """Shards to damage."""
    return shutil.copytree(built, tmp_path / "shards")


def test_raw_data_is_the_pinned_one(tmp_path):
    digits.acquire(tmp_path, origin())
    assert sha256(tmp_path / digits.FILE) == digits.SHA256
    assert digits.SHA256.startswith("6ebb3d2fee24")  # scikit-learn 1.9.1


def test_images_and_labels_are_those_of_scikit_learn():
    whole, bunch = listing(), load_digits()

    assert whole.idx.tolist() == list(range(1797))
    assert LABELS == bunch.target.tolist()
    np.testing.assert_array_equal(whole.images[:, 0], bunch.images)
    assert whole.images.dtype == np.uint8


def test_altered_raw_data_is_refused_with_the_cure(tmp_path):
    digits.acquire(tmp_path, origin())
    path = tmp_path / digits.FILE
    path.write_bytes(path.read_bytes().replace(b"0", b"1", 1))

    with refused(DataError, str(path), "SHA-256", "`rrcm data digits` restores it"):
        digits.listing(tmp_path, tmp_path)
    digits.acquire(tmp_path, origin())

    assert digits.listing(tmp_path, tmp_path).labels[0] == 0


def test_certified_images_never_change():
    """Golden: computed once, by the rule of `split`, for presets/digits.yaml."""
    test = sharding.split(LABELS, **PRESET)["test"]

    assert test[:5] == [0, 1, 3, 7, 11]
    assert hashlib.sha256(str(test).encode()).hexdigest() == (
        "a747ceaf2c676c53eb4f06e2e2db80a82be07a89463a4f6a0579a7d42810a7af"
    )


def test_the_rule_is_the_documented_one():
    """Within a class, positions are ranked by SHA-256 of "seed/position"."""
    for seed in (0, 7):
        rows = sharding.split(LABELS, test=30, validation=20, choice=10, seed=seed)
        threes = sorted(
            (i for i, label in enumerate(LABELS) if label == 3),
            key=lambda i: hashlib.sha256(f"{seed}/{i}".encode()).hexdigest(),
        )

        assert [i for i in rows["test"] if LABELS[i] == 3] == sorted(threes[:3])
        assert [i for i in rows["validation"] if LABELS[i] == 3] == sorted(threes[3:5])
        assert [i for i in rows["choice"] if LABELS[i] == 3] == threes[5:6]


@few
@given(st.integers(1, 60), st.integers(1, 60), st.integers(0, 60), st.integers(0, 2**64))
def test_counts_that_classes_do_not_divide_are_met(test, validation, choice, seed):
    totals = {"test": test, "validation": validation, "choice": choice}
    rows = sharding.split(LABELS[:300], **totals, seed=seed)

    assert sorted(chain(*rows.values())) == list(range(300))
    for name, total in totals.items():
        share = Counter(LABELS[i] for i in rows[name])
        assert len(rows[name]) == total
        assert {share[c] for c in range(10)} <= {total // 10, -(-total // 10)}


def test_every_class_keeps_an_image_to_train_on():
    said = "164 test, 8 validation, 2 choice and at least 1 training images; lower data.test, "
    with refused(DataError, "class 8 has 174 images: too few for", said):
        sharding.split(LABELS, test=1640, validation=80, choice=20, seed=0)

    assert min(Counter(LABELS).values()) == 174
    assert sharding.split(LABELS, test=1630, validation=80, choice=20, seed=0)


def test_reading_gives_back_what_was_written(built):
    rows = sharding.split(LABELS[:150], test=40, validation=20, choice=10, seed=0)
    for name in shards.SPLITS:
        got = shards.read(built, name)

        assert got.name == name
        assert got.idx.tolist() == rows[name]
        assert got.labels.tolist() == [LABELS[i] for i in rows[name]]
        assert (got.classes, got.max_value) == (digits.CLASSES, digits.MAX_VALUE)
        np.testing.assert_array_equal(got.images, listing().images[rows[name]])
        assert got.images.dtype == np.uint8


def test_webdataset_reads_them(built: Path):
    """The format is that of the library, whose own reader finds the same images and labels."""
    got = shards.read(built, "train")
    samples = []
    for path in sorted((built / "train").glob("*.tar")):
        with path.open("rb") as stream:
            samples += group_by_keys(tar_file_expander([{"url": str(path), "stream": stream}]))

    assert [int(sample["__key__"]) for sample in samples] == got.idx.tolist()
    assert [int(sample["cls"]) for sample in samples] == got.labels.tolist()
    images = [np.load(io.BytesIO(sample["npy"])) for sample in samples]
    np.testing.assert_array_equal(images, got.images)


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
    assert len(contents(built)) == 4 + 3 + 3 + 3  # 80, 20, 10 and 40 images by 64, and two more


def test_a_damaged_split_is_refused(copy: Path):
    for name in ("000001.tar", "images.npy"):
        path = copy / "train" / name
        good = path.read_bytes()
        for raw, words in (
            (good[:-8], "truncated or altered"),
            (good[:-1] + b"!", "truncated or altered"),
            (None, "not found"),
        ):
            path.unlink() if raw is None else path.write_bytes(raw)
            with refused(DataError, str(path), words, "rrcm repro -f shard"):
                shards.read(copy, "train")
        path.write_bytes(good)

    assert len(shards.read(copy, "test").idx) == 40  # the other splits are as good as ever
    for text in (b'{"classes": [', b"\xff\xfe", b"{}", b"[]"):
        (copy / "test/index.json").write_bytes(text)
        with refused(DataError, "index.json: damaged", "rrcm repro"):
            shards.read(copy, "test")


def test_a_split_of_no_images_is_written_and_refused_with_the_way_out(tmp_path):
    out = write(tmp_path / "shards", choice=0)

    assert shards.read_index(out / "choice")["images"] == 0
    assert shards.fit(shards.read_index(out / "test")) == Fit(shape=(1, 8, 8), resize="exact")
    with refused(DataError, "shards/choice: no images: data.choice was 0", "`rrcm repro shard`"):
        shards.read(out, "choice")


class Broken(RuntimeError):
    """What no code foresees."""


def test_a_failing_build_leaves_what_was_there(built, tmp_path, monkeypatch):
    out = write(tmp_path / "shards")

    def fail(*_):
        raise Broken

    monkeypatch.setattr(sharding, "_index", fail)
    with pytest.raises(Broken):
        write(out, seed=1)

    assert contents(out) == contents(built)


# However many processes, and whatever happens to them.


def test_processes_do_not_matter(tmp_path: Path):
    images = pictured(tmp_path / "raw")
    one, three = (
        contents(write(tmp_path / f"{n}/shards", images, SEEN, workers=n)) for n in (1, 3)
    )

    assert one == three


def killed(images: Listing, out: Path, scratch: Path, *, at: int) -> bool:
    """Whether a build got so far that it was killed at an operation on files."""
    if not (pid := os.fork()):
        Operations(out.parent, at).install()
        for _ in sharding.write(images, out, CFG, scratch=scratch, workers=1):
            pass
        os._exit(0)
    return os.waitpid(pid, 0)[1] == signal.SIGKILL


def test_a_kill_at_any_operation_on_files_leaves_what_goes_on_to_the_same_bytes(
    built: Path, tmp_path: Path
):
    """Also one just after the shards came to their place, which notes in scratch outlive."""
    out, scratch, at = tmp_path / "shards", tmp_path / "scratch", 1
    while killed(SOME, out, scratch, at=at):
        [*sharding.write(SOME, out, CFG, scratch=scratch, workers=1)]
        assert contents(out) == contents(built), at
        assert not scratch.exists()
        at += 19

    assert at > 100


def test_a_note_is_trusted_only_beside_its_shard(built: Path, tmp_path: Path):
    out, scratch = tmp_path / "shards", tmp_path / "scratch"
    with suppress(InterruptedError):
        for done, _ in enumerate(sharding.write(SOME, out, CFG, scratch=scratch, workers=1), 1):
            if done == 3:
                raise InterruptedError
    gone, damaged, *_ = sorted(scratch.rglob("*.tar"))
    gone.unlink()
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")

    [*sharding.write(SOME, out, CFG, scratch=scratch, workers=1)]

    assert contents(out) == contents(built)


@pytest.mark.parametrize(("where", "code"), [("_pack", errno.ENOSPC), ("_index", errno.EFBIG)])
def test_a_full_disk_is_told_and_made_room_on(built, tmp_path, monkeypatch, code, where):
    out, scratch, real, calls = tmp_path / "shards", tmp_path / "scratch", sharding.atomic, []

    def atomic(path):
        calls.append(path)
        if (len(calls) == 2) if where == "_pack" else (path.name == "images.npy"):
            raise OSError(code, os.strerror(code), str(path))
        return real(path)

    monkeypatch.setattr(sharding, "atomic", atomic)
    with refused(DataError, str(scratch), os.strerror(code), "GB; make room") as caught:
        [*sharding.write(SOME, out, CFG, scratch=scratch, workers=1)]
    assert caught.value.retryable
    assert not out.exists() and not [*scratch.rglob("*.part")]
    kept = len([*scratch.rglob("*.tar")])
    monkeypatch.undo()

    assert kept == (1 if where == "_pack" else 5)
    [*sharding.write(SOME, out, CFG, scratch=scratch, workers=1)]
    assert contents(out) == contents(built)


def test_memory_does_not_grow_with_the_data(tmp_path: Path):
    """Of 96 pictures of a quarter of a megabyte each, no more than a few are in memory."""
    raw = tmp_path / "raw"
    raw.mkdir()
    one = np.random.default_rng(0).integers(0, 256, (300, 300, 3), dtype=np.uint8)
    Image.fromarray(one).save(raw / "0.bmp")
    size = (raw / "0.bmp").stat().st_size
    for i in range(1, 96):
        os.link(raw / "0.bmp", raw / f"{i}.bmp")
    many = Listing(
        classes=("a", "b"),
        max_value=255,
        idx=np.arange(96),
        labels=np.arange(96) % 2,
        held=np.zeros(96, dtype=bool),
        images=[Place(f"{i}.bmp", str(raw / f"{i}.bmp")) for i in range(96)],
        size=96 * size,
    )
    tracemalloc.start()
    try:
        write(tmp_path / "shards", many, replace(SEEN, test=2, validation=2, shard_size=50))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak < 12 * size, f"{peak / size:.1f} pictures were in memory"


# Picture files.


@pytest.fixture(scope="module")
def seen(tmp_path_factory) -> tuple[Listing, Path]:
    """Picture files, and their shards."""
    root = tmp_path_factory.mktemp("pictures")
    images = pictured(root / "raw")
    return images, write(root / "shards", images, SEEN)


def test_picture_files_keep_their_bytes(seen: tuple[Listing, Path]):
    images, out = seen
    by_name = {(held, i): n for n, (held, i) in enumerate(zip(images.held, images.idx))}  # noqa: B905
    for name in shards.SPLITS:
        split = shards.read(out, name)
        for row, idx in enumerate(split.idx):
            n = by_name[name == "test", idx]
            assert split.images.encoded(row) == Path(images.images[n].path).read_bytes()
            assert split.labels[row] == images.labels[n]
            assert split.images.name(row).endswith(f"{idx:08d}")


def test_pictures_are_an_array_of_what_evaluation_sees(seen: tuple[Listing, Path]):
    """Scaled to cover size / crop = 32 pixels, the central 24 cut out."""
    split = shards.read(seen[1], "test")
    fit = shards.fit(shards.read_index(seen[1] / "test"))
    files = [split.images.encoded(i) for i in range(len(split.idx))]
    whole = np.stack([pictures.read(io.BytesIO(raw), fit, name="it") for raw in files])

    assert split.images.shape == whole.shape == (6, 3, 24, 24) and len(split.images) == 6
    np.testing.assert_array_equal(split.images[:], whole)
    np.testing.assert_array_equal(split.images[2], whole[2])
    np.testing.assert_array_equal(split.images[-1], whole[-1])
    np.testing.assert_array_equal(split.images[np.array([4, 0, 4])], whole[[4, 0, 4]])
    np.testing.assert_array_equal(split.images[np.arange(6) % 2 == 0], whole[::2])
    np.testing.assert_array_equal(split.pixels([1]), whole[[1]].astype(np.float32) / 255)
    assert split.pixels().max() <= 1 and split.images[1:1].shape == (0, 3, 24, 24)
    assert fit == split.images.fit == Fit(shape=(3, 24, 24), resize="crop", ratio=0.75)


def test_pictures_in_colour_are_grey_for_networks_of_one_channel(seen, tmp_path: Path):
    images, _ = seen
    out = write(tmp_path / "shards", images, SEEN, channels=1)
    split, fit = shards.read(out, "test"), Fit(shape=(1, 24, 24), resize="crop", ratio=0.75)
    files = (images.images[row].path for row in np.flatnonzero(images.held))

    assert shards.fit(shards.read_index(out / "test")) == fit
    np.testing.assert_array_equal(split.images[:], [pictures.read(Path(f), fit) for f in files])


def test_only_training_pictures_are_shuffled_by_the_documented_rule(seen: tuple[Listing, Path]):
    images, out = seen
    free = np.flatnonzero(~images.held)
    labels = images.labels[free].tolist()
    chosen = sharding.split(labels, test=0, validation=3, choice=2, seed=0)
    order = sorted(chosen["train"], key=lambda i: hashlib.sha256(f"order/0/{i}".encode()).digest())

    assert shards.read(out, "train").idx.tolist() == images.idx[free[order]].tolist()
    assert order != sorted(order)
    assert shards.read(out, "test").idx.tolist() == [0, 1, 2, 3, 4, 5]
    for name in ("validation", "choice"):
        assert shards.read(out, name).idx.tolist() == images.idx[free[chosen[name]]].tolist()


def test_a_shard_that_shrinks_under_its_reader_is_named(seen, tmp_path: Path):
    copy = shutil.copytree(seen[1], tmp_path / "shards")
    split = shards.read(copy, "test")
    path = copy / "test/000000.tar"
    os.truncate(path, 1600)

    with refused(DataError, str(path), "cut short", "rrcm repro -f shard"):
        split.images.encoded(0)
    path.unlink()
    with refused(DataError, str(path), "No such file"):
        split.images.encoded(0)


def test_settings_that_do_not_go_with_the_images_are_refused(tmp_path):
    for changes, *words in (
        ({"test": 0}, "data.test: digits has no test split of its own"),
        ({"size": 32}, "data.size, data.crop", "[1, 8, 8]", "got 1, 32 and 1"),
        ({"crop": 0.875}, "data.size, data.crop", "got 1, 8 and 0.875"),
        ({"channels": 3}, "data.channels, ", "images of digits are [1, 8, 8]", "got 3, 8"),
    ):
        with refused(ConfigError, *words):
            write(tmp_path / "shards", **changes)


def test_a_network_of_other_images_is_refused_before_the_first_step(checkout, monkeypatch):
    monkeypatch.chdir(checkout.path)
    checkout.edit(lambda whole: whole["models"]["tiny"].update(image_size=16))

    with refused(ConfigError, "models.tiny.image_size: is 16, but the images have 8 x 8", "alike"):
        train.main("tiny-gaussian-s050")
    split = shards.read(Path("shards"), "test")
    with refused(ConfigError, "models.dncnn.channels: is 3, but the images have 1 channels"):
        training.require_fit("dncnn", {"channels": 3, "image_size": 8}, split)


@pytest.mark.parametrize(("pictures_too", "share"), [(False, 0.5), (True, 1e-6), (True, 0.5)])
def test_a_share_of_the_labels_is_that_of_every_class(built, tmp_path, pictures_too, share):
    root = built
    if pictures_too:
        root = write(tmp_path / "shards", pictured(tmp_path / "raw", 36), SEEN)
    whole = shards.read(root, "train")
    some, more = whole.labelled(share, seed=3), whole.labelled(min(1.0, 2 * share), seed=3)

    counts, kept = Counter(whole.labels.tolist()), Counter(some.labels.tolist())
    assert kept == {label: max(1, round(share * n)) for label, n in counts.items()}
    assert set(some.idx.tolist()) <= set(more.idx.tolist()) <= set(whole.idx.tolist())
    place = {idx: i for i, idx in enumerate(whole.idx.tolist())}
    rows = [place[idx] for idx in some.idx.tolist()]
    assert rows == sorted(rows)
    np.testing.assert_array_equal(some.pixels(), whole.pixels(np.array(rows)))
    np.testing.assert_array_equal(some.labels, whole.labels[rows])
