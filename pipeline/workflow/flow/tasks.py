"""Runs the stages of a plan as tasks of a Prefect flow, in order and with retries.

A task is submitted only when all stages that it needs have ended, so that no thread and no state
waits for one that may never run. However the flow ends, its stages have ended before.
"""

import os
import queue
import random
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from uuid import UUID

from prefect import allow_failure, get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas import State
from prefect.context import TaskRunContext
from prefect.futures import PrefectFuture
from prefect.runtime import flow_run as current
from prefect.states import Cancelled, Completed, Failed

from pipeline.workflow import lockfile, pieces, plan, stage_run
from pipeline.workflow.flow import artifacts, hosts, summary, tags
from pipeline.workflow.flow.awaited import Awaited
from pipeline.workflow.flow.summary import GOOD, Ended, Result
from pipeline.workflow.plan import Node
from pipeline.workflow.processes import Stop
from pipeline.workflow.stage_run import Done, Outcome
from rrcm.config import params
from rrcm.core.errors import RrcmError

POLL = 2.0  # seconds between two looks at this run's state, as it is known here
PAUSE = "RRCM_RETRY_SECONDS"  # before the second try; doubled before each further one
USUAL, LONGEST = 10.0, 600.0
ENDED = {Outcome.RAN: Ended.RAN, Outcome.RESTORED: Ended.RESTORED, Outcome.CACHED: Ended.CACHED}
NAMES = {Ended.RAN: "Completed", Ended.RESTORED: "Restored", Ended.CACHED: "Cached"}


