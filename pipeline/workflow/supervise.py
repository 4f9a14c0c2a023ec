"""Runs a command that ends with the process that started it.

It is called as ``python -m pipeline.workflow.supervise``. The command runs in a session of its own.
It is stopped by a signal to us, or when our standard input closes, as it does when the process at
its other end dies, even by SIGKILL. To stop it, we send SIGTERM to its process group; when that has
ended, to processes that it left in other sessions; and, after a grace period, SIGKILL to all that
remain. With ``--spare`` the command itself gets no signal for so many seconds, only the processes
that it started: DVC ends by itself when the command of its stage has ended, and must not be stopped
while it writes dvc.lock. A command that ends by itself leaves no process behind either. The exit
code is the command's, or 128 + the signal that killed it.

Guarantee: when this process ends, all descendants of the command have ended, in any session; on
Linux, where orphans become our children, and elsewhere as long as their parents live. Files that
we inherit stay open, and so their locks held, until then; the command itself gets only those of
``--give``. The guarantee does not hold if this process itself is killed by SIGKILL.
"""

import argparse
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress

import psutil

GRACE = 30.0  # seconds from SIGTERM to SIGKILL
POLL = 0.05
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
PR_SET_CHILD_SUBREAPER = 36


class Supervisor:
    """A running command."""

    def __init__(self, given: argparse.Namespace) -> None:
        """Start it; ``drain`` is the read end of its output, for when nobody else reads it."""
        self._given = given
        self._stopping = False
        self._code: int | None = None
        self._files = [0]
        for number in SIGNALS:
            signal.signal(number, self._stop)
        self._process = subprocess.Popen(
            given.command, stdin=subprocess.DEVNULL, start_new_session=True, pass_fds=given.give
        )

    def _stop(self, *_: object) -> None:
        self._stopping = True

    def wait(self) -> int:
        """Wait until all its processes have ended; return the command's exit code."""
        while self._code is None and not self._stopping:
            self._pause()
        began, terminated = time.monotonic(), dict[psutil.Process, float]()
        while left := psutil.Process().children(recursive=True):
            now = time.monotonic()
            if now < began + self._given.spare:
                left = [process for process in left if process.pid != self._process.pid]
            group = [process for process in left if _group(process) == self._process.pid]
            for process in {*(group or left)} - {*terminated}:
                terminated[process] = now
                send(process, signal.SIGTERM)
            for process in left:
                if now >= terminated.get(process, began) + self._given.grace:
                    send(process, signal.SIGKILL)
            self._pause()
        self._reap()
        assert self._code is not None
        return self._code if self._code >= 0 else 128 - self._code

    def _pause(self) -> None:
        """Wait a moment, check whether our starter has ended, and reap ended processes."""
        for file in select.select(self._files, [], [], POLL)[0]:
            if not os.read(file, 1 << 16):
                self._files.remove(file)
                if file == 0:
                    self._stopping = True
                    self._files += [self._given.drain] if self._given.drain is not None else []
        self._reap()

    def _reap(self) -> None:
        with suppress(ChildProcessError):  # none is left
            while any(ended := os.waitpid(-1, os.WNOHANG)):
                child, status = ended
                if child == self._process.pid:
                    self._process.returncode = self._code = os.waitstatus_to_exitcode(status)


def _group(process: psutil.Process) -> int | None:
    try:
        return os.getpgid(process.pid)
    except ProcessLookupError:
        return None


def send(process: psutil.Process, number: int) -> None:
    """Send a signal to a process that may have ended."""
    with suppress(psutil.NoSuchProcess, psutil.AccessDenied):  # ended; or another user's, by sudo
        process.send_signal(number)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="supervise", description=__doc__)
    parser.add_argument("--grace", type=float, default=GRACE)
    parser.add_argument("--spare", type=float, default=0.0)
    parser.add_argument("--drain", type=int)
    parser.add_argument("--give", type=int, action="append", default=[])
    parser.add_argument("command", nargs="+")
    if sys.platform == "linux":  # orphans of the command become our children
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    sys.exit(Supervisor(parser.parse_args()).wait())


if __name__ == "__main__":
    main()
