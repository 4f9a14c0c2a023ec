"""A stage as what a Prefect task does: try it, once or again, here or on a worker, and tell how."""

import logging
import os
import random
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from prefect import get_run_logger
from prefect.client.schemas import State
from prefect.context import TaskRunContext
from prefect.states import Cancelled, Completed, Failed

from pipeline.flow import plan, running, summary
from pipeline.flow.artifacts import Progress
from pipeline.flow.plan import Node
from pipeline.flow.running import Done, Outcome
from pipeline.flow.signals import Stop
from pipeline.flow.summary import GOOD, Ended, Result
from rrcm.errors import RrcmError

Logger = logging.Logger | logging.LoggerAdapter

PAUSE = "RRCM_RETRY_SECONDS"  # before the second try; twice that before the third, and so on
USUAL, LONGEST = 10.0, 600.0
ENDED = {Outcome.RAN: Ended.RAN, Outcome.RESTORED: Ended.RESTORED, Outcome.CACHED: Ended.CACHED}
NAMES = {Ended.RAN: "Completed", Ended.RESTORED: "Restored", Ended.CACHED: "Cached"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Way:
    """How stages are run: here, or on workers at ``commit``; and how often they are tried again."""

    commit: str
    retries: int


class Attempts:
    """Tries of stages, in the threads of their tasks."""

    def __init__(self, nodes: Sequence[Node], way: Way, *, stop: Stop, progress: Progress) -> None:
        """Of a plan; ``progress`` is told how far stages are."""
        self._names = [node.name for node in nodes]
        self._way, self._stop, self._progress = way, stop, progress
        self._before = plan.entries(self._names)
        self._lock = threading.Lock()  # of dvc.lock, among the threads of this process
        self._final: set[str] = set()
        self._told: dict[str, Result] = {}

    def again(self, node: Node) -> bool:
        """Whether another try of a stage that failed may help."""
        return not (node.name in self._final or self._stop.is_set())

    def told(self, node_name: str) -> Result:
        """How the last try of a stage ended; an exception that is none of ours is a bug."""
        crashed = Result(stage=node_name, ended=Ended.FAILED, note=f"{node_name}: see its log")
        return self._told.get(node_name, crashed)

    def attempt(self, node: Node) -> State:
        """A try of a stage; Prefect calls it again if it may be worth it."""
        context, logger = TaskRunContext.get(), get_run_logger()
        self._told.pop(node.name, None)
        assert context is not None
        tries = context.task_run.run_count
        if tries > 1:
            self._pause(tries, logger)
        if self._stop.is_set():
            return self.end(node, Ended.STOPPED, tries=tries)
        try:
            done = self._run(node, context.task_run.id, logger)
        except RrcmError as error:
            if self._stop.is_set():
                return self.end(node, Ended.STOPPED, tries=tries)
            if not isinstance(error, running.Failed) or error.final:
                self._final.add(node.name)
            logger.error("try %d: %s", tries, error)
            return self.end(node, Ended.FAILED, tries=tries, note=str(error))
        note = self._made(node, logger) if done.outcome == Outcome.RAN else ""
        return self.end(node, ENDED[done.outcome], seconds=done.seconds, tries=tries, note=note)

    def _run(self, node: Node, task_run: UUID, logger: Logger) -> Done:
        def progressed(percent: float, text: str) -> None:
            self._progress.tell(node.name, task_run, percent, text)

        if not self._way.commit:
            return running.run(
                node.name,
                devices=node.devices,
                forced=node.forced,
                stop=self._stop,
                say=logger.info,
                progressed=progressed,
            )
        from pipeline.flow import hosts

        with self._lock:
            (now,) = (n for n in plan.load([node.name], here=False) if n.name == node.name)
            entries = plan.entries(self._names)
        if not (now.changed or node.forced):  # what it needs came out as it was
            return Done(outcome=Outcome.CACHED, seconds=0.0)
        done, entry = hosts.there(
            node,
            commit=self._way.commit,
            entries=entries,
            stop=self._stop,
            say=logger.info,
            progressed=progressed,
        )
        with self._lock:
            plan.adopt({node.name: entry})
        return done

    def _pause(self, tries: int, logger: Logger) -> None:
        """Before another try: twice as long each time, and not all stages at once."""
        usual = float(os.environ.get(PAUSE, USUAL))
        seconds = min(usual * 2 ** (tries - 2), LONGEST) * random.uniform(0.5, 1.5)
        logger.info("try %d of %d in %.1f s", tries, self._way.retries + 1, seconds)
        self._stop.wait(seconds)

    def _made(self, node: Node, logger: Logger) -> str:
        """What is new about the outputs of a stage that ran."""
        with self._lock:
            after = plan.entries([node.name]).get(node.name, {})
        if not (before := self._before.get(node.name)):
            return ""
        new = summary.news(before, after)
        if new and summary.same_inputs(before, after):
            logger.warning("the same inputs made other outputs: %s", ", ".join(new))
            return f"same inputs, other outputs: {', '.join(new)}"
        return f"new: {', '.join(new)}" if new else "outputs as before"

    def end(
        self, node: Node, ended: Ended, *, seconds: float = 0.0, tries: int = 0, note: str = ""
    ) -> State:
        """Take down how a try of a stage ended, and tell Prefect."""
        result = Result(stage=node.name, ended=ended, seconds=seconds, tries=tries, note=note)
        self._told[node.name] = result
        if ended in GOOD:
            if ended != Ended.CACHED or tries:
                get_run_logger().info("%s in %.1f s%s", ended, seconds, note and f"; {note}")
            return Completed(name=NAMES[ended], message=note or str(ended))
        if ended == Ended.FAILED:
            return Failed(message=note)
        if ended == Ended.SKIPPED:
            return Cancelled(name="Skipped", message=note)
        return Cancelled(message=f"{self._stop.reason}; a new run goes on")


def quieter() -> None:
    """Leave out of the logs of tasks what Prefect says and we say better, and no more."""
    logger = logging.getLogger("prefect.task_runs")
    if _worth not in logger.filters:
        logger.addFilter(_worth)


def _worth(record: logging.LogRecord) -> bool:
    said = record.getMessage()
    return not said.startswith(("Finished in state ", "Task run failed with state: "))
