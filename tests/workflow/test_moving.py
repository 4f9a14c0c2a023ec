"""The state of an unfinished stage at the remote: what another clone finds, and what it costs."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from dvc.repo import Repo

from pipeline.workflow import moving
from pipeline.workflow.moving import Place

DIGEST = "0123456789abcdef" * 4
STAGE = "train@a"


@pytest.fixture
def clone(tmp_path: Path, monkeypatch) -> Callable[[str], Path]:
    """Enters a clone of the name; all share a remote."""

    def enter(name: str) -> Path:
        path = tmp_path / name
        if not path.exists():
            path.mkdir()
            Repo.init(str(path), no_scm=True).close()
            with (path / ".dvc/config").open("a") as file:
                file.write(
                    f"    remote = shared\n['remote \"shared\"']\n    url = {tmp_path}/remote\n"
                )
        monkeypatch.chdir(path)
        return path

    return enter


def state(text: str, name: str = STAGE) -> None:
    folder = moving.SCRATCH / name / DIGEST[:16]
    (folder / "deep").mkdir(parents=True, exist_ok=True)
    (folder / "state").write_text(text)
    (folder / "deep/log").write_text(f"log of {text}")


def found(name: str = STAGE) -> str:
    folder = moving.SCRATCH / name / DIGEST[:16]
    text = (folder / "state").read_text()
    assert (folder / "deep/log").read_text() == f"log of {text}"
    return text


def archives(tmp_path: Path) -> list[Path]:
    return [*(tmp_path / "remote").rglob("*.zip")]


def test_a_state_goes_from_clone_to_clone_and_back(clone, tmp_path: Path):
    clone("one")
    state("1")
    Place(STAGE, DIGEST).send()
    clone("other")
    assert Place(STAGE, DIGEST).fetch()
    assert found() == "1"
    state("2")
    assert not Place(STAGE, DIGEST).fetch()  # ours is what is there, or later
    assert found() == "2"
    Place(STAGE, DIGEST).send()
    assert len(archives(tmp_path)) == 1  # in place of the older one
    clone("one")
    state("1, a little later")
    assert Place(STAGE, DIGEST).fetch()  # another went on from there
    assert found() == "2"
    assert not Place(STAGE, DIGEST[::-1]).fetch()  # of other inputs there is none


def test_a_stage_finds_what_its_shares_left_and_forgets_it(clone, tmp_path: Path):
    clone("one")
    for share in ("1of2", "2of2"):
        with moving.moving(f"{STAGE}:{share}", DIGEST, keep=True, say=print):
            state(share, f"{STAGE}:{share}")
    assert len(archives(tmp_path)) == 2
    clone("other")
    assert Place(STAGE, DIGEST).fetch() == 2
    assert [found(f"{STAGE}:{share}") for share in ("1of2", "2of2")] == ["1of2", "2of2"]
    Place(STAGE, DIGEST).forget()
    assert not archives(tmp_path)


def test_a_half_sent_state_is_none(clone, tmp_path: Path):
    clone("one")
    state("1")
    Place(STAGE, DIGEST).send()
    (archive,) = archives(tmp_path)
    archive.chmod(0o644)
    archive.write_bytes(archive.read_bytes()[:-9])
    said: list[str] = []
    clone("other")
    with moving.moving(STAGE, DIGEST, say=said.append):
        assert not [*(moving.SCRATCH / STAGE).iterdir()]
    assert said == ["resume state stays on this host: File is not a zip file"]


def test_it_is_sent_now_and_then_and_removed_at_the_end(clone, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(moving, "PERIOD", 0.1)
    clone("one")
    with moving.moving(STAGE, DIGEST, say=print):
        state("1")
        while not archives(tmp_path):
            time.sleep(0.01)
    assert not archives(tmp_path)
    monkeypatch.setattr(moving, "PERIOD", 3600)
    with pytest.raises(ZeroDivisionError), moving.moving(STAGE, DIGEST, say=print):
        state("2")
        raise ZeroDivisionError  # as when it is stopped
    said: list[str] = []
    clone("other")
    with moving.moving(STAGE, DIGEST, say=said.append):
        assert found() == "2"
    assert said == [f"{STAGE}: goes on from what other clones left at the remote"]


def test_a_remote_that_is_away_or_not_there_fails_nothing(clone, tmp_path: Path):
    path = clone("one")
    (tmp_path / "remote").write_text("no folder")
    said: list[str] = []
    with pytest.raises(ZeroDivisionError), moving.moving(STAGE, DIGEST, say=said.append):
        state("1")
        raise ZeroDivisionError
    assert said and all(line.startswith("resume state stays on this host: ") for line in said)
    (path / ".dvc/config").write_text("[core]\n    no_scm = True\n")
    said.clear()
    with moving.moving(STAGE, DIGEST, say=said.append):
        assert found() == "1"
    assert len(said) == 1 and "no remote" in said[0].lower()
