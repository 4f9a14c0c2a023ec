"""Runs one stage in this checkout: takes GPUs, runs DVC, returns the result.

A share of an evaluation is run in the same way, but without DVC, which knows nothing of shares.
"""

import os
import re
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from threading import Event
from typing import Any

from dvc.exceptions import DvcException
from dvc.repo import Repo
from dvc.stage.loader import StageLoader

from pipeline.runtime import graph
from pipeline.workflow import careful_dvc, dvc_says, gpus, lockfile, moving, processes, splitting
from pipeline.workflow.plan import Node
from pipeline.workflow.processes import Say, Stopped
from rrcm.core.ending import MEND, RETRY
from rrcm.core.errors import StageError

LOCKS = Path(".rrcm/flow")
TAIL = 20  # lines of output in a failure
BAR = re.compile(r"(?P<title>.*?):? +(?P<percent>\d+)%\|.*?\| *(?P<rest>.*)")
ERROR = "error: "
_reading = threading.Lock()  # DVC reads the graph in one thread at a time


class Outcome(StrEnum):
    """How a stage ended."""

    DONE = "done"  # it ran, or DVC restored its outputs from its cache of runs
    CACHED = "cached"  # nothing had changed
    FAILED = "failed"
    SKIPPED = "skipped"  # a stage upstream failed
    STOPPED = "stopped"


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """The result of a stage; ``note`` has the reason why it was not brought up to date.

    ``seconds`` do not include waiting for GPUs. These are the columns of the table of stages on
    Prefect's page, too.
    """

    stage: str
    outcome: Outcome
    seconds: float = 0.0
    tries: int = 0
    note: str = ""


class Failed(StageError):
    """A stage failed, by an error of its own unless ``retryable``."""


def run(
    node: Node,
    *,
    pull: bool = False,
    move: bool = False,
    stop: Event,
    say: Say,
    progressed: Callable[[float, str], None],
) -> Result:
    """Have DVC bring one stage up to date, and only that one; or draw a share of it (`splitting`).

    Guarantee: when this returns or raises, no process of the stage is left. If this process dies,
    even by SIGKILL, they are stopped at once, and the GPUs stay locked until they have ended. If a
    stage is run twice at once in a checkout, the second run waits and finds the first one's result.

    Args:
        node: The stage of dvc.yaml, or a share of one.
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
    name, forced = node.name, node.forced
    arguments = ["--single-item", *["--force"] * forced, *["--pull"] * pull, name]
    stage, share = splitting.split(name)
    LOCKS.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        file = stack.enter_context((LOCKS / f"{name}.lock").open("ab")).fileno()
        processes.take(file, stop=stop, why=f"another run of {name} in this checkout", say=say)
        environment, slots = stack.enter_context(gpus.taken(node.devices, stop=stop, say=say))
        with _reading:
            if share and not forced and _known(stage, pull=pull):
                return Result(stage=name, outcome=Outcome.CACHED)
            digest = graph.digest(stage) if move or splitting.drawn(stage) else ""
        if move:
            stack.enter_context(moving.moving(name, digest, keep=bool(share), say=say))
        if not share:
            splitting.merge(stage, digest)
        began, before, hold = time.monotonic(), _recorded(stage), (file, *slots)
        output = Output(name, say=say, progressed=progressed)
        if share:
            command = [sys.executable, "-m", splitting.__name__, stage, share]
            start = processes.start(command, environment=environment, hold=hold)
        else:
            start = careful_dvc.repro(arguments, environment=environment, hold=hold)
        with start as process:
            for line, whole in processes.output(process, stop):
                output.feed(line) if whole else output.progress(line)
        if process.returncode != 0 or output.unkept:
            if stop.is_set():
                raise Stopped(f"{name}: stopped; what it saved is kept, and a new run goes on")
            raise output.failure(process.returncode)
        seconds = round(time.monotonic() - began, 1)
        if not share:
            splitting.clear(stage)
        same = not (share or forced) and _recorded(stage) == before
        outcome = Outcome.CACHED if same else Outcome.DONE
        return Result(stage=name, outcome=outcome, seconds=seconds)


def _recorded(stage: str) -> dict[str, Any]:
    """The entry of a stage in dvc.lock if all its outputs are here, else nothing."""
    entry: dict[str, Any] = lockfile.read().get(stage, {})
    return entry if all(map(os.path.exists, lockfile.hashes(entry))) else {}


def _known(stage: str, *, pull: bool) -> bool:
    """Whether DVC would restore the outputs of a stage instead of running it.

    The workspace and dvc.lock stay as they are. With ``pull``, what the remote has
    of a run with the present inputs is fetched into DVC's cache.
    """
    try:
        with Repo(".") as repo:
            (now,) = repo.stage.collect(stage)
            if pull:
                repo.stage_cache.pull(None)
            if now.changed_stage() or not now.deps_cached():  # dvc.lock has a run of other inputs
                now.save_deps()
                if not (run := repo.stage_cache._load(now)):
                    return False
                StageLoader.fill_from_lock(now, run)
            if pull:
                for objects in now.get_used_objs().values():
                    repo.cloud.pull(objects)
            return now.outs_cached()
    except DvcException:  # the remote does not answer
        return False


class Output:
    """Parses the output of a stage into lines, progress and outcome."""

    def __init__(self, name: str, *, say: Say, progressed: Callable[[float, str], None]) -> None:
        """Parse the output of the stage ``name``; see `run` for the callbacks."""
        self.name, self._say, self._progressed = name, say, progressed
        self._error = ""
        self._exit: int | None = None  # of the stage's command
        self.unkept = False  # whether DVC said so, see `dvc_says`
        self.tail: deque[str] = deque(maxlen=TAIL)

    def feed(self, line: str) -> None:
        """Process a whole line."""
        self._say(line)
        if self.progress(line):
            return
        self.tail.append(line)
        if line.startswith(ERROR):
            self._error = line.removeprefix(ERROR)
        self.unkept |= dvc_says.UNKEPT.fullmatch(line) is not None
        if exited := dvc_says.EXITED.fullmatch(line):
            self._exit = int(exited[1])

    def progress(self, line: str) -> bool:
        """Show a line, or the first part of one, if it is a progress bar; whether it is."""
        if bar := BAR.fullmatch(line):
            self._progressed(float(bar["percent"]), f"{bar['title']}: {bar['rest']}")
        return bar is not None

    def failure(self, code: int) -> Failed:
        """The failure, with the stage's own error if it printed one, else with its last lines."""
        exited = code if splitting.split(self.name)[1] else self._exit
        if self._error and exited in (MEND, RETRY):
            message = self._error.removeprefix(f"{self.name}: ")
            return Failed(f"{self.name}: {message}", retryable=exited == RETRY)
        killed = {128 + number: f"killed by {number.name}" for number in signal.Signals}
        how = killed.get(code, "failed")
        return Failed(f"{self.name}: {how}\n" + "\n".join(self.tail), retryable=True)
