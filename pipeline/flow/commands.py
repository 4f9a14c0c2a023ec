"""Other programs, called so that they end with us, and in the middle of their work if need be."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Event, Thread

from pipeline.flow import supervise

POLL = 0.2


def path() -> str:
    """A PATH on which `python` is this one, as the commands of stages need it."""
    return f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"


def start(
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    output: int | None = subprocess.PIPE,
    grace: float = supervise.GRACE,
    files: Sequence[int] = (),
) -> subprocess.Popen[str]:
    """Start a command that is stopped, with all its processes, when we end, however we do.

    SIGTERM to the process returned stops it too. Both streams go to ``output``. The command
    inherits ``files``.
    """
    ours = [sys.executable, "-m", supervise.__name__, "--grace", str(grace)]
    given = [word for file in files for word in ("--give", str(file))]
    return subprocess.Popen(
        [*ours, *given, "--", *command],
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**environment, "PYTHONPATH": _first(environment)},
        pass_fds=files,
        start_new_session=True,  # Ctrl-C is for us to hear
    )


def _first(environment: Mapping[str, str]) -> str:
    """This checkout's code before any other that is installed."""
    more = environment.get("PYTHONPATH")
    return f"{Path.cwd()}:{more}" if more else str(Path.cwd())


def run(
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    stop: Event,
    say: Callable[[str], None],
) -> tuple[int, list[str]]:
    """Run a command to its end, or to that which ``stop`` makes; its exit code and its lines."""
    lines: list[str] = []

    def read() -> None:
        for line in process.stdout or ():
            if line.strip():
                lines.append(line.rstrip())
                say(lines[-1])

    with start(command, environment=environment) as process:
        try:
            reader = Thread(target=read, daemon=True)
            reader.start()
            while reader.is_alive():
                reader.join(POLL)
                if stop.is_set():
                    process.send_signal(signal.SIGTERM)
                    reader.join()
        finally:  # an error of our own must not leave it running
            process.send_signal(signal.SIGTERM)
            process.wait()
    return process.returncode, lines
