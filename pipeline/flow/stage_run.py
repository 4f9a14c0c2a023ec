"""One stage, run in this checkout: its GPUs, its command, its output, and how it ended."""

import codecs
import re
import signal
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from threading import Event

from pipeline.flow import gpus, lockfile, locks, processes
from pipeline.flow.locks import Stopped
from rrcm.core.errors import StageError

LOCKS = Path(".rrcm/flow")
TAIL = 20  # lines that a failure tells
BAR = re.compile(r"(?P<title>.*?):? +(?P<percent>\d+)%\|.*?\| *(?P<rest>.*)")
ERROR = "error: "
UNKEPT = "ERROR: failed to transfer "
EXITED = re.compile(r"ERROR: .*failed to run: .*, exited with (-?\d+)")  # DVC, of the command
GOES_ON = "the same command"  # an error that says so is one of this try only


class Outcome(StrEnum):
    """What `dvc repro` did."""

    RAN = "ran"
    RESTORED = "restored"  # from DVC's cache of runs
    CACHED = "cached"  # nothing had changed


@dataclass(frozen=True, kw_only=True, slots=True)
class Done:
    """A stage that ended well; ``seconds`` do not count waiting for GPUs."""

    outcome: Outcome
    seconds: float


class Failed(StageError):
    """A stage failed; ``final``: by an error of its own, which no second try can mend."""

    def __init__(self, message: str, *, final: bool = False) -> None:
        """Say why; it can be pickled, as every error may have to."""
        super().__init__(message)
        self.final = final


def run(
    name: str,
    *,
    devices: int,
    forced: bool = False,
    pull: bool = False,
    stop: Event,
    say: Callable[[str], None],
    progressed: Callable[[float, str], None],
) -> Done:
    """Have DVC bring one stage up to date, and only that one.

    Guarantee: when this returns or raises, no process of the stage is left. If this process dies
    instead, even of SIGKILL, they are stopped at once, and the GPUs are taken until they are gone.
    Of two runs of a stage in one checkout, the second waits, and then finds what the first made.

    Args:
        name: As in dvc.yaml.
        devices: GPUs of this host to take; 0: all.
        forced: Run it even if nothing changed.
        pull: Take what it makes from the remote, if a run of the very same inputs left it there.
        stop: May be set at any time: the stage is stopped, what it saved is kept.
        say: Called with each line of output that is not blank; a bar's next state is a line.
        progressed: Called with the percentage and the text of a bar, as it proceeds.

    Raises:
        Stopped: ``stop`` was set before it was done.
        Failed: The stage failed, or DVC did.
        StageError: This host has not as many GPUs.
    """
    options = [*(["--force"] if forced else []), *(["--pull"] if pull else [])]
    output = Output(name, say=say, progressed=progressed)
    LOCKS.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        file = stack.enter_context((LOCKS / f"{name}.lock").open("ab")).fileno()
        locks.take(file, stop=stop, why=f"another run of {name} in this checkout", say=say)
        held = stack.enter_context(gpus.taken(devices, stop=stop, say=say))
        began = time.monotonic()
        with lockfile.repro(
            ["--single-item", *options, name],
            environment=held.environment,
            hold=(file, *held.files),
        ) as process:
            for data in processes.output(process, stop):
                output.feed(data) if data else output.rest()
            output.end()
    if process.returncode == 0 and not output.unkept:
        return Done(outcome=output.outcome, seconds=time.monotonic() - began)
    if stop.is_set():
        raise Stopped(f"{name}: stopped; what it saved is kept, and a new run goes on")
    raise output.failure(process.returncode)


class Output:
    """The output of a stage, as lines."""

    def __init__(
        self,
        name: str,
        *,
        say: Callable[[str], None],
        progressed: Callable[[float, str], None],
    ) -> None:
        """Of the stage ``name``; see `run` for the rest."""
        self.name, self._say, self._progressed = name, say, progressed
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._part = ""
        self._bar = ""
        self._began = False  # the command of the stage
        self.outcome = Outcome.RAN
        self._error = ""
        self._exit: int | None = None
        self.unkept = False  # DVC ends well, and has entered in dvc.lock what it could not keep
        self.tail: deque[str] = deque(maxlen=TAIL)

    def feed(self, data: bytes) -> None:
        """Take some output; a line is complete when a return or a line feed has ended it."""
        *lines, self._part = re.split(r"[\r\n]+", self._part + self._decode(data))
        for line in lines:
            self._line(line)

    def rest(self) -> None:
        """Nothing comes for now: a bar is as far as it says, though its line has not ended."""
        self._progress(self._part)

    def end(self) -> None:
        """There is no more."""
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
        """Why it failed: by its own error, if it told one, or by what it last said."""
        if self._error and self._exit == 1:
            told = self._error.removeprefix(f"{self.name}: ")
            return Failed(f"{self.name}: {told}", final=GOES_ON not in self._error)
        killed = {128 + number: f"killed by {number.name}" for number in signal.Signals}
        how = killed.get(code, "failed")
        return Failed(f"{self.name}: {how}\n" + "\n".join(self.tail))
