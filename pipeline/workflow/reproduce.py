"""``rrcm repro``: `dvc repro`, protected from signals that would interrupt it while it writes.

With ``--jobs``, several stages run at a time, each by a `dvc repro` of its own.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pipeline.workflow import careful_dvc, gpus, lockfile, plan, schedule, splitting, stage_run
from pipeline.workflow.plan import Node
from pipeline.workflow.processes import POLL, Say, Stop, signals
from pipeline.workflow.schedule import GOOD
from pipeline.workflow.stage_run import Outcome, Result
from rrcm.config import sections
from rrcm.core import progress
from rrcm.core.ending import INTERRUPTED
from rrcm.core.errors import ConfigError, StageError

ALLOW_MISSING = "--allow-missing"
WAITING = "OMP_WAIT_POLICY"


def reproduce(arguments: Sequence[str], *, jobs: int = 1, shares: int = 1, say: Say) -> int:
    """Run `dvc repro` with these arguments, or `side_by_side`; return an exit code.

    Guarantee: Ctrl-C, SIGTERM and SIGHUP stop only the running stage, which keeps its saved state;
    DVC, in a session of its own, then records the outputs and ends. The same holds if this process
    dies, even by SIGKILL. See `careful_dvc` for a kill of DVC itself.

    Raises:
        StageError: dvc.lock is damaged, or git could not merge it.
    """
    # DVC by itself would run a stage that reads a folder of which only a part is here.
    alone = {word for word in arguments if word.startswith("-")} == {ALLOW_MISSING}
    if alone or jobs > 1 or shares > 1:
        return side_by_side(arguments, jobs=jobs, shares=shares, say=say)
    lockfile.read()
    stop = Stop()
    with signals(stop, say):
        with careful_dvc.repro(arguments, output=None) as process:
            while process.poll() is None:
                if stop.wait(POLL):
                    process.terminate()
                    process.wait()
    if process.returncode and not stop.is_set() and (text := _without_data()):
        say(text)
    return INTERRUPTED if stop.is_set() else process.returncode


def _without_data() -> str:
    """What to do if the raw data are not here, of which DVC says no more; else empty."""
    with suppress(ConfigError):  # DVC has said what is wrong with params.yaml
        data = Path("data", sections.read("data", sections.Data).name)
        if not data.exists():
            return (
                f"{data} is not here: `dvc pull data.dvc` or `rrcm data {data.name}` gets it; with "
                f"{ALLOW_MISSING}, results that exist need none"
            )
    return ""


def side_by_side(arguments: Sequence[str], *, jobs: int, shares: int, say: Say) -> int:
    """Bring targets up to date, up to ``jobs`` stages at a time; return an exit code.

    A sampling is split into so many ``shares``, which run side by side like stages. Of the options
    of `dvc repro`, ``--allow-missing`` may be among the arguments.

    Guarantee: as `reproduce`, for every stage that runs. dvc.lock is as `dvc repro` leaves it: a
    stage has as many threads as it would have alone, so that even rounding is the same.

    Raises:
        ConfigError: params.yaml is not valid.
        StageError: Another option is among the arguments, or a target matches no stage.
    """
    options = {word for word in arguments if word.startswith("-")}
    if others := options - {ALLOW_MISSING}:
        raise StageError(
            f"{min(others)}: with --jobs or --shares, only targets can follow, and {ALLOW_MISSING} "
            "of DVC's options"
        )
    targets = [word for word in arguments if word not in options]
    lockfile.read()
    stop = Stop()
    with signals(stop, say):
        plan.refreshed()
        stages = plan.load(targets, allow_missing=bool(options))
        nodes = splitting.expanded(stages, count=shares)
        with here(len(nodes), jobs=jobs, stop=stop, say=say) as executor:
            results = schedule.run(nodes, executor, stop=stop)
    good = len(results) == len(nodes) and all(one.outcome in GOOD for one in results)
    if good and all(one.outcome is Outcome.CACHED for one in results):
        again = " ".join(["rrcm repro --force", *targets])
        say(f"nothing to do: all {len(results)} stages are up to date; `{again}` runs them again")
    return INTERRUPTED if stop.is_set() else 0 if good else 1


@contextmanager
def here(count: int, *, jobs: int, stop: Stop, say: Say) -> Iterator["Here"]:
    """The executor of ``count`` stages of this machine, up to ``jobs`` at a time, with a bar."""
    os.environ.setdefault(WAITING, "passive")  # a thread that spins would hold up another stage
    os.environ.setdefault(gpus.COUNT, str(jobs))  # without GPUs, slots of this machine
    with ThreadPoolExecutor(jobs) as threads, progress.bar(count, 0, "all", " stages") as bar:
        bar.smoothing = 0.0  # the time left is that of an average stage so far
        bar.dynamic_miniters = False  # it is drawn again also while no stage ends
        yield Here(threads, bar, stop=stop, say=say)


class Here:
    """Runs stages in processes of this machine, and shows those that run beside a bar."""

    def __init__(self, threads: ThreadPoolExecutor, bar: Any, *, stop: Stop, say: Say) -> None:
        """Run stages in ``threads``; lines go to ``say``, above the ``bar``."""
        self._threads, self._bar, self._stop, self._say = threads, bar, stop, say
        self.shown: dict[str, str] = {}

    def submit(self, node: Node, work: Callable[[], Result]) -> Future[Result]:
        """See `schedule.Executor`."""
        return self._threads.submit(work)

    def run(self, node: Node) -> Result:
        """See `schedule.Executor`."""

        def progressed(percent: float, text: str) -> None:
            self.shown[node.name] = f"{text.partition(':')[0]} {percent:.0f} %"

        self.shown[node.name] = node.name
        try:
            return stage_run.run(
                node,
                stop=self._stop,
                say=lambda line: None,  # its last lines are in the error of one that fails
                progressed=progressed,
            )
        finally:
            del self.shown[node.name]

    def say(self, node: Node, line: str) -> None:
        """See `schedule.Executor`."""
        self._bar.clear()  # else the line would begin behind it
        self._say(line if line.startswith(f"{node.name}: ") else f"{node.name}: {line}")
        self._bar.refresh()

    def look(self, results: Sequence[Result]) -> None:
        """See `schedule.Executor`."""
        self._bar.set_postfix_str("; ".join(dict(self.shown).values()), refresh=False)
        self._bar.initial = [one.outcome for one in results].count(Outcome.CACHED)  # took no time
        self._bar.update(len(results) - self._bar.n)
