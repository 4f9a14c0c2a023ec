"""A command whose processes end with whoever started it: ``python -m pipeline.flow.supervise``.

The command runs in a session of its own. It is stopped when our standard input closes, which is
what happens when the process that holds its other end dies, even of SIGKILL; or by a signal to us.
Stopping is SIGTERM to its process group; when that is gone, to processes that it left in other
sessions; and after the grace SIGKILL to all that is left. A command that ends by itself leaves
nothing behind either. The exit code is the command's, or 128 + the signal that killed it.

Guarantee: when this process ends, so has every process that the command started, and theirs, in
whatever session; on Linux, where orphans become our children, and else as far as their parents
live. Files that we inherit stay open, and so their locks held, until then; the command gets those
that it is given by ``--give``. What SIGKILL to this very process leaves behind is not covered.
"""

import argparse
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

import psutil

GRACE = 30.0  # seconds from the first SIGTERM to SIGKILL
POLL = 0.05
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
PR_SET_CHILD_SUBREAPER = 36


class Supervisor:
    """A command at work."""

    def __init__(
        self, command: Sequence[str], *, grace: float, drain: int | None, give: Sequence[int]
    ) -> None:
        """Start it; ``drain`` is the other end of its output, to be read when nobody else does."""
        self.grace, self.drain = grace, drain
        self.asked = False  # to stop
        self.code: int | None = None
        self._wake, wake = os.pipe()
        for end in (self._wake, wake):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in SIGNALS:
            signal.signal(number, self._ask)
        self._files = {0, self._wake}
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, start_new_session=True, pass_fds=give
        )

    def _ask(self, *_: object) -> None:
        self.asked = True

    def wait(self) -> int:
        """The command's exit code, when nothing of it is left."""
        while self.code is None and not self.asked:
            self._pause(None)
        self._end()
        assert self.code is not None
        return self.code if self.code >= 0 else 128 - self.code

    def _pause(self, seconds: float | None) -> None:
        """Wait for a child's end, a signal, or the end of whoever started us; reap what ended."""
        for file in select.select([*self._files], [], [], seconds)[0]:
            if not _read(file) and file != self._wake:
                self._files.discard(file)
                if file == 0:
                    self.asked = True
                    self._files |= {self.drain} if self.drain is not None else set()
        self._reap()

    def _reap(self) -> None:
        while True:
            try:
                child, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if child == 0:
                return
            if child == self._process.pid:
                self._process.returncode = self.code = os.waitstatus_to_exitcode(status)

    def _end(self) -> None:
        """Stop what is left, gently at first."""
        deadline = time.monotonic() + self.grace
        told: set[psutil.Process] = set()
        while left := _descendants():
            group = [process for process in left if _group(process) == self._process.pid]
            for process in {*(group or left)} - told:
                told.add(process)
                send(process, signal.SIGTERM)
            if time.monotonic() >= deadline:
                for process in left:
                    send(process, signal.SIGKILL)
            self._pause(POLL)
        self._reap()


def _read(file: int) -> bytes:
    try:
        return os.read(file, 1 << 16)
    except BlockingIOError:
        return b""


def _descendants() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


def _group(process: psutil.Process) -> int | None:
    try:
        return os.getpgid(process.pid)
    except ProcessLookupError:
        return None


def send(process: psutil.Process, number: int) -> None:
    """Signal a process that may be gone."""
    try:
        process.send_signal(number)
    except (psutil.NoSuchProcess, psutil.AccessDenied):  # gone; or another user's, by sudo
        pass


def _adopt_orphans() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="supervise", description=__doc__)
    parser.add_argument("--grace", type=float, default=GRACE)
    parser.add_argument("--drain", type=int)
    parser.add_argument("--give", type=int, action="append", default=[])
    parser.add_argument("command", nargs="+")
    given = parser.parse_args()
    _adopt_orphans()
    supervisor = Supervisor(given.command, grace=given.grace, drain=given.drain, give=given.give)
    sys.exit(supervisor.wait())


if __name__ == "__main__":
    main()
