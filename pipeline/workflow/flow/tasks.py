"""The executor of a flow: each stage is a task of Prefect, which runs here or on a worker."""

import threading
import time
from collections.abc import Callable, Sequence
from uuid import UUID

from prefect import allow_failure, get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import get_client
from prefect.client.schemas import State
from prefect.futures import PrefectFuture
from prefect.runtime import flow_run as current
from prefect.states import Cancelled, Completed, Failed

from pipeline.workflow import lockfile, plan, shares, stage_run
from pipeline.workflow.flow import artifacts, hosts
from pipeline.workflow.plan import Node
from pipeline.workflow.processes import Stop
from pipeline.workflow.stage_run import Done, Outcome
from pipeline.workflow.summary import GOOD, Result

NAMES = {Outcome.RAN: "Completed", Outcome.RESTORED: "Restored", Outcome.CACHED: "Cached"}


class Tasks:
    """Runs stages as tasks of the current flow, on workers at ``commit``; here if it is empty."""

    def __init__(self, *, commit: str, stop: Stop) -> None:
        """Stages end when ``stop`` is set."""
        self._commit, self._stop = commit, stop
        self._lock = threading.Lock()  # of dvc.lock, among the threads of this process
        self._futures: dict[str, PrefectFuture] = {}
        self._skipped: set[str] = set()
        self._bars: dict[str, UUID] = {}
        self._due = time.monotonic() + hosts.SELDOM

    def submit(self, node: Node, work: Callable[[], Result]) -> PrefectFuture:
        """See `schedule.Executor`."""

        def stage() -> State:
            result = work()
            if result.outcome == Outcome.SKIPPED:
                self._skipped.add(node.name)
            return self._state(result)

        made = task(
            stage,
            name=node.name,
            task_run_name=node.name,
            cache_policy=NO_CACHE,
            persist_result=False,
        )
        # Prefect has no task wait for one that was cancelled, as a stage that was skipped is.
        futures = [self._futures[name] for name in node.upstream if name not in self._skipped]
        needs = [allow_failure(future) for future in futures]
        self._futures[node.name] = future = made.submit(wait_for=needs)
        return future

    def run(self, node: Node) -> Done:
        """See `schedule.Executor`."""
        logger = get_run_logger()
        if not self._commit:
            with artifacts.progress(node.name, self._bars) as progressed:
                return stage_run.run(
                    node.name,
                    devices=node.devices,
                    forced=node.forced,
                    stop=self._stop,
                    say=logger.info,
                    progressed=progressed,
                )
        with self._lock:
            stage, _ = shares.split(node.name)
            (now,) = (n for n in plan.load([stage], here=False) if n.name == stage)
            inputs = lockfile.entries(now.upstream)
        if not (now.changed or node.forced):  # its inputs turned out unchanged
            return Done(outcome=Outcome.CACHED, seconds=0.0)
        done, entries = hosts.there(node, self._commit, inputs, stop=self._stop, say=logger.info)
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
        self._due = time.monotonic() + hosts.SELDOM
        try:
            with get_client(sync_client=True) as client:
                state = client.read_flow_run(UUID(current.id)).state
        except artifacts.REFUSED as error:
            get_run_logger().debug("no answer of the server: %s", error)
            return
        if state is not None and (state.is_cancelling() or state.is_final()):
            self._stop.ask(f"{state.name.lower()} in Prefect")

    def _state(self, result: Result) -> State:
        """The state of a task for Prefect."""
        if result.outcome in GOOD:
            message = result.note or str(result.outcome)
            return Completed(name=NAMES[result.outcome], message=message)
        if result.outcome == Outcome.FAILED:
            return Failed(message=result.note.partition("\n")[0])
        if result.outcome == Outcome.SKIPPED:
            return Cancelled(name="Skipped", message=result.note)
        return Cancelled(message=f"{self._stop.reason}; a new run goes on")
