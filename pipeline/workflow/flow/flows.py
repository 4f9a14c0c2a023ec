"""The Prefect flow of the graph: one task for each stage, with retries where they can help.

dvc.yaml defines the stages and their order, and DVC decides whether a stage must run; this package
decides when, where and how often. Import it only in a flow's process, after `environment.prepare`.
"""

import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from prefect import flow, get_run_logger, task
from prefect.artifacts import create_table_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas import State
from prefect.futures import PrefectFuture
from prefect.runtime import flow_run as current
from prefect.states import Cancelled, Completed, Failed

from pipeline.runtime import code
from pipeline.workflow import lockfile, plan, schedule, splitting, stage_run
from pipeline.workflow.flow import clone, environment
from pipeline.workflow.flow import hosts as workers
from pipeline.workflow.plan import Node
from pipeline.workflow.processes import Stop, signals
from pipeline.workflow.schedule import GOOD
from pipeline.workflow.stage_run import Outcome, Result
from rrcm.core.errors import RrcmError

STILL = "Finished in state Running()"  # what Prefect says of a run whose end nobody heard
ended: list[State] = []  # of the runs of this process, whether or not the server heard of it


def quiet() -> None:
    """Leave out what Prefect prints of a server that does not answer; `hosts.unheard` says it."""
    logging.raiseExceptions = False  # else each line of a log that could not be sent
    for handler in logging.getLogger().handlers:
        handler.addFilter(_told)


def _told(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    own = record.name.startswith(("prefect.events", "EventsWorker")) or record.msg == STILL
    return not (own or isinstance(error, workers.REFUSED))


def _title() -> str:
    """The title of a run on Prefect's pages."""
    forced = ", ".join(current.parameters.get("force") or ())
    wanted = ", ".join(current.parameters.get("targets") or ()) or "all stages"
    return f"{wanted}; {forced} in any case" if forced else wanted


@flow(name="rebuild", flow_run_name=_title, persist_result=False)
def rebuild(
    targets: list[str] | None = None,
    force: list[str] | None = None,
    hosts: bool = False,
    retries: int = 2,
    shares: int = 1,
) -> State:
    """Bring ``targets`` up to date; without targets, all of dvc.yaml.

    A failed stage is retried from its last checkpoint; stages that do not need it go on. The run
    fails if any stage did, and names it. A run stopped by a signal or in Prefect leaves no process
    behind, and the next run resumes from the saved state.

    Args:
        targets: Stages, groups, patterns or outputs.
        force: Stages, groups, patterns or outputs to run even if up to date.
        hosts: Run stages on workers, each in a clone of its own, instead of in this checkout.
        retries: Further tries of a stage that fails.
        shares: Into how many tasks each sampling of votes is split.
    """
    ended.append(_rebuilt(targets or [], force or [], hosts=hosts, retries=retries, shares=shares))
    return ended[-1]


def _rebuilt(
    targets: list[str], force: list[str], *, hosts: bool, retries: int, shares: int
) -> State:
    logger, stop = get_run_logger(), Stop()
    with ExitStack() as stack:
        stack.enter_context(signals(stop, logger.warning))
        try:
            environment.enter()
            commit = clone.pushed() if hosts else ""
            stack.enter_context(clone.at(commit, stop=stop, say=logger.info))
            lockfile.read()
            if hosts:  # they run a commit, with what it says of its code
                code.require_current(str(code.FOLDER))
            else:
                plan.refreshed()
            nodes = plan.load(targets, force=force, here=not hosts)
            nodes = splitting.expanded(nodes, count=shares)
            tasks = Tasks(commit=commit, stop=stop)
            results = schedule.run(nodes, tasks, retries=retries, stop=stop)
        except RrcmError as error:
            return workers.stopped(stop) if stop.is_set() else Failed(message=str(error))
        summary = schedule.sentence(results)
        try:
            create_table_artifact([*map(dataclasses.asdict, results)], "stages", summary)
        except workers.REFUSED as error:
            workers.unheard(error, logger)
        over = len(results) == len(nodes) and all(one.outcome != Outcome.STOPPED for one in results)
        if stop.is_set() and not over:  # a later stop changes nothing
            return workers.stopped(stop, summary)
        failed = any(result.outcome == Outcome.FAILED for result in results)
        return Failed(message=summary) if failed else Completed(message=summary)


class Tasks:
    """Runs stages as tasks of the current flow, on workers at ``commit``; here if it is empty."""

    def __init__(self, *, commit: str, stop: Stop) -> None:
        self._commit, self._stop = commit, stop
        self._lock = threading.Lock()  # of dvc.lock, among the threads of this process
        self._due = time.monotonic() + workers.BEAT

    def submit(self, node: Node, work: Callable[[], Result]) -> PrefectFuture:
        """See `schedule.Executor`."""
        how = {"name": node.name, "cache_policy": NO_CACHE, "persist_result": False}
        return task(lambda: self._state(work()), task_run_name=node.name, **how).submit()

    def run(self, node: Node) -> Result:
        """See `schedule.Executor`."""
        logger = get_run_logger()
        if not self._commit:
            with workers.progress(node.name) as progressed:
                return stage_run.run(node, stop=self._stop, say=logger.info, progressed=progressed)
        with self._lock:
            stage, _ = splitting.split(node.name)
            (now,) = (n for n in plan.load([stage], here=False) if n.name == stage)
            known = lockfile.read()
            inputs = {name: known[name] for name in now.upstream if name in known}
        if not (now.reason or node.forced):  # its inputs turned out unchanged
            return Result(stage=node.name, outcome=Outcome.CACHED)
        done, entries = workers.there(node, self._commit, inputs, stop=self._stop, say=logger.info)
        with self._lock:
            lockfile.adopt(entries)
        return done

    def say(self, node: Node, line: str) -> None:
        """See `schedule.Executor`."""
        get_run_logger().info(line.partition("\n")[0])  # the rest is in the log already

    def look(self, results: Sequence[Result]) -> None:
        """Stop if the run was cancelled in Prefect, which only a worker would signal to us."""
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + workers.BEAT
        try:
            state = workers.current_state()
        except workers.REFUSED as error:
            workers.unheard(error, get_run_logger())
            return
        workers.heard()
        if state.is_cancelling() or state.is_final():
            self._stop.ask(f"{state.name.lower()} in Prefect")

    def _state(self, result: Result) -> State:
        if result.outcome in GOOD:
            return Completed(name=result.outcome.capitalize(), message=result.note)
        if result.outcome == Outcome.FAILED:
            return Failed(message=result.note.partition("\n")[0])
        if result.outcome == Outcome.SKIPPED:
            return Cancelled(name="Skipped", message=result.note)
        return Cancelled(message=f"{self._stop.reason}; a new run goes on")
