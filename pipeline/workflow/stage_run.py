"""Runs one stage in this checkout: takes GPUs, runs DVC, parses its output, returns the result.

A piece of a stage is run in the same way, but without DVC, which knows nothing of pieces.
"""

import codecs
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from threading import Event

from pipeline.runtime import graph
from pipeline.workflow import gpus, lockfile, locks, moving, pieces, processes
from pipeline.workflow.gpus import Taken
from pipeline.workflow.locks import Stopped
from rrcm.core.errors import StageError

LOCKS = Path(".rrcm/flow")
TAIL = 20  # lines of output in a failure
BAR = re.compile(r"(?P<title>.*?):? +(?P<percent>\d+)%\|.*?\| *(?P<rest>.*)")
ERROR = "error: "
UNKEPT = "ERROR: failed to transfer "
EXITED = re.compile(r"ERROR: .*failed to run: .*, exited with (-?\d+)")  # DVC's message
TORN = "'./dvc.lock' validation failed"  # read while another stage's DVC was writing it
TRIES = 5  # of a stage that ended with that
GOES_ON = "the same command"  # in errors that concern one try only: a retry resumes
_reading = threading.Lock()  # DVC reads the graph in one thread at a time


class Outcome(StrEnum):
    """The outcome of `dvc repro`."""

    RAN = "ran"
    RESTORED = "restored"  # from DVC's cache of runs
    CACHED = "cached"  # nothing had changed


@dataclass(frozen=True, kw_only=True, slots=True)
class Done:
    """A stage that succeeded; ``seconds`` do not include waiting for GPUs."""

    outcome: Outcome
    seconds: float


class Failed(StageError):
    """A stage failed; ``final``: by an error of its own, which a retry cannot fix."""

    def __init__(self, message: str, *, final: bool = False) -> None:
        """Store the message; like every error, it can be pickled."""
        super().__init__(message)
        self.final = final


def run(
    name: str,
    *,
    devices: int,
    forced: bool = False,
    pull: bool = False,
    move: bool = False,
    stop: Event,
    say: Callable[[str], None],
    progressed: Callable[[float, str], None],
) -> Done:
    """Have DVC bring one stage up to date, and only that one; or draw a piece of it (`pieces`).

    Guarantee: when this returns or raises, no process of the stage is left. If this process dies,
    even by SIGKILL, they are stopped at once, and the GPUs stay locked until they have ended. If a
    stage is run twice at once in a checkout, the second run waits and finds the first one's result.

    Args:
        name: Name of the stage in dvc.yaml, or of a piece.
        devices: GPUs of this host to take; 0: all.
        forced: Run it even if nothing changed.
        pull: Fetch the outputs from the remote, if a run with the same inputs pushed them.
        move: Go on from what other clones left at the remote, and leave there what is drawn or
            trained here, now and then (`moving`).
        stop: May be set at any time: the stage is stopped, and its saved state is kept.
        say: Called with each non-blank line of output; each update of a progress bar is a line.
        progressed: Called with the percentage and the text of a progress bar at each update.

    Raises:
        Stopped: ``stop`` was set before the stage was done.
        Failed: The stage failed, or DVC did.
        StageError: This host has fewer GPUs.
    """
    options = [*(["--force"] if forced else []), *(["--pull"] if pull else [])]
    stage, piece = pieces.split(name)
    LOCKS.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        file = stack.enter_context((LOCKS / f"{name}.lock").open("ab")).fileno()
        locks.take(file, stop=stop, why=f"another run of {name} in this checkout", say=say)
        held = stack.enter_context(gpus.taken(devices, stop=stop, say=say))
        if move or pieces.drawn(stage):
            with _reading:
                digest = graph.digest(stage)
        if move:
            stack.enter_context(moving.moving(name, digest, keep=bool(piece), say=say))
        if not piece and pieces.drawn(stage):
            pieces.gather(stage, digest)
        began = time.monotonic()
        tries = 0
        while True:
            tries += 1
            output = Output(name, say=say, progressed=progressed)
            with _started(name, options, held, hold=(file, *held.files)) as process:
                for data in processes.output(process, stop):
                    output.feed(data) if data else output.rest()
                output.end()
            if process.returncode == 0 and not output.unkept:
                if not piece:
                    pieces.clear(stage)
                return Done(outcome=output.outcome, seconds=time.monotonic() - began)
            if stop.is_set():
                raise Stopped(f"{name}: stopped; what it saved is kept, and a new run goes on")
            failure = output.failure(process.returncode)
            if TORN not in str(failure) or tries == TRIES:
                raise failure
            time.sleep(1.0)


