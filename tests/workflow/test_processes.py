"""Signals stop what runs, whoever listens."""

import subprocess
import sys

from workspace import ROOT

LISTENER_GONE = """
import os, signal
from pipeline.workflow import processes

def say(line):
    raise BrokenPipeError

stop = processes.Stop()
with processes.signals(stop, say):
    for number in (signal.SIGTERM, signal.SIGINT):
        os.kill(os.getpid(), number)
        assert stop.wait(30)
assert (stop.reason, stop.crashed) == ("stopped by SIGTERM", True)
"""


def test_a_signal_is_heeded_though_nobody_hears_of_it():
    done = subprocess.run(
        [sys.executable, "-c", LISTENER_GONE], cwd=ROOT, capture_output=True, text=True, timeout=300
    )

    assert (done.returncode, done.stderr) == (0, "")
