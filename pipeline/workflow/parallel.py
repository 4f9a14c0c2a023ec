"""Brings stages up to date side by side on this machine, for ``rrcm repro --jobs``."""

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from pipeline.workflow import gpus, plan, stage_run
from pipeline.workflow.plan import Node
from pipeline.workflow.processes import Stop
from pipeline.workflow.stage_run import Done, Outcome
from rrcm.core import progress
from rrcm.core.errors import RrcmError

WAITING = "OMP_WAIT_POLICY"
HELD_UP = "waiting for "  # how a line begins that says what a stage needs to start
POLL = 0.2


def run(nodes: Sequence[Node], *, jobs: int, stop: Stop, say: Callable[[str], None]) -> bool:
    """Run the stages that are out of date, and those that become so, up to ``jobs`` at a time.

    A stage starts when all that it needs have ended. Stages have GPUs of their own, and share the
    processor's cores. After a failure no other stage starts, and those that run end first.

    Guarantee: when this returns or raises, no stage is running. dvc.lock is as `dvc repro` leaves
    it: a stage has as many threads as it would have alone, so that even rounding is the same.

    Args:
        nodes: From `plan.load`.
        jobs: Most stages at a time, at least 1.
        stop: May be set at any time: running stages are stopped, and keep their saved state.
        say: Called with a line for each stage that ran, was restored or failed.

    Returns:
        Whether all are up to date now.
    """
    os.environ.setdefault(WAITING, "passive")  # a thread that spins would hold up another stage
    os.environ.setdefault(gpus.COUNT, str(jobs))  # without GPUs, slots of this machine
    work = _Work(nodes, jobs=jobs, stop=stop)
    with ThreadPoolExecutor(jobs) as threads, progress.bar(len(nodes), 0, "all", " stages") as bar:

        def tell(line: str) -> None:
            bar.clear()  # else the line would begin behind it
            say(line)
            bar.refresh()

        bar.smoothing = 0.0  # the time left is that of an average stage so far
        shown = 0.0
        try:
            while work.start(threads):
                work.wait(tell)
                bar.set_postfix_str("; ".join(dict(work.shown).values()), refresh=False)
                bar.initial = [*work.ended.values()].count(Outcome.CACHED)  # took no time
                bar.update(len(work.ended) - bar.n)
                if time.monotonic() - shown >= bar.mininterval:  # also while no stage ends
                    bar.refresh()
                    shown = time.monotonic()
            bar.update(len(work.ended) - bar.n)
        except BaseException:  # nothing else would stop the running stages
            stop.ask("an error of our own", crashed=True)
            raise
    if {*work.ended.values()} - {Outcome.CACHED}:
        plan.tidy()
    return len(work.ended) == len(nodes)


class _Work:
    """Stages that ended well, those that run, and what the latter show of their progress."""

    def __init__(self, nodes: Sequence[Node], *, jobs: int, stop: Stop) -> None:
        self.ended: dict[str, Outcome] = {}
        self.shown: dict[str, str] = {}
        self._nodes, self._jobs, self._stop = nodes, jobs, stop
        self._running: dict[Future[Done], Node] = {}
        self._failed = False

    def start(self, threads: ThreadPoolExecutor) -> bool:
        """Start what can start; return whether any stage runs."""
        for node in () if self._failed or self._stop.is_set() else self._nodes:
            if node.name in self.ended or node in self._running.values():
                continue
            if not self.ended.keys() >= {*node.upstream}:
                continue
            new = any(self.ended[name] != Outcome.CACHED for name in node.upstream)
            if not (node.changed or node.forced or new):
                self.ended[node.name] = Outcome.CACHED
            elif len(self._running) < self._jobs:
                self._running[threads.submit(self._run, node)] = node
        return bool(self._running)

    def _run(self, node: Node) -> Done:
        def progressed(percent: float, text: str) -> None:
            self.shown[node.name] = f"{text.partition(':')[0]} {percent:.0f} %"

        def said(line: str) -> None:  # others are of interest where it fails, and in the error then
            if line.startswith(HELD_UP):
                self.shown[node.name] = f"{node.name} ({line})"
            elif self.shown[node.name].endswith(")"):
                self.shown[node.name] = node.name

        self.shown[node.name] = node.name
        return stage_run.run(
            node.name,
            devices=node.devices,
            forced=node.forced,
            stop=self._stop,
            say=said,
            progressed=progressed,
        )

    def wait(self, tell: Callable[[str], None]) -> None:
        """Wait a moment for a stage to end, and take down how it did."""
        for future in wait(self._running, timeout=POLL, return_when=FIRST_COMPLETED).done:
            node = self._running.pop(future)
            self.shown.pop(node.name, None)
            try:
                done = future.result()
            except RrcmError as error:
                self._failed = True
                tell(str(error))
            else:
                self.ended[node.name] = done.outcome
                tell(f"{node.name}: {done.outcome}, {done.seconds:.1f} s")
