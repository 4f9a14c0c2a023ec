"""Datasets in their true formats: read as they are, refused where they are not, never run."""

import gzip
import json
import os
import pickle
import shutil
import time
from multiprocessing import get_context
from pathlib import Path
from types import ModuleType

import lookalikes
import numpy as np
import pytest
from builders import refused
from helpers import contents
from lookalikes import origin
from torchvision.datasets import CIFAR10

from rrcm.config.sections import Data
from rrcm.core import pool, registry
from rrcm.core.errors import DataError
from rrcm.data.datasets import cifar10, folder, imagenet
from rrcm.data.ingest import manifest, sharding
from rrcm.data.ingest.listing import Contents, Listing, Origin

# CIFAR-10.


@pytest.fixture(scope="module")
def official(tmp_path_factory) -> Path:
    """The archive of a look-alike, and its folder beside it."""
    return lookalikes.cifar10(tmp_path_factory.mktemp("cifar10"))


def fetched(source: Path, root: Path) -> Listing:
    cifar10.acquire(root, origin(source))
    return cifar10.listing(root, root / "no link")


@pytest.mark.parametrize("form", ["archive", "batches"])
def test_cifar10_is_its_batches_in_their_order(official: Path, tmp_path: Path, form: str):
    """Rows are red, green and blue planes; the sixth batch is the test split."""
    folder_ = official.parent / cifar10.FOLDER
    found = fetched(official if form == "archive" else folder_, tmp_path)

    assert found.images.shape == (70, 3, 32, 32) and found.images.dtype == np.uint8
    for n in (0, 9, 10, 49, 50, 69):
        want = lookalikes.pixels(n % 10, n).transpose(2, 0, 1)
        np.testing.assert_array_equal(found.images[n], want)
    assert found.labels.tolist() == [n % 10 for n in range(70)]
    assert found.held.tolist() == [False] * 50 + [True] * 20
    assert found.idx.tolist() == [*range(50), *range(20)]
    assert found.classes[3] == "cat" and found.size == 70 * 3072
    raw = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert raw == {n: (folder_ / n).read_bytes() for n in cifar10.MD5}


def test_md5s_are_those_that_torchvision_checks():
    """Golden: torchvision.datasets.CIFAR10."""
    listed = dict([*CIFAR10.train_list, *CIFAR10.test_list])
    assert cifar10.MD5 == listed | {CIFAR10.meta["filename"]: CIFAR10.meta["md5"]}
    assert cifar10.ARCHIVE == CIFAR10.filename


@pytest.mark.parametrize("form", ["archive", "folder"])
def test_a_wrong_md5_is_refused_and_the_right_one_taken(official, tmp_path, monkeypatch, form):
    source = official if form == "archive" else official.parent
    with refused(DataError, str(source), "MD5", "--no-verify"):
        cifar10.acquire(tmp_path / "data", origin(source, verify=True))
    assert not (tmp_path / "data").exists()

    folder_ = official.parent / cifar10.FOLDER
    monkeypatch.setattr(cifar10, "MD5", {n: lookalikes.md5(folder_ / n) for n in cifar10.MD5})

    assert cifar10.acquire(tmp_path / "data", origin(source, verify=True)).endswith(": 70 images")


def altered(official: Path, to: Path, name: str, raw: bytes) -> Path:
    """The folder with another batch."""
    shutil.copytree(official.parent / cifar10.FOLDER, to / cifar10.FOLDER)
    (to / cifar10.FOLDER / name).write_bytes(raw)
    return to


class Evil:
    """Runs a command when it is unpickled."""

    def __reduce__(self) -> tuple:
        return os.system, ("touch hostile",)


class Instance:
    """Asks for an attribute of something harmless."""

    def __reduce__(self) -> tuple:
        return getattr, (np.ndarray, "tofile")


HOSTILE = {
    "posix.system": pickle.dumps({b"data": Evil(), b"labels": []}, protocol=2),
    "__builtin__.getattr": pickle.dumps(Instance(), protocol=2),
    "numpy.core.multiarray.scalar": b"\x80\x02cnumpy.core.multiarray\nscalar\n.",
    "os.system": b"(S'touch hostile'\nios\nsystem\n.",  # the opcode INST, of protocol 0
}


