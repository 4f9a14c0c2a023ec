"""On a terminal a command is never silent for long; nothing of that stays, nor is it in a file."""

import os
import pty
import re
import subprocess
import sys

import pytest
from workspace import ROOT

START = "import os, subprocess, sys, time\nfrom rrcm.cli import waiting\n"


def on_a_terminal(block: str) -> str:
    """What a terminal is sent by the block."""
    inner, outer = pty.openpty()
    code = f"{START}with waiting.shown():\n    {block}"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=outer, stderr=outer, cwd=ROOT
    ) as process:
        os.close(outer)
        sent = b""
        while True:
            try:
                sent += (part := os.read(inner, 4096))
            except OSError:  # how Linux tells the end
                break
            if not part:
                break
    os.close(inner)
    assert process.returncode == 0
    return sent.decode().replace("\r\n", "\n")


def test_the_seconds_are_shown_and_erased_before_anything_else():
    sent = on_a_terminal("time.sleep(2.6); print('done'); time.sleep(2.6); sys.exit(0)")

    first, second = sent.split("done\n")
    assert re.fullmatch(r"(\r\x1b\[Kat work, \d s)+\r\x1b\[K", first)
    assert "at work" in second
    assert second.endswith("\r\x1b[K")


@pytest.mark.parametrize(
    "block",
    [
        "print('50 %', end='', file=sys.stderr); time.sleep(1.6)",  # a progress bar
        "subprocess.run(['sleep', '1.6'])",
        "[(time.sleep(0.1), print('line')) for _ in range(16)]",
    ],
    ids=["behind an unfinished line", "beside another program", "while there is output"],
)
def test_nothing_is_shown(block: str):
    assert "at work" not in on_a_terminal(block)


def test_a_fork_may_write():
    """Its lock is not held by a thread that the fork does not have."""
    sent = on_a_terminal(
        "time.sleep(1.3); child = os.fork(); print('parent' if child else 'child', flush=True)\n"
        "    if not child: os._exit(0)\n"
        "    os.waitpid(child, 0)"
    )

    assert "child" in sent and "parent" in sent


def test_a_file_gets_what_the_command_writes():
    code = f"{START}with waiting.shown():\n    time.sleep(1.5); print('done')"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True
    )

    assert (done.stdout, done.stderr) == ("done\n", "")


def test_rrcm_has_it():
    """The whole command, from its start on."""
    inner, outer = pty.openpty()
    command = (
        "import sys, time; from rrcm.cli import main; sys.argv = ['rrcm', 'slow']; "
        "main.app.command('slow')(lambda: time.sleep(2.6)); main.main()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", command], stdout=outer, stderr=outer, cwd=ROOT
    ) as process:
        process.wait()
        sent = os.read(inner, 4096).decode()
    os.close(outer)
    os.close(inner)
    assert "at work" in sent