def _started(
    name: str, options: Sequence[str], held: Taken, *, hold: Sequence[int]
) -> AbstractContextManager[subprocess.Popen[bytes]]:
    """The process of a stage or of a piece, which ends when we do."""
    stage, piece = pieces.split(name)
    if not piece:
        arguments = ["--single-item", *options, name]
        return lockfile.repro(arguments, environment=held.environment, hold=hold)
    own = {"PATH": processes.path(), "PYTHONUNBUFFERED": "1", **held.environment}
    command = [sys.executable, "-m", "pipeline.workflow.piece", stage, piece, *options]
    return processes.start(command, environment=os.environ | own, hold=hold)


class Output:
    """Parses the output of a stage into lines, progress and outcome."""

    def __init__(
        self,
        name: str,
        *,
        say: Callable[[str], None],
        progressed: Callable[[float, str], None],
    ) -> None:
        """Parse the output of the stage ``name``; see `run` for the callbacks."""
        self.name, self._say, self._progressed = name, say, progressed
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._part = ""
        self._bar = ""
        self._began = False  # whether the stage's command has started
        self.outcome = Outcome.RAN
        self._error = ""
        self._exit: int | None = None
        self.unkept = False  # DVC exits with 0, but dvc.lock has outputs that it could not cache
        self.tail: deque[str] = deque(maxlen=TAIL)

    def feed(self, data: bytes) -> None:
        """Process some output; a carriage return or a line feed completes a line."""
        *lines, self._part = re.split(r"[\r\n]+", self._part + self._decode(data))
        for line in lines:
            self._line(line)

    def rest(self) -> None:
        """Process a progress bar whose line is not complete, as no output arrives for now."""
        self._progress(self._part)

    def end(self) -> None:
        """Process the last line."""
        self._line(self._part + self._decode(b"", True))

    def _line(self, line: str) -> None:
        if not line.strip():
            return
        self._say(line)
        if self._progress(line):
            return
        self.tail.append(line)
        if line.startswith(ERROR):
            self._error = line.removeprefix(ERROR)
        self.unkept |= line.startswith(UNKEPT)
        if found := EXITED.fullmatch(line):
            self._exit = int(found[1])
        if not self._began:
            self._dvc(line)

    def _dvc(self, line: str) -> None:
        restored = (
            f"Stage '{self.name}' is cached - skipping run",
            f"Pulling data for stage: '{self.name}'",
        )
        if line == f"Running stage '{self.name}':":
            self._began, self.outcome = True, Outcome.RAN
        elif line == f"Stage '{self.name}' didn't change, skipping":
            self.outcome = Outcome.CACHED
        elif line.startswith(restored):
            self.outcome = Outcome.RESTORED

    def _progress(self, line: str) -> bool:
        if not (found := BAR.fullmatch(line)):
            return False
        if line != self._bar:
            self._bar = line
            self._progressed(float(found["percent"]), f"{found['title']}: {found['rest']}")
        return True

    def failure(self, code: int) -> Failed:
        """The failure, with the stage's own error if it printed one, else with its last lines."""
        exited = code if pieces.split(self.name)[1] else self._exit
        if self._error and exited == 1:
            told = self._error.removeprefix(f"{self.name}: ")
            return Failed(f"{self.name}: {told}", final=GOES_ON not in self._error)
        killed = {128 + number: f"killed by {number.name}" for number in signal.Signals}
        how = killed.get(code, "failed")
        return Failed(f"{self.name}: {how}\n" + "\n".join(self.tail))
