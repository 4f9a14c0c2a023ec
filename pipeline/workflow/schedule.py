"""Runs the stages of a plan: which is ready, retries, a stop, and the results.

An `Executor` says where stages run and who sees them: processes of this machine (`reproduce`), or
tasks of Prefect and its workers (`flow.flows`).
"""

import queue
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

from pipeline.workflow import plan
from pipeline.workflow.plan import Node
from pipeline.workflow.processes import POLL, Stop
from pipeline.workflow.stage_run import Outcome, Result
from rrcm.core.errors import RrcmError, StageError

PAUSE, LONGEST = 5.0, 600.0  # seconds before the second try; doubled before each further one
GOOD = (Outcome.DONE, Outcome.CACHED)


class Executor(Protocol):
    """Runs stages in threads, and shows them."""

    def submit(self, node: Node, work: Callable[[], Result]) -> Any:
        """Have ``work`` called in another thread; it calls `run`, unless there is nothing to do.

        Returns:
            A future, whose ``add_done_callback`` reports the end.
        """

    def run(self, node: Node) -> Result:
        """Try to run a stage once; errors are those of `stage_run.run`."""

    def say(self, node: Node, line: str) -> None:
        """Show a line about a stage; called in the thread of ``work``."""

    def look(self, results: Sequence[Result]) -> None:
        """Called now and then with the results so far, in the thread of `run`."""


def run(nodes: Sequence[Node], executor: Executor, *, retries: int = 0, stop: Stop) -> list[Result]:
    """Run the stages that are out of date, and those that become so; return all results.

    A stage starts when all that it needs have ended well. After a failure those that need the stage
    are skipped, and all others go on. An error that is ``retryable`` is retried, ``retries`` times
    at most and after longer and longer pauses; the stage resumes from what it saved.

    Guarantee: when this returns or raises, no stage is running. dvc.lock has the stages in the
    order that `dvc repro` writes. If ``stop`` was set, results of stages that did not start may be
    missing.
    """
    return _Schedule(nodes=nodes, executor=executor, retries=retries, stop=stop).run()


@dataclass(kw_only=True)
class _Schedule:
    nodes: Sequence[Node]
    executor: Executor
    retries: int
    stop: Stop
    submitted: set[str] = field(default_factory=set)
    ends: dict[str, Result] = field(default_factory=dict)  # what threads have found
    results: dict[str, Result] = field(default_factory=dict)  # of those whose thread has ended
    over: queue.SimpleQueue[str] = field(default_factory=queue.SimpleQueue)

    def run(self) -> list[Result]:
        try:
            self._submit_ready()
            while len(self.results) < len(self.submitted):
                self._wait()
                self.executor.look([*self.results.values()])
                self._submit_ready()
        finally:  # after an error of our own, nothing else would stop running stages
            if len(self.results) < len(self.submitted):
                self.stop.ask("an error of our own", crashed=True)
            while len(self.results) < len(self.submitted):
                self._wait()
        if any(result.outcome != Outcome.CACHED for result in self.results.values()):
            plan.tidy()
        return [self.results[node.name] for node in self.nodes if node.name in self.results]

    def _submit_ready(self) -> None:
        for node in self.nodes if not self.stop.is_set() else ():
            if node.name not in self.submitted and self.results.keys() >= {*node.upstream}:
                self.submitted.add(node.name)
                future = self.executor.submit(node, partial(self._work, node))
                future.add_done_callback(lambda _, name=node.name: self.over.put(name))

    def _wait(self) -> None:
        """Wait a moment for a stage to end, and record its result."""
        try:
            name = self.over.get(timeout=POLL)
        except queue.Empty:
            return
        crashed = Result(stage=name, outcome=Outcome.FAILED, note=f"{name}: see its log")  # a bug
        self.results[name] = self.ends.get(name, crashed)

    def _work(self, node: Node) -> Result:
        """The result of a stage, in a thread of its own."""
        needs = [self.results[name] for name in node.upstream]
        if failed := [one.stage for one in needs if one.outcome not in GOOD]:
            note = f"needs {', '.join(failed)}"
            result = Result(stage=node.name, outcome=Outcome.SKIPPED, note=note)
        elif node.reason or node.forced or any(one.outcome != Outcome.CACHED for one in needs):
            result = self._tried(node)
        else:
            result = Result(stage=node.name, outcome=Outcome.CACHED)
        self.ends[node.name] = result
        return result

    def _tried(self, node: Node) -> Result:
        tries = 0
        while not self.stop.is_set():
            try:
                if node.lacks:  # DVC would not say which command makes it
                    raise StageError(f"{node.name}: {node.lacks}")
                tries += 1
                done = replace(self.executor.run(node), tries=tries)
            except RrcmError as error:
                if self.stop.is_set():
                    break
                why = str(error)
                if not (error.retryable and tries <= self.retries):
                    self.executor.say(node, why)
                    return Result(stage=node.name, outcome=Outcome.FAILED, tries=tries, note=why)
                self.executor.say(node, why.partition("\n")[0])
                # exponential backoff, with a random part
                seconds = min(PAUSE * 2 ** (tries - 1), LONGEST) * random.uniform(0.5, 1.5)
                self.executor.say(node, f"try {tries + 1} of {self.retries + 1} in {seconds:.1f} s")
                self.stop.wait(seconds)
            else:
                self.executor.say(node, f"{done.outcome}, {done.seconds:.1f} s")
                return done
        return Result(stage=node.name, outcome=Outcome.STOPPED, tries=tries)


def sentence(results: Sequence[Result]) -> str:
    """The results in one line: the failures and their reasons, or counts of outcomes."""
    counts = Counter(result.outcome for result in results)
    done = ", ".join(f"{counts[how]} {how}" for how in Outcome if counts[how])
    every = f"{len(results)} stage{'s'[: len(results) != 1]}"
    if failed := [result for result in results if result.outcome == Outcome.FAILED]:
        why = "; ".join(" ".join(result.note.split("\n")[:2]) for result in failed)
        return f"failed: {why} (of {every}: {done})"
    return f"{every}: {done}" if results else "dvc.yaml has no stages"
