"""The stages of a plan as tasks of a Prefect flow: when each begins, how often it is tried.

A task begins when what it needs has ended, so that no thread and no state waits for what may never
come. Whatever ends the flow, its stages have ended before.
"""

import queue
import time
from collections.abc import Callable, Sequence
from functools import partial
from uuid import UUID

from prefect import allow_failure, get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas import State
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterId,
    TaskRunFilter,
    TaskRunFilterState,
    TaskRunFilterStateType,
)
from prefect.client.schemas.objects import TERMINAL_STATES
from prefect.futures import PrefectFuture
from prefect.runtime import flow_run as current

from pipeline.flow import naming, plan
from pipeline.flow.artifacts import REFUSED, Progress
from pipeline.flow.attempts import Attempts, Way
from pipeline.flow.plan import Node
from pipeline.flow.signals import Stop
from pipeline.flow.summary import GOOD, Ended, Result
from rrcm.params import Params

POLL = 2.0  # seconds between two looks at what Prefect says of this run
SETTLED = 10.0  # seconds that the server may take to hear of the last tasks
MADE = (Ended.RAN, Ended.RESTORED)  # what may be new to those that need it
PAGE = 200  # rows that it gives at once


class Graph:
    """A plan at work, in a flow."""

    def __init__(self, nodes: Sequence[Node], way: Way, *, stop: Stop, whole: Params) -> None:
        """``whole`` names models, methods and sigmas for the tags of tasks."""
        self._nodes, self._way, self._stop, self._whole = nodes, way, stop, whole
        self._logger = get_run_logger()
        self._run_id = UUID(current.id)
        self._progress = Progress(self._run_id, self._logger)
        self._attempts = Attempts(nodes, way, stop=stop, progress=self._progress)
        self._futures: dict[str, PrefectFuture] = {}
        self._results: dict[str, Result] = {}
        self._ended: queue.SimpleQueue[str] = queue.SimpleQueue()

    def run(self) -> list[Result]:
        """Run what is out of date, and what that makes out of date.

        Guarantee: when this returns or raises, no stage is at work. dvc.lock has the stages in the
        order that `dvc repro` writes.
        """
        out = [node.name for node in self._nodes if node.changed or node.forced]
        self._logger.info(
            "%d of %d stages to look at: %s", len(out), len(self._nodes), ", ".join(out) or "none"
        )
        with get_client(sync_client=True) as client:
            try:
                self._loop(client)
            finally:
                self._stop_all()
            self._progress.send(client, now=True)
            self._settle(client)
        if any(result.ended != Ended.CACHED for result in self._results.values()):
            plan.tidy()
        return [self._results[node.name] for node in self._nodes if node.name in self._results]

    def _loop(self, client: SyncPrefectClient) -> None:
        next_look = time.monotonic() + POLL
        while True:
            if not self._stop.is_set():
                self._submit()
            if len(self._results) == len(self._futures):
                return
            self._wait(POLL / 4)
            if time.monotonic() > next_look:
                self._look(client)
                self._progress.send(client)
                next_look = time.monotonic() + POLL

    def _stop_all(self) -> None:
        """After an error of our own, too: nobody would be left to stop what still runs."""
        if len(self._results) < len(self._futures):
            self._stop.ask("an error of the flow", crashed=True)
        while len(self._results) < len(self._futures):
            self._wait(POLL)

    def _settle(self, client: SyncPrefectClient) -> None:
        """Give the server time to know how all tasks ended, which it hears by the way."""
        deadline = time.monotonic() + SETTLED
        mine = FlowRunFilter(id=FlowRunFilterId(any_=[self._run_id]))
        final = TaskRunFilter(
            state=TaskRunFilterState(type=TaskRunFilterStateType(any_=[*TERMINAL_STATES]))
        )
        pages = range(0, len(self._futures), PAGE)
        while time.monotonic() < deadline:
            try:
                known = sum(
                    len(
                        client.read_task_runs(
                            flow_run_filter=mine, task_run_filter=final, limit=PAGE, offset=start
                        )
                    )
                    for start in pages
                )
            except REFUSED:
                return
            if known >= len(self._futures):
                return
            time.sleep(0.1)

    def _wait(self, seconds: float) -> None:
        """Take note of the tasks that have ended; wait so long for the first."""
        try:
            while True:
                name = self._ended.get(timeout=seconds)
                self._results[name] = self._attempts.told(name)
                seconds = 0.0
        except queue.Empty:
            return

    def _look(self, client: SyncPrefectClient) -> None:
        """Stop if that was asked for in Prefect: nobody else tells a process without a worker."""
        try:
            state = client.read_flow_run(self._run_id).state
        except REFUSED as error:
            self._logger.debug("no answer of the server: %s", error)
            return
        if state is not None and (state.is_cancelling() or state.is_final()):
            self._stop.ask(f"{state.name.lower()} in Prefect")

    def _submit(self) -> None:
        """Start what has all that it needs, or cannot have it any more."""
        due = [node for node in self._nodes if node.name not in self._futures]
        for node in due:
            if not all(name in self._results for name in node.upstream):
                continue
            failed = self._failed(node)
            moved = any(self._results[name].ended in MADE for name in node.upstream)
            if failed:
                note = f"needs {', '.join(failed)}"
                self._start(node, partial(self._attempts.end, node, Ended.SKIPPED, note=note))
            elif node.changed or node.forced or moved:
                self._start(node, partial(self._attempts.attempt, node), works=True)
            else:
                self._start(node, partial(self._attempts.end, node, Ended.CACHED))

    def _failed(self, node: Node) -> list[str]:
        """What failed, of all that this stage needs, directly or not."""
        found = []
        for name in node.upstream:
            if self._results[name].ended == Ended.FAILED:
                found.append(name)
            elif self._results[name].ended == Ended.SKIPPED:
                found += self._failed(next(n for n in self._nodes if n.name == name))
        return list(dict.fromkeys(found))

    def _start(self, node: Node, work: Callable[[], State], *, works: bool = False) -> None:
        # Prefect asks its server for leave to start a task with tags, and answers take their time.
        tags = naming.tags(node.name, self._whole) if works else None

        def stage() -> State:
            return work()

        found = task(
            stage,
            name=node.name,
            task_run_name=node.name,
            tags=tags,
            cache_policy=NO_CACHE,
            persist_result=False,
            retries=self._way.retries,
            retry_condition_fn=lambda *_: self._attempts.again(node),
        )
        good = [self._futures[n] for n in node.upstream if self._results[n].ended in GOOD]
        bad = [allow_failure(self._futures[name]) for name in self._failed(node)]
        self._futures[node.name] = future = found.submit(wait_for=[*good, *bad])
        future.add_done_callback(lambda _: self._ended.put(node.name))
