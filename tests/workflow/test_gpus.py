"""One slot, one stage: whoever ends has freed its own, and nobody waits for ever."""

import os
import stat
import threading
from contextlib import ExitStack
from pathlib import Path
from threading import Event

import pytest
from builders import refused

from pipeline.workflow import gpus
from pipeline.workflow.processes import Stopped
from rrcm.core.errors import StageError


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host of its own, without GPUs."""
    monkeypatch.setenv("RRCM_SLOTS_DIR", str(tmp_path / "slots"))
    monkeypatch.setenv("RRCM_SLOTS", "2")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return tmp_path


def take(count: int, said: list[str] | None = None) -> tuple[dict[str, str], list[int]]:
    """What there is to take, or an error that it is not there now."""
    stop = Event()

    def say(line: str) -> None:
        if said is not None:
            said.append(line)
        stop.set()

    with gpus.taken(count, stop=stop, say=say) as held:
        return held


class Waiter(threading.Thread):
    """Somebody who takes slots, and holds them until told otherwise."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count, self.waits, self.has, self.leave = count, Event(), Event(), Event()
        self.start()

    def run(self) -> None:
        with gpus.taken(self.count, stop=Event(), say=lambda _: self.waits.set()):
            self.has.set()
            self.leave.wait(60)

    def end(self) -> None:
        self.leave.set()
        self.join(60)


def test_a_host_without_gpus_has_as_many_slots_as_it_is_told(monkeypatch: pytest.MonkeyPatch):
    assert gpus.names() == ("cpu", "cpu")
    assert take(1)[0] == {}  # as many threads as before: their number changes results
    monkeypatch.delenv("RRCM_SLOTS")
    assert gpus.names() == ("cpu",)
    for wrong in ("0", "-1", "two", ""):
        monkeypatch.setenv("RRCM_SLOTS", wrong)
        with refused(StageError, "RRCM_SLOTS", repr(wrong)):
            gpus.names()


def test_gpus_are_those_of_nvidia_smi_or_of_the_environment(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    program = folder / "bin/nvidia-smi"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 0; echo 1; echo 2\n")
    program.chmod(0o755)
    assert gpus.names() == ("0", "1", "2")
    with gpus.taken(2, stop=Event(), say=print) as held:
        assert held[0]["CUDA_VISIBLE_DEVICES"] == "0,1"
        assert take(1)[0]["CUDA_VISIBLE_DEVICES"] == "2"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2, GPU-b")
    assert gpus.names() == ("2", "GPU-b")
    assert take(0)[0]["CUDA_VISIBLE_DEVICES"] == "2,GPU-b"
    for none in ("", "-1", "-1,0"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", none)
        assert gpus.names() == ("cpu", "cpu")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    program.write_text("#!/bin/sh\nexit 9\n")  # there is no driver
    assert gpus.names() == ("cpu", "cpu")


def test_a_slot_is_held_as_long_as_a_file_of_it_is_open():
    with gpus.taken(2, stop=Event(), say=print) as held:
        inherited = os.dup(held[1][0])
    assert len(take(1)[1]) == 1
    said: list[str] = []
    with pytest.raises(Stopped):
        take(2, said)
    assert said == ["waiting for 2 of 2 slots of this host"]
    os.close(inherited)

    assert len(take(0)[1]) == 2
    with refused(StageError, "compute.devices: 3", "has 2", "0 takes them all"):
        take(3)


def test_who_waits_for_several_is_not_overtaken():
    """Neither by those for whom there is a slot now, nor by those for whom there soon is one."""
    first, second = Waiter(1), Waiter(1)
    assert first.has.wait(60) and second.has.wait(60)
    several = Waiter(2)
    assert several.waits.wait(60)
    later = Waiter(1)
    assert later.waits.wait(60)
    first.end()
    second.end()
    assert several.has.wait(60) and not later.has.is_set()
    several.end()
    assert later.has.wait(60)
    later.end()


def test_slots_are_in_a_folder_that_nobody_else_can_enter(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("RRCM_SLOTS_DIR")
    monkeypatch.setattr(gpus, "SHARED", folder)
    take(0)
    own = folder / f"rrcm-slots-{os.geteuid()}"
    assert stat.S_IMODE(own.stat().st_mode) == 0o700
    assert sorted(file.name for file in own.iterdir()) == [
        *("cpu-0.lock", "cpu-1.lock", "turn.lock")
    ]

    own.chmod(0o755)  # others can open its files, and lock them
    with refused(StageError, str(own), "mode 700", "RRCM_SLOTS_DIR"):
        take(1)
    own.rename(folder / "elsewhere")
    (folder / "elsewhere").chmod(0o700)
    own.symlink_to(folder / "elsewhere")
    with refused(StageError, str(own), "mode 700"):
        take(1)
    own.unlink()
    own.touch()
    with refused(StageError, str(own), "RRCM_SLOTS_DIR"):
        take(1)
    monkeypatch.setattr(os, "geteuid", lambda: 7)
    (folder / "rrcm-slots-7").mkdir(mode=0o700)  # made by somebody else, who can enter it
    with refused(StageError, "rrcm-slots-7: must be a folder of yours"):
        take(1)


def test_users_can_share_the_slots_of_a_folder_and_what_is_no_file_blocks_nobody(folder: Path):
    (folder / "slots").mkdir()
    (folder / "slots").chmod(0o1777)
    take(0)
    files = sorted((folder / "slots").iterdir())
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o644}
    with ExitStack() as stack:  # another user's file can be locked, though not written
        files[0].chmod(0o444)
        stack.enter_context(gpus.taken(2, stop=Event(), say=print))
    files[0].unlink()
    files[0].symlink_to(folder / "victim")
    with refused(StageError, "cpu-0.lock: must be a plain file"):
        take(1)
    (folder / "victim").touch(exist_ok=False)  # it has not been made
