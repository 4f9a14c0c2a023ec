"""Starts programs that end when this process ends; signals and waiting for locks, with a stop."""

import fcntl
import os
import re
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue

from pipeline.workflow import supervise
from rrcm.core.errors import StageError

POLL = 0.2

Say = Callable[[str], None]


class Stop(threading.Event):
    """An event that is set when work is to end, with the ``reason``.

    ``crashed``: no person asked for it, at the terminal or on Prefect's page.
    """

    reason: str = ""
    crashed: bool = False

    def ask(self, reason: str, *, crashed: bool = False) -> None:
        """Set the event; the first reason is kept."""
        if not self.reason:
            self.reason, self.crashed = reason, crashed
            self.set()


class Stopped(StageError):
    """Waiting ended because a stop was requested."""


def take(
    file: int,
    *,
    stop: threading.Event,
    why: str,
    kind: int = fcntl.LOCK_EX,
    say: Say = lambda line: None,
) -> None:
    """Lock an open file as soon as others have freed it; a process that ends frees its locks.

    Args:
        file: Stays locked until this process and all that inherit the file have closed it.
        stop: May be set at any time, and ends the waiting.
        why: The reason for waiting, for messages.
        kind: LOCK_EX or, to share the lock, LOCK_SH.
        say: Called once if the lock is not free.

    Raises:
        Stopped: ``stop`` was set before the lock was free.
    """

    def free() -> bool:
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    wait_until(free, stop=stop, why=why, say=say)


def wait_until(
    ready: Callable[[], bool],
    *,
    stop: threading.Event,
    why: str,
    say: Say = lambda line: None,
) -> None:
    """Return once ``ready()`` is true; see `take` for the arguments.

    Raises:
        Stopped: ``stop`` was set before.
    """
    if ready():
        return
    say(f"waiting for {why}")
    while not stop.wait(POLL / 2):
        if ready():
            return
    raise Stopped(f"stopped while it waited for {why}")


@contextmanager
def signals(stop: Stop, say: Say) -> Iterator[None]:
    """Let SIGTERM, SIGINT and SIGHUP set ``stop`` and do nothing else; ``say`` reports each.

    Signals that were ignored, as under nohup, still are. Outside of the main thread, where Python
    handles no signals, this has no effect.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # A handler may interrupt the main thread while it holds a lock that `set` needs. But putting
    # into a SimpleQueue is always safe, and another thread, which holds no lock, reads the queue.
    queue: SimpleQueue[int] = SimpleQueue()
    watcher = threading.Thread(target=_watch, args=(queue, stop, say), daemon=True)
    watcher.start()
    caught = [number for number in supervise.SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
    before = {one: signal.signal(one, lambda number, _: queue.put(number)) for one in caught}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        queue.put(0)
        watcher.join()


def _watch(queue: SimpleQueue[int], stop: Stop, say: Say) -> None:
    while number := queue.get():
        name, still = signal.Signals(number).name, "still " if stop.is_set() else ""
        stop.ask(f"stopped by {name}", crashed=number != signal.SIGINT)
        with suppress(OSError):  # the terminal may be gone
            say(f"{name}: {still}stopping; what was saved is kept")


def start(
    command: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    output: int | None = subprocess.PIPE,
    grace: float = supervise.GRACE,
    spare: float = 0.0,
    give: Sequence[int] = (),
    hold: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start a command that is stopped, with all its processes, when we end for any reason.

    SIGTERM to the returned process, or closing its standard input, stops it too. Both output
    streams of the command go to ``output``. ``grace`` and ``spare``: see `supervise`. The command
    inherits the files ``give``; the files ``hold`` stay open until all its processes have ended.
    It has our environment and what ``environment`` adds; `python` is this interpreter there, with
    this checkout's code before an installed version.
    """
    ours, theirs = os.pipe() if output == subprocess.PIPE else (None, output)
    options = ["--grace", str(grace), "--spare", str(spare)]
    options += [] if ours is None else ["--drain", str(ours)]
    options += [word for file in give for word in ("--give", str(file))]
    own = {"PATH": os.defpath, **os.environ, "PYTHONUNBUFFERED": "1", **(environment or {})}
    own["DVC_NO_ANALYTICS"] = "1"  # which it would send from another process
    for name, first in (("PATH", Path(sys.executable).parent), ("PYTHONPATH", Path.cwd())):
        own[name] = os.pathsep.join([str(first), *filter(None, [own.get(name)])])
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", supervise.__name__, *options, "--", *command],
            stdin=subprocess.PIPE,
            stdout=theirs,
            stderr=subprocess.STDOUT,
            env=own,
            pass_fds=(*give, *hold, *([] if ours is None else [ours])),
            start_new_session=True,  # Ctrl-C is for us to handle
        )
    finally:
        if ours is not None:
            os.close(theirs)
    process.stdout = None if ours is None else os.fdopen(ours, "rb", buffering=0)
    return process


def output(process: subprocess.Popen[bytes], stop: threading.Event) -> Iterator[tuple[str, bool]]:
    """Yield each line that a process prints, unless it is blank, and whether it is whole.

    A carriage return ends a line, too. What the last one has so far, such as a progress bar, is
    yielded while nothing arrives. The process is stopped when ``stop`` is set.
    """
    asked, data, part = False, b"more", b""
    while data:
        if stop.is_set() and not asked:
            asked = True
            process.terminate()
        whole = bool(select.select([process.stdout], [], [], POLL)[0])
        lines = [part]
        if whole and (data := os.read(process.stdout.fileno(), 1 << 16)):
            *lines, part = re.split(rb"[\r\n]+", part + data)
        for line in filter(bytes.strip, lines):
            yield line.decode(errors="replace"), whole


def run(command: Sequence[str], *, stop: threading.Event, say: Say) -> tuple[int, list[str]]:
    """Run a command to its end; return its exit code and its non-blank lines.

    ``say`` is called with each line as it arrives.

    Raises:
        Stopped: ``stop`` was set, and the command has ended.
    """
    lines = []
    with start(command) as process:
        for line, whole in output(process, stop):
            if whole:
                lines.append(line.rstrip())
                say(lines[-1])
    if stop.is_set():
        raise Stopped(f"stopped during {command[2]}")
    return process.returncode, lines