def test_a_hostile_pickle_is_refused_and_nothing_is_run(official, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for number, (asked, raw) in enumerate(HOSTILE.items()):
        source = altered(official, tmp_path / f"raw{number}", "data_batch_3", raw)
        with refused(DataError, "data_batch_3", f"asks for {asked}", "nothing of it was run"):
            cifar10.acquire(tmp_path / "data", origin(source))

    assert all(path.name.startswith("raw") for path in tmp_path.iterdir())


def batch(**changes) -> bytes:
    content = {"labels": [1, 2], "data": np.zeros((2, 3072), np.uint8)} | changes
    return lookalikes.python2_pickle({k: v for k, v in content.items() if v is not None})


DAMAGED = [
    (b"<html>not found</html>", "a web page (HTML)"),
    (b"not found", "damaged, or no pickle"),
    (lookalikes.python2_pickle([1]), "not a batch of CIFAR-10, but a list"),
    (batch(data=None), "without data and labels"),
    (batch(labels=[1]), "1 labels for data of shape (2, 3072)"),
    (batch(labels=[1, 10]), "a label is not one of 0 … 9"),
    (batch(data=np.zeros((2, 3071), np.uint8)), "2 labels for data of shape (2, 3071)"),
    (batch(data=np.zeros((2, 3072), np.float32)), "'f4' instead of bytes"),
    (batch(data=np.zeros((2, 3072), np.uint8, order="F")), "anything but bytes in C order"),
    (b"\x80\x02cnumpy\nndarray\n)R(K\x01K\x05\x85K\x00\x89U\x03abctb.", "anything but bytes"),
]


def test_a_damaged_batch_is_refused_by_name(official: Path, tmp_path: Path):
    for number, (raw, words) in enumerate(DAMAGED):
        source = altered(official, tmp_path / f"raw{number}", "test_batch", raw)
        with refused(DataError, "test_batch", words):
            cifar10.acquire(tmp_path / "data", origin(source))
    assert not (tmp_path / "data").exists()


def test_an_archive_that_is_none_is_refused(official: Path, tmp_path: Path):
    whole = official.read_bytes()
    wrong = {
        "cut.tar.gz": (whole[: len(whole) // 2], "truncated or no tar.gz"),
        "page.tar.gz": (b"<html>", "a web page (HTML)"),
        "text.tar.gz": (b"not found", "truncated or no tar.gz"),
        "other.tar.gz": (gzip.compress(lookalikes.tar({"a": b"b"})), "not the archive of CIFAR-10"),
    }
    for name, (raw, words) in wrong.items():
        (tmp_path / name).write_bytes(raw)
        with refused(DataError, name, words):
            cifar10.acquire(tmp_path / "data", origin(tmp_path / name))
    with refused(DataError, "no.tar.gz: not found", "expected cifar-10-python.tar.gz"):
        cifar10.acquire(tmp_path / "data", origin(tmp_path / "no.tar.gz"))
    with refused(DataError, "data_batch_1: not found", "expected the batches"):
        cifar10.acquire(tmp_path / "data", origin(tmp_path))


def test_without_an_archive_torchvision_downloads_it(official: Path, tmp_path, monkeypatch):
    """With a mirror that answers with a look-alike, then one that does not answer."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(CIFAR10, "tgz_md5", lookalikes.md5(official))

    lookalikes.mirror(monkeypatch, {official.name: official.read_bytes()})
    assert cifar10.acquire(Path("data/cifar10"), origin()) == "data/cifar10: 70 images"
    assert {path.name for path in Path("data/cifar10").iterdir()} == {*cifar10.MD5}

    lookalikes.mirror(monkeypatch, None)
    with refused(DataError, "torchvision cannot download it", "--from cifar-10-python.tar.gz"):
        cifar10.acquire(Path("data/cifar10"), origin())


# Picture files: what is in a place, and its manifest.


def examined(dataset: ModuleType, source: Path, root: Path, *, skip: bool = False) -> Listing:
    """As `rrcm data` leaves it, and the stage finds it."""
    place, link = root / dataset.__name__.rpartition(".")[2], root / "link"
    asked = Origin(path=source, verify=False, skip_unreadable=skip, link=link)
    manifest.acquire(place, asked, dataset.tree(source))
    return dataset.listing(place, link)


def built(found: Listing, to: Path, **changes) -> dict[str, bytes]:
    """The files of the shards of a listing."""
    values = {
        "name": "it",
        "seed": 0,
        "test": 0,
        "validation": 3,
        "choice": 0,
        "shard_size": 10,
        "channels": 3,
    }
    cfg = Data(**values | {"size": 32, "crop": 0.875} | changes)
    [*sharding.write(found, to / "shards", cfg, scratch=to / "scratch", workers=1)]
    return contents(to / "shards")


def test_imagenet_is_in_the_usual_order_and_complete(tmp_path: Path, monkeypatch):
    """Classes by WordNet id; images by class and name, as torchvision's ImageFolder has them."""
    source = lookalikes.imagenet(tmp_path / "raw")
    found = examined(imagenet, source, tmp_path)
    for part, held in (("train", False), ("val", True)):
        paths = sorted((source / part).rglob("*.JPEG"))
        rows = np.flatnonzero(found.held == held)

        assert [found.images[i].path for i in rows] == [*map(str, paths)]
        assert [found.classes[found.labels[i]] for i in rows] == [p.parent.name for p in paths]
        assert found.idx[rows].tolist() == [*range(len(paths))]
    assert found.classes == tuple(sorted(lookalikes.WNIDS[:3]))
    made = (tmp_path / "imagenet/manifest.json").read_text()
    assert str(tmp_path) not in made and len(made) < 1500

    asked = Origin(path=source, verify=True, skip_unreadable=False, link=tmp_path / "link")
    with refused(DataError, "24 train pictures of 3 classes", "1,281,167 of 1,000", "--no-verify"):
        imagenet.acquire(tmp_path / "data", asked)
    monkeypatch.setattr(imagenet, "CONTENTS", Contents(train=24, test=6, classes=3))
    assert imagenet.acquire(tmp_path / "data", asked).endswith("manifest.json: 30 images")
    shutil.rmtree(source / "val")
    with refused(DataError, f"{source / 'val'}: not found", "torchvision.datasets.ImageNet"):
        imagenet.tree(source)


# Anybody's folders.


def test_folders_may_have_a_test_split_or_not(tmp_path: Path):
    for name, parts in {
        "test": (("train", 8), ("test", 2)),
        "val": (("train", 8), ("val", 2)),
        "none": (("train", 8),),
        "bare": (("", 8),),
    }.items():
        source = lookalikes.folders(tmp_path / name / "raw", parts=parts)
        (source / "README.txt").write_text("not a picture")
        for hidden in (".cache", "cat/.ipynb_checkpoints"):
            (source / parts[0][0] / hidden).mkdir(parents=True)
            (source / parts[0][0] / hidden / "000.png").write_bytes(b"no picture")
        found = examined(folder, source, tmp_path / name)

        assert found.classes == ("cat", "dog", "owl")
        assert found.held.sum() == 6 * (name in ("test", "val"))
        assert np.bincount(found.labels[~found.held]).tolist() == [8, 8, 8]
        assert found.size == sum(Path(p.path).stat().st_size for p in found.images)
        built(found, tmp_path / name, test=0 if name in ("test", "val") else 3)


def test_folders_that_do_not_fit_are_named(tmp_path: Path):
    for number, (change, words) in enumerate(
        (
            (lambda raw: shutil.rmtree(raw / "test/owl"), "owl is in train, but missing from test"),
            (lambda raw: shutil.rmtree(raw / "train/owl"), "owl is in test, but missing from"),
            (lambda raw: (raw / "train/emu").mkdir(), "class folder train/emu has no pictures"),
            (lambda raw: shutil.copytree(raw / "test", raw / "val"), "has both test/ and val/"),
            (lambda raw: [shutil.rmtree(p) for p in (raw / "test").iterdir()], "test: no folders"),
            (lambda raw: (raw / "valid").mkdir(), "valid: a part, by its name"),
            (lambda raw: (raw / "train").rename(raw / "Training"), "Training: a part, by its name"),
            (lambda raw: (raw / "train/a.png").touch(), "pictures of no class, beside its folders"),
            (
                lambda raw: [
                    shutil.rmtree(raw / p / c) for p in ("train", "test") for c in ("cat", "dog")
                ],
                "one class folder, owl; is it one level too",
            ),
        )
    ):
        source = lookalikes.folders(tmp_path / str(number))
        change(source)
        with refused(DataError, str(source), words):
            folder.tree(source)


def test_unreadable_pictures_are_told_by_path_or_skipped_and_listed(tmp_path: Path):
    source = tmp_path / "raw"
    lookalikes.folders(source, parts=(("train", 8), ("val", 2)))
    broken = source / "train/dog/004.png"
    broken.write_bytes(broken.read_bytes()[:200])
    (source / "train/owl/000.jpg").write_bytes(b"")

    with refused(DataError, str(broken), "--skip-unreadable"):
        examined(folder, source, tmp_path)
    assert not [*tmp_path.rglob("manifest.json")]

    found = examined(folder, source, tmp_path, skip=True)
    (path,) = tmp_path.rglob("manifest.json")
    told = json.loads(path.read_text())
    assert told["skipped"] == ["train/dog/004.png", "train/owl/000.jpg"]
    assert told["parts"]["train"]["dog"]["images"] == 7
    assert len(found.images) == 28 and str(broken) not in [p.path for p in found.images]
    assert found.idx[~found.held].tolist() == [i for i in range(24) if i not in (12, 16)]
    assert len(built(found, tmp_path)) > 6


# The manifest keeps its promise.


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A folder dataset that has been examined: raw/ and folder/manifest.json."""
    examined(folder, lookalikes.folders(tmp_path / "raw"), tmp_path)
    return tmp_path


def again(root: Path) -> Listing:
    return folder.listing(root / "folder", root / "link")


def test_a_changed_byte_fails_the_build_and_names_the_class(kept: Path):
    path = kept / "raw/train/dog/001.png"
    raw = path.read_bytes()
    path.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))

    with refused(
        DataError, "class folder train/dog are not those", "`rrcm data folder --from DIR`"
    ):
        built(again(kept), kept)
    assert not (kept / "shards").exists() and not (kept / "scratch").exists()

    path.write_bytes(raw)
    assert built(again(kept), kept)  # nothing of the failed build was gone on from


def test_a_missing_or_a_new_picture_names_the_class(kept: Path):
    path = kept / "raw/test/owl/001.png"
    raw = path.read_bytes()
    path.unlink()
    with refused(DataError, "class folder test/owl has 1 pictures, the manifest 2"):
        again(kept)
    path.write_bytes(raw)
    shutil.copy(path, path.with_name("007.png"))
    with refused(DataError, "class folder test/owl has 3 pictures, the manifest 2"):
        again(kept)


def test_a_dataset_may_move(kept: Path):
    before = built(again(kept), kept / "one")
    (kept / "raw").rename(kept / "elsewhere")
    with refused(DataError, str(kept / "raw"), "`rrcm data folder --from DIR` if it moved"):
        again(kept)
    (kept / "link").write_text(str(kept / "elsewhere"))

    assert built(again(kept), kept / "two") == before
    (kept / "link").unlink()  # another machine
    with refused(DataError, "is not known", "`rrcm data folder --from DIR`"):
        again(kept)


def test_a_damaged_manifest_is_refused(kept: Path):
    for text in ("{", "[]", '{"parts": {}, "skipped": 3}'):
        (kept / "folder/manifest.json").write_text(text)
        with refused(DataError, "manifest.json: damaged", "`rrcm data folder --from DIR`"):
            again(kept)


# Every dataset, and all cores.


def test_datasets_list_what_is_there_or_name_the_command(tmp_path: Path):
    for name in registry.names("datasets"):
        with refused(DataError, "not found", f"`rrcm data {name.replace('_', '-')}"):
            registry.load("datasets", name).listing(tmp_path / name, tmp_path / "link")


def square(number: int) -> int:
    return number**2


def die(number: int) -> int:
    os.kill(os.getpid(), 9)


def refuse(number: int) -> int:
    raise DataError(f"number {number}: refused")


@pytest.mark.parametrize("workers", [1, 2])
def test_results_come_in_the_order_of_tasks(workers: int):
    assert [*pool.spread(square, range(40), workers=workers)] == [i**2 for i in range(40)]


def test_errors_and_deaths_of_a_process_are_told():
    with refused(DataError, "number 0: refused"):
        [*pool.spread(refuse, range(9), workers=2)]
    with refused(DataError, "one of 2 processes was killed"):
        [*pool.spread(die, range(9), workers=2)]


def linger(folder_: Path) -> None:
    (folder_ / str(os.getpid())).touch()
    time.sleep(60)


def keep_busy(folder_: Path) -> None:
    [*pool.spread(linger, [folder_] * 2, workers=2)]


def test_workers_end_with_a_killed_parent(tmp_path: Path):
    parent = get_context("fork").Process(target=keep_busy, args=(tmp_path,))
    parent.start()
    until = time.monotonic() + 120
    while len(workers := [int(path.name) for path in tmp_path.iterdir()]) < 2:
        assert time.monotonic() < until
        time.sleep(0.01)

    parent.kill()
    parent.join()

    while any(Path(f"/proc/{worker}/exe").exists() for worker in workers):  # a zombie has none
        assert time.monotonic() < until
        time.sleep(0.05)
