"""A supervised command leaves no process behind, whoever ends, and however; signals stop it."""

import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from survivors import marked, until

from pipeline.workflow import processes

SUPERVISE = [sys.executable, "-m", "pipeline.workflow.supervise"]
STARTER = """
import subprocess, sys, time
files = [int(file) for file in sys.argv[1].split(",")]
subprocess.Popen(sys.argv[2:], stdin=subprocess.PIPE, pass_fds=files)
time.sleep(600)
"""
SAVING = """
import pathlib, signal, subprocess, sys, time
def save(*_):
    print("x" * 1_000_000, flush=True)  # more than a pipe holds
    pathlib.Path("saved").touch()
    sys.exit(1)
signal.signal(signal.SIGTERM, save)
pathlib.Path("ready").touch()
time.sleep(600)
"""
STUBBORN = """
import pathlib, signal, time
signal.signal(signal.SIGTERM, lambda *_: pathlib.Path("heard").touch())
pathlib.Path("ready").touch()
while True:
    time.sleep(600)
"""
SPARED = """
import pathlib, signal, subprocess, sys
signal.signal(signal.SIGTERM, lambda *_: pathlib.Path("told").touch())
subprocess.run([sys.executable, "saving.py"])
pathlib.Path("recorded").touch()
"""
LEAVING = """
import pathlib, subprocess, sys, time
subprocess.Popen([sys.executable, "stubborn.py"], start_new_session=True)
while not pathlib.Path("ready").exists():
    time.sleep(0.01)
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    scripts = {"saving": SAVING, "stubborn": STUBBORN, "leaving": LEAVING, "spared": SPARED}
    for name, script in scripts.items():
        (tmp_path / f"{name}.py").write_text(script)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def start(*command: str, **more: object) -> subprocess.Popen:
    return subprocess.Popen(command, stdin=subprocess.PIPE, **more)


@pytest.mark.parametrize(("script", "code"), [("exit 3", 3), ("kill -9 $$", 137)])
def test_the_exit_code_is_the_commands(script: str, code: int):
    with start(*SUPERVISE, "--", "sh", "-c", script) as process:
        assert process.wait(60) == code


def test_a_starter_killed_lets_the_command_save_and_frees_its_locks_last(
    here: Path, marker: dict[str, str]
):
    """Nobody reads what it prints any more, and that must not keep it from saving."""
    lock = os.open("lock", os.O_CREAT | os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)
    ours, theirs = os.pipe()
    supervised = [*SUPERVISE, "--drain", str(ours), "--", sys.executable, "saving.py"]
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTER, f"{lock},{ours}", *supervised],
        env=os.environ | marker,
        pass_fds=(lock, ours),
        stdout=theirs,
    )
    for file in (lock, ours, theirs):
        os.close(file)
    until((here / "ready").exists)
    (command,) = (p for p in marked(marker) if p.cmdline()[1:] == ["saving.py"])
    files = [os.readlink(file) for file in Path(f"/proc/{command.pid}/fd").iterdir()]
    assert str(here / "lock") not in files
    with (here / "lock").open() as again:
        with pytest.raises(BlockingIOError):
            fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)
        starter.kill()
        starter.wait()
        fcntl.flock(again, fcntl.LOCK_EX)

        assert (here / "saved").exists()
        until(lambda: not marked(marker))


def test_what_ignores_a_stop_is_killed_after_the_grace(here: Path, marker: dict[str, str]):
    """Also a command that is spared, after so many seconds."""
    command = ["--spare", "0.5", "--grace", "0.5", "--", sys.executable, "stubborn.py"]
    with start(*SUPERVISE, *command, env=os.environ | marker) as process:
        until((here / "ready").exists)
        began = time.monotonic()
        process.terminate()

        assert process.wait(60) == 128 + signal.SIGKILL
        assert time.monotonic() - began >= 0.5
    assert (here / "heard").exists()


def test_a_spared_command_gets_no_signal_and_what_it_started_does(
    here: Path, marker: dict[str, str]
):
    """So DVC is told by the end of its stage, and records what the stage made."""
    command = ["--spare", "60", "--", sys.executable, "spared.py"]
    with start(*SUPERVISE, *command, env=os.environ | marker, stdout=subprocess.DEVNULL) as process:
        until((here / "ready").exists)
        process.terminate()
        assert process.wait(60) == 0

    assert (here / "saved").exists() and (here / "recorded").exists()
    assert not (here / "told").exists()


def test_what_a_command_leaves_in_a_session_of_its_own_ends_with_it(
    here: Path, marker: dict[str, str]
):
    command = ["--grace", "0.5", "--", sys.executable, "leaving.py"]
    with start(*SUPERVISE, *command, env=os.environ | marker) as process:
        assert process.wait(60) == 0
    assert (here / "heard").exists()
    assert not marked(marker)


def test_a_command_gets_the_files_that_it_is_given_and_no_other(here: Path):
    code = "import os, sys; os.fstat(int(sys.argv[1]))"
    with (here / "file").open("w") as file:
        number = str(file.fileno())
        for given, expected in ((["--give", number], 0), ([], 1)):
            command = [*SUPERVISE, *given, "--", sys.executable, "-c", code, number]
            files = [file.fileno()]
            with subprocess.Popen(command, pass_fds=files, stdin=subprocess.PIPE) as process:
                assert process.wait(60) == expected


def test_a_signal_asks_to_stop_though_nobody_hears_of_it_unless_it_was_ignored():
    def say(line: str) -> None:
        raise BrokenPipeError

    stop, before = processes.Stop(), signal.getsignal(signal.SIGTERM)
    ignored = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        with processes.signals(stop, say):
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stop.wait(0.1)
            for number in (signal.SIGTERM, signal.SIGINT):
                os.kill(os.getpid(), number)
                assert stop.wait(30)
    finally:
        signal.signal(signal.SIGHUP, ignored)
    assert (stop.reason, stop.crashed) == ("stopped by SIGTERM", True)
    assert signal.getsignal(signal.SIGTERM) == before
