"""Locks: one process at a time, whoever is killed."""

import os
import socket
import subprocess
import sys

import pytest
from builders import refused

from rrcm.core import locks
from rrcm.core.errors import StageError

COUNTING = """
import sys
from pathlib import Path
from rrcm.core import locks
counter = Path(sys.argv[1]) / "counter"
for _ in range(40):
    with locks.alone(Path(sys.argv[1]) / "lock", "counting", say=lambda line: None):
        number = int(counter.read_text())
        counter.write_text("")  # where two were at it, one would read this
        counter.write_text(str(number + 1))
"""
HOLDING = """
import sys, time
from pathlib import Path
from rrcm.core import locks
with locks.alone(Path(sys.argv[1]), "holding", say=print):
    print("held", flush=True)
    time.sleep(600)
"""


def test_processes_at_the_same_work_take_turns(tmp_path):
    """Also when a lock is removed while others are about to take it."""
    (tmp_path / "counter").write_text("0")
    several = [subprocess.Popen([sys.executable, "-c", COUNTING, tmp_path]) for _ in range(4)]

    assert [process.wait(300) for process in several] == [0] * 4
    assert (tmp_path / "counter").read_text() == "160"
    assert [path.name for path in tmp_path.iterdir()] == ["counter"]


def test_a_lock_that_was_removed_between_opening_and_locking_it_is_none(tmp_path, monkeypatch):
    """As its last holder does: who locked that file would be alone with it, and not at the work."""
    path, real, opened = tmp_path / "lock", locks.lock, []

    def late(file):
        opened.append(file)
        if len(opened) == 1:
            path.unlink()
        return real(file)

    monkeypatch.setattr(locks, "lock", late)
    with locks.alone(path, "work", say=print), path.open() as another:
        assert len(opened) == 2 and not real(another.fileno())


def test_a_holder_is_named_and_has_freed_its_lock_when_it_is_killed(tmp_path):
    path, said = tmp_path / "a folder/lock", []
    with subprocess.Popen(
        [sys.executable, "-c", HOLDING, path], stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout.readline() == "held\n"
        with (
            refused(StageError, f"work: process {holder.pid} is at the same", f"kill {holder.pid}"),
            locks.alone(path, "work", say=said.append, patience=0.3),
        ):
            raise AssertionError("two at once")
        holder.kill()

    assert said == [f"work: waiting for process {holder.pid}, which is at the same work"]
    path.write_text("1;rm -r ~")  # by somebody who would have it typed
    with path.open() as other, refused(StageError, "work: process ? is at the same"):
        assert locks.lock(other.fileno())
        locks.alone(path, "work", say=print, patience=0.0).__enter__()
    with locks.alone(path, "work", say=said.append):
        assert path.read_text() == str(os.getpid())
    assert len(said) == 1 and not path.exists()


@pytest.mark.parametrize("kind", ["link", "name", "pipe", "socket", "folder"])
def test_what_another_user_put_in_the_place_of_a_lock_is_refused_at_once(tmp_path, kind):
    """A lock is emptied and written: of a link or a second name, that would be another file."""
    path, victim = tmp_path / "results.lock", tmp_path / "victim"
    victim.write_text("the work of years")
    if kind == "socket":
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
    else:
        make = {"link": path.symlink_to, "name": path.hardlink_to, "folder": lambda _: path.mkdir()}
        make.get(kind, lambda _: os.mkfifo(path))(victim)

    with refused(StageError, f"{path}: must be a plain file"), locks.alone(path, "work", say=print):
        raise AssertionError("it was taken")
    assert victim.read_text() == "the work of years"
