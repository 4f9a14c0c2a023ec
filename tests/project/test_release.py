"""release/ is a remote that DVC pulls from, has what is listed and no more, and is small."""

import shutil
import subprocess
from pathlib import Path

import pandas as pd
import pytest
from builders import refused
from dvc.repo import Repo
from PIL import Image
from workspace import ROOT

from pipeline.project import pulling, release
from pipeline.runtime.without_dvc import md5
from pipeline.workflow import lockfile
from rrcm.core.errors import ConfigError, DataError
from rrcm.core.schema import read_yaml
from rrcm.data.datasets.cifar10 import CLASSES

GRAPH = """
stages:
  shard:
    cmd: mkdir -p shards/test shards/train && echo a > shards/test/a && echo b > shards/train/b
    params: [data]
    outs: [shards/test, shards/train]
  train:
    cmd: mkdir -p models/one && echo c > models/one/weights
    outs: [models/one/weights]
  votes:
    cmd: mkdir -p votes && cp shards/test/a votes/one.jsonl && echo {name} >> votes/one.jsonl
    deps: [shards/test]
    outs: [votes/one.jsonl]
"""
CONFIG = """[core]
    no_scm = true
    analytics = false
    remote = release
['remote "release"']
    url = ../release
"""
LISTED = "digits: [shards/test, votes/*.jsonl]\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository whose stages have run."""
    monkeypatch.chdir(tmp_path)
    Repo.init(".", no_scm=True).close()
    Path(".dvc/config").write_text(CONFIG)
    reproduce("digits")
    Path("release").mkdir()
    Path("release/contents.yaml").write_text(LISTED)
    return tmp_path


def reproduce(name: str) -> None:
    Path("params.yaml").write_text(f"data: {{name: {name}}}\n")
    Path("dvc.yaml").write_text(GRAPH.format(name=name))
    with Repo(".") as repo:
        repo.reproduce()


def objects() -> set[Path]:
    return {file for file in release.STORE.rglob("*") if file.is_file()}


def test_dvc_pulls_from_it_what_is_listed(here: Path):
    assert release.renew() == "release: 3 objects, 0.0 MB"
    for folder in (".dvc/cache", "shards", "models", "votes"):
        shutil.rmtree(folder)
    Path("models/not-trained").mkdir(parents=True)  # DVC makes folders for all stages
    told = pulling.pull([], remote=None)

    assert told.endswith("; 2 of 4 outputs of dvc.lock are here")
    assert Path("votes/one.jsonl").read_text() == "a\ndigits\n"
    assert Path("shards/test/a").read_text() == "a\n"
    assert not Path("shards/train/b").exists()
    assert not Path("models").exists()  # DVC takes an empty folder for a changed one


def test_results_of_another_data_set_stay_without_their_cache_and_old_ones_go(here: Path):
    release.renew()
    before = objects()
    lockfile.switch("mnist")
    shutil.rmtree(".dvc/cache")
    reproduce("mnist")
    Path("release/contents.yaml").write_text(f"{LISTED}mnist: [votes/*]\n")

    release.renew()
    assert before < objects()
    new = objects() - before
    assert [file.read_text() for file in new] == ["a\nmnist\n"]
    Path("release/contents.yaml").write_text("mnist: [votes/*]\n")
    release.renew()
    assert objects() == new


@pytest.mark.parametrize(
    ("listed", "kind", "words"),
    [
        ("digits: [onnx/*]\n", ConfigError, "digits: no output of its stages is onnx/*"),
        ("digits: [votes/*]\n", DataError, "release: 0.0 MB, more than 0; shorten contents.yaml"),
    ],
)
def test_what_cannot_be_released_is_refused_and_the_last_release_stays(
    listed: str, kind: type, words: str, here: Path, monkeypatch: pytest.MonkeyPatch
):
    release.renew()
    before = objects()
    Path("release/contents.yaml").write_text(listed)
    monkeypatch.setattr(release, "LIMIT", 1.0)

    with refused(kind, words):
        release.renew()
    assert objects() == before
    shutil.rmtree(".dvc/cache")
    shutil.rmtree("release/files")
    Path("release/contents.yaml").write_text("digits: [votes/*]\n")
    with refused(DataError, "digits: votes/one.jsonl: neither in DVC's cache nor in release"):
        release.renew()


def test_the_release_of_this_repository_is_whole_and_small(tmp_path: Path, monkeypatch):
    """It has what is listed and nothing else: renewing it, without a cache, changes nothing.

    A plain `dvc pull` of a fresh clone finds all that dvc.lock and data.dvc name, but what git has.
    As committed: `make demo` and presets in use renew dvc.lock.
    """
    command = "git archive HEAD release data.dvc dvc.lock presets | tar -xC"
    subprocess.run(f"{command} {tmp_path}", cwd=ROOT, shell=True, check=True)
    monkeypatch.chdir(tmp_path)
    before = objects()
    release.renew()

    assert objects() == before
    assert all(md5(file) == file.parent.name + file.stem for file in before)
    stages = [*read_yaml(Path("dvc.lock"))["stages"].values(), read_yaml(Path("data.dvc"))]
    names = {file.parent.name + file.name for file in before}
    outs = [out for stage in stages for out in stage["outs"]]
    assert {out["path"] for out in outs if out["md5"] not in names} == {"metrics"}


def test_the_pictures_of_the_release_are_the_images_of_its_table():
    stages = read_yaml(ROOT / "presets/locks/cifar10.lock")["stages"]
    (out,) = [
        one
        for one in stages["certify@resnet9-gaussian-s025-e025"]["outs"]
        if one["path"].endswith(".csv")
    ]
    table = pd.read_csv(ROOT / "release/files/md5" / out["md5"][:2] / out["md5"][2:], comment="#")
    files = sorted((ROOT / "release/cifar10").glob("*/*.png"), key=lambda file: file.stem)

    assert [int(file.stem) for file in files] == table["idx"].tolist() == [*range(0, 10000, 20)]
    assert [CLASSES.index(file.parent.name) for file in files] == table["label"].tolist()
    for file in files:
        with Image.open(file) as picture:
            assert picture.size == (32, 32)