class Graph:
    """Runs a plan in a flow."""

    def __init__(self, nodes: Sequence[Node], *, commit: str, retries: int, stop: Stop) -> None:
        """Run stages here, or on workers at ``commit``, with ``retries`` retries of a failure."""
        self._nodes, self._commit, self._retries, self._stop = nodes, commit, retries, stop
        self._awaited = Awaited()
        self._whole = params.load()  # models, methods and sigmas for the tags of tasks
        self._before = lockfile.entries([node.name for node in nodes])
        self._lock = threading.Lock()  # of dvc.lock, among the threads of this process
        self._futures: dict[str, PrefectFuture] = {}
        self._ends: dict[str, Result] = {}  # results of the last try of each task
        self._results: dict[str, Result] = {}  # final results of tasks that are over
        self._over: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._final: set[str] = set()  # stages whose failure a retry cannot fix
        self._bars: dict[str, UUID] = {}

    def run(self) -> list[Result]:
        """Run the stages that are out of date, and those that become so.

        Guarantee: when this returns or raises, no stage is running. dvc.lock has the stages in the
        order that `dvc repro` writes.
        """
        out = [node.name for node in self._nodes if node.changed or node.forced]
        get_run_logger().info(
            "%d of %d stages to look at: %s", len(out), len(self._nodes), ", ".join(out) or "none"
        )
        try:
            with (
                get_client(sync_client=True) as client,
                self._awaited.include(UUID(current.id)),
            ):
                self._loop(client)
        finally:  # after an error of our own, nothing else would stop running stages
            if len(self._results) < len(self._futures):
                self._stop.ask("an error of the flow", crashed=True)
            while len(self._results) < len(self._futures):
                self._wait()
        if any(result.ended != Ended.CACHED for result in self._results.values()):
            plan.tidy()
        return [self._results[node.name] for node in self._nodes if node.name in self._results]

    def _loop(self, client: SyncPrefectClient) -> None:
        due = time.monotonic() + POLL
        while True:
            for node in self._nodes if not self._stop.is_set() else ():
                if node.name not in self._futures and self._results.keys() >= {*node.upstream}:
                    self._submit(node)
            if len(self._results) == len(self._futures):
                return
            self._wait()
            if time.monotonic() > due:
                self._look(client)
                due = time.monotonic() + POLL

    def _wait(self) -> None:
        """Wait a moment for a task to end, and record its result."""
        try:
            name = self._over.get(timeout=POLL / 4)
        except queue.Empty:
            return
        crashed = Result(stage=name, ended=Ended.FAILED, note=f"{name}: see its log")  # a bug
        self._results[name] = self._ends.get(name, crashed)

    def _look(self, client: SyncPrefectClient) -> None:
        """Stop if the run was cancelled in Prefect, which only a worker would signal to us."""
        try:
            seen = self._awaited.read(UUID(current.id), client, age=hosts.SELDOM)
        except artifacts.REFUSED as error:
            get_run_logger().debug("no answer of the server: %s", error)
            return
        state = seen and seen.state
        if state is not None and (state.is_cancelling() or state.is_final()):
            self._stop.ask(f"{state.name.lower()} in Prefect")

    def _submit(self, node: Node) -> None:
        """Submit a stage whose upstream stages are over; it is skipped if one failed."""
        failed = self._failed(node)
        needs = {name: self._results[name].ended for name in node.upstream}
        works = node.changed or node.forced or {Ended.RAN, Ended.RESTORED} & {*needs.values()}
        work: Callable[[], State] = partial(self._end, node, Ended.CACHED)
        if failed:
            work = partial(self._end, node, Ended.SKIPPED, note=f"needs {', '.join(failed)}")
        elif works:
            work = partial(self._try, node)

        def stage() -> State:
            return work()

        found = task(
            stage,
            name=node.name,
            task_run_name=node.name,
            # For a task with tags, Prefect asks its server for concurrency limits, which is slow.
            tags=tags.of(node.name, self._whole) if works and not failed else None,
            cache_policy=NO_CACHE,
            persist_result=False,
            retries=self._retries,
            retry_condition_fn=lambda *_: not (node.name in self._final or self._stop.is_set()),
        )
        good = [self._futures[name] for name, ended in needs.items() if ended in GOOD]
        bad = [allow_failure(self._futures[name]) for name in failed]
        self._futures[node.name] = future = found.submit(wait_for=[*good, *bad])
        future.add_done_callback(lambda _: self._over.put(node.name))

    def _failed(self, node: Node) -> list[str]:
        """The stages that failed among all upstream of this one."""
        found = []
        for needed in (one for one in self._nodes if one.name in node.upstream):
            if self._results[needed.name].ended == Ended.FAILED:
                found.append(needed.name)
            elif self._results[needed.name].ended == Ended.SKIPPED:
                found += self._failed(needed)
        return list(dict.fromkeys(found))

    def _try(self, node: Node) -> State:
        """Try a stage once, in the thread of its task; Prefect retries it if that may help."""
        context, logger = TaskRunContext.get(), get_run_logger()
        assert context is not None
        tries = context.task_run.run_count
        if tries > 1:  # exponential backoff, with a random part
            usual = float(os.environ.get(PAUSE, USUAL)) * 2 ** (tries - 2)
            seconds = min(usual, LONGEST) * random.uniform(0.5, 1.5)
            logger.info("try %d of %d in %.1f s", tries, self._retries + 1, seconds)
            self._stop.wait(seconds)  # Prefect's own delay cannot be interrupted
        try:
            if self._stop.is_set():
                return self._end(node, Ended.STOPPED, tries=tries)
            done = self._run(node, logger)
        except RrcmError as error:
            if self._stop.is_set():
                return self._end(node, Ended.STOPPED, tries=tries)
            if not isinstance(error, stage_run.Failed) or error.final:
                self._final.add(node.name)
            logger.error("try %d: %s", tries, str(error).partition("\n")[0])  # the rest is above
            return self._end(node, Ended.FAILED, tries=tries, note=str(error))
        note = self._news(node, logger) if done.outcome == Outcome.RAN else ""
        logger.info("%s in %.1f s%s", done.outcome, done.seconds, note and f"; {note}")
        return self._end(node, ENDED[done.outcome], done.seconds, tries, note)

    def _run(self, node: Node, logger: artifacts.Logger) -> Done:
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
            stage, _ = pieces.split(node.name)
            (now,) = (n for n in plan.load([stage], here=False) if n.name == stage)
            inputs = lockfile.entries(now.upstream)
        if not (now.changed or node.forced):  # its inputs turned out unchanged
            return Done(outcome=Outcome.CACHED, seconds=0.0)
        done, entries = hosts.there(
            node,
            self._commit,
            inputs,
            awaited=self._awaited,
            stop=self._stop,
            say=logger.info,
        )
        with self._lock:
            lockfile.adopt(entries)
        return done

    def _news(self, node: Node, logger: artifacts.Logger) -> str:
        """Text about the new outputs of a stage that ran."""
        after = lockfile.entries([node.name]).get(node.name, {})
        if not (before := self._before.get(node.name)):
            return ""
        new = summary.news(before, after)
        if new and summary.same_inputs(before, after):
            logger.warning("the same inputs made other outputs: %s", ", ".join(new))
            return f"same inputs, other outputs: {', '.join(new)}"
        return f"new: {', '.join(new)}" if new else "outputs as before"

    def _end(
        self, node: Node, ended: Ended, seconds: float = 0.0, tries: int = 0, note: str = ""
    ) -> State:
        """Record the result of a try of a stage; return its state for Prefect."""
        self._ends[node.name] = Result(
            stage=node.name, ended=ended, seconds=seconds, tries=tries, note=note
        )
        if ended in GOOD:
            return Completed(name=NAMES[ended], message=note or str(ended))
        if ended == Ended.FAILED:
            return Failed(message=note.partition("\n")[0])
        if ended == Ended.SKIPPED:
            return Cancelled(name="Skipped", message=note)
        return Cancelled(message=f"{self._stop.reason}; a new run goes on")
