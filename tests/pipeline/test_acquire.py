"""`rrcm data` and the stage after it: pictures stay in place, and DVC knows which they are."""

import shutil
from pathlib import Path

import lookalikes
import pytest
import workspace
from builders import refused
from workspace import Workspace

from pipeline.cli import data
from pipeline.runtime import graph
from pipeline.stages import shard
from rrcm.core.errors import DataError
from rrcm.data.splits import shards


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """A fresh checkout, in which we are."""
    made = workspace.create(tmp_path / "a checkout")
    made.edit(
        lambda p: p["data"].update(
            name="folder", test=0, validation=6, choice=0, size=24, channels=3, crop=0.75
        )
    )
    monkeypatch.chdir(made.path)
    return made


def examine(source: Path, **changes) -> str:
    return data.acquire("folder", source, **{"verify": False, "skip_unreadable": False} | changes)


def test_pictures_are_kept_by_their_manifest_without_a_copy(checkout: Workspace, tmp_path: Path):
    source = lookalikes.folders(tmp_path / "raw")
    (source / "train/dog/003.jpg").write_bytes(b"")
    with refused(DataError, f"--from {tmp_path / 'none'}: no such folder"):
        examine(tmp_path / "none")
    with refused(DataError, "dog/003.jpg", "--skip-unreadable"):
        examine(source)
    assert not Path("data").exists()

    said = examine(source, skip_unreadable=True)

    assert said.startswith("data/folder/manifest.json: 29 images (1 unreadable ones left out")
    assert said.endswith("new to data.dvc, which now lists folder: commit it")
    assert [path.name for path in Path("data").rglob("*.*")] == ["manifest.json"]
    assert sum(p.stat().st_size for p in Path(".dvc/cache").rglob("*") if p.is_file()) < 5000
    assert str(tmp_path) not in Path("data/folder/manifest.json").read_text()
    assert checkout.run("git", "check-ignore", ".rrcm/data/folder")
    shutil.rmtree("data")  # another machine, with the files elsewhere
    shutil.copytree(source, tmp_path / "elsewhere")
    assert examine(tmp_path / "elsewhere", skip_unreadable=True).endswith("as data.dvc has them")

    shard.main()
    split = shards.read(Path("shards"), "test")
    assert split.images.shape == (6, 3, 24, 24)
    assert split.images.encoded(3) == (source / "test/dog/001.png").read_bytes()
    assert [*Path("shards").iterdir()] and not [*graph.SCRATCH.rglob("*.tar")]


def test_bytes_that_changed_fail_the_stage_and_leave_its_result(checkout, tmp_path: Path):
    source = lookalikes.folders(tmp_path / "raw")
    examine(source)
    shard.main()
    before = checkout.digest("shards/*/*")
    path = source / "train/owl/000.jpg"
    path.write_bytes(path.read_bytes()[:-1] + b"!")

    with refused(DataError, "class folder train/owl", "`rrcm data folder --from DIR`"):
        shard.main()
    assert before and checkout.digest("shards/*/*") == before
    Path(".rrcm/data/folder").unlink()
    with refused(DataError, "`rrcm data folder --from DIR`"):
        shard.main()
