"""dvc.lock has the results of one data set at a time, and those of the others are never lost."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from builders import refused

from pipeline.workflow import careful_dvc, lockfile
from pipeline.workflow.remote import pull
from rrcm.core.errors import StageError

LOCK = """schema: '2.0'
stages:
  shard:
    cmd: python -m pipeline.stages.shard
    params:
      params.yaml:
        data:
          name: {name}
  report:
    cmd: python -m pipeline.stages.report
    outs:
    - path: report
      md5: {name}
"""
DIGITS, MNIST = LOCK.format(name="digits"), LOCK.format(name="mnist")


class Killed(BaseException):
    """The end of this process."""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("dvc.lock").write_text(DIGITS)
    return tmp_path


def results() -> dict[str, str]:
    """The results that are kept, by data set; of one data set, those of dvc.lock count."""
    found = {path.stem: path.read_text() for path in Path("presets/locks").glob("*.lock")}
    lock = Path("dvc.lock")
    text = lock.read_text() if lock.exists() else ""
    return found | {name: text for name in ("digits", "mnist") if f"name: {name}\n" in text}


def test_each_data_set_has_its_results_back_when_its_preset_comes_back(here: Path):
    assert lockfile.switch("digits") == ""
    assert lockfile.switch("mnist") == "digits"
    assert not Path("dvc.lock").exists()
    Path("dvc.lock").write_text(MNIST)

    assert lockfile.switch("digits") == "mnist"
    assert Path("dvc.lock").read_text() == DIGITS
    assert [path.name for path in Path("presets/locks").iterdir()] == ["mnist.lock"]
    assert lockfile.switch("mnist") == "digits"
    assert Path("dvc.lock").read_text() == MNIST


@pytest.mark.parametrize("kept", [True, False])
def test_a_kill_at_any_write_loses_no_results(
    kept: bool, here: Path, monkeypatch: pytest.MonkeyPatch
):
    if kept:
        Path("presets/locks").mkdir(parents=True)
        Path("presets/locks/mnist.lock").write_text(MNIST)
    before, killed = results(), 0
    unlink = Path.unlink
    for last in range(5):
        Path("dvc.lock").write_text(DIGITS)
        left = last

        def or_die(work: Callable[..., None], *arguments: Any, **options: Any) -> None:
            nonlocal left
            if left == 0:
                raise Killed
            left -= 1
            work(*arguments, **options)

        with monkeypatch.context() as patch:
            patch.setattr(lockfile, "write_text", partial(or_die, lockfile.write_text))
            patch.setattr(Path, "unlink", lambda *path, **how: or_die(unlink, *path, **how))
            try:
                lockfile.switch("mnist")
            except Killed:
                killed += 1
        assert results() == before
        lockfile.switch("mnist")
        assert results() == before
        lockfile.switch("digits")

    assert killed >= 3


def test_results_of_no_data_set_stay_and_a_damaged_file_is_refused(here: Path):
    Path("dvc.lock").write_text("schema: '2.0'\nstages:\n  other:\n    cmd: a\n")
    assert lockfile.switch("mnist") == ""
    assert "other" in Path("dvc.lock").read_text()

    Path("dvc.lock").write_text("stages: {")
    with pytest.raises(StageError, match=r"^dvc.lock: "):
        lockfile.switch("mnist")
    assert Path("dvc.lock").read_text() == "stages: {"


def test_an_entry_that_has_changed_since_it_was_read_is_not_replaced(here: Path):
    known = lockfile.read()
    for made in ({"report": {"cmd": "a"}}, {"other": {"cmd": "a"}}):
        with refused(StageError, f"{min(made)}: ran meanwhile"):
            lockfile.adopt(made, over=known | {key: {"cmd": "b"} for key in made})
        assert lockfile.read() == known
    lockfile.adopt({"report": {"cmd": "a"}}, over=known)
    assert lockfile.read() == known | {"report": {"cmd": "a"}}


def test_where_dvc_locks_by_hard_links_everything_that_waits_for_it_is_refused(here: Path):
    """That lock waits for whoever made its file to remove it, which no process of ours does."""
    Path(".dvc").mkdir()
    for config in ("config", "config.local"):
        Path(".dvc", config).write_text("[core]\n    hardlink_lock = true\n")
        for work in (careful_dvc.mend, lambda: lockfile.adopt({}), lambda: pull({}, None)):
            with refused(StageError, "core.hardlink_lock", "dvc config --unset"):
                work()
        Path(".dvc", config).write_text("[core]\n    hardlink_lock = false\n")
    assert not Path(".dvc/tmp/lock").exists()
    careful_dvc.mend()
    Path(".dvc/config").write_text("[core\n")
    with refused(StageError, "config file error"):
        careful_dvc.mend()
