"""Runs a stage on any free host: the flow of a worker, and the coordinator's request for it.

The request has all that a clone at any earlier state needs: the commit, the entries of dvc.lock of
the stage's inputs, and the paths of the inputs. The result is the stage's entry for dvc.lock; by
then its outputs and its run-cache entry are at the remote.

Guarantee: a run requested here is over when `there` returns or raises, or was given up because it
stopped reporting. Each run updates its progress every few seconds; one on a lost host does not.
"""

import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any
from uuid import UUID

import httpx
from prefect import flow, get_run_logger
from prefect.artifacts import Artifact, create_progress_artifact
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import ArtifactUpdate
from prefect.client.schemas.filters import ArtifactFilter
from prefect.client.schemas.objects import State
from prefect.deployments import run_deployment
from prefect.exceptions import ObjectNotFound, PrefectException
from prefect.runtime import flow_run as current
from prefect.states import Cancelled, Cancelling, Completed, Crashed, Failed

from pipeline.workflow import lockfile, processes, stage_run
from pipeline.workflow.flow import clone, environment
from pipeline.workflow.plan import Node
from pipeline.workflow.processes import Say, Stopped
from pipeline.workflow.stage_run import Outcome, Result
from rrcm.core.errors import RrcmError, StageError, one_line

DEPLOYMENT = "stage/stage"
SILENCE = float(os.environ.get("RRCM_SILENCE_SECONDS", 180.0))  # after which a run is given up
BEAT = max(1.0, min(5.0, SILENCE / 12))  # seconds between two updates, and two questions
SUBMISSION = 180.0  # at most, until a worker that took a run must have started it
LONELY = 60.0  # seconds until a message that no worker takes a run
FAREWELL = 90.0  # seconds for a cancelled run to end; its stage has 30
LATE = 10.0  # seconds that the server may take for the last update
FINAL = "Failed for good"  # the name of the state of a failure that a retry cannot fix
REFUSED = (httpx.HTTPError, PrefectException)

_away = threading.Event()
_turn = threading.Lock()  # Prefect's counter of a flow's subflow runs is not atomic


def unheard(error: Exception, logger: Any) -> None:
    """Say that the server does not answer, once until it was `heard` again."""
    if not _away.is_set():
        _away.set()
        logger.warning(
            "no answer of the server (%s); stages go on, and dvc.lock has what they make",
            one_line(error, most=100),
        )


def heard() -> None:
    """The server answered."""
    _away.clear()


@contextmanager
def progress(name: str) -> Iterator[Callable[[float, str], None]]:
    """Show a progress bar on the page of the current run or task while the block runs.

    It is updated every few seconds, whether or not anything changed. If the server refuses it, the
    block runs without.

    Yields:
        A function that sets the percentage and the text of the bar; cheap, and thread-safe.
    """
    latest, over, logger = [0.0, "at work"], threading.Event(), get_run_logger()

    def send(bar: UUID) -> None:
        with get_client(sync_client=True) as client:
            while not over.is_set():
                over.wait(BEAT)
                update = ArtifactUpdate(data=latest[0], description=latest[1])
                try:
                    client.update_artifact(bar, update)
                    heard()
                except REFUSED as error:
                    unheard(error, logger)

    key = re.sub(r"[^a-z0-9]+", "-", f"progress-{name}".lower()).strip("-")
    sender = None
    if not _away.is_set():  # else Prefect would ask for minutes, and the stage wait
        try:
            bar = create_progress_artifact(0.0, key=key, description=latest[1])
            sender = threading.Thread(target=send, args=(bar,), daemon=True)
            sender.start()
        except REFUSED as error:
            unheard(error, logger)
    try:
        yield lambda *update: latest.__setitem__(slice(None), update)
    finally:
        over.set()
        if sender:
            sender.join(LATE)


@flow(name="stage", flow_run_name="{node[name]}", persist_result=False)
def stage(node: dict[str, Any], commit: str, entries: str) -> State:
    """Run one stage in this worker's clone, at a commit, and push its outputs to the remote.

    What it saves on its way is copied to the remote, too, and it goes on from what is there. Of a
    share, that is all; the stage itself finds it.

    Args:
        node: The fields of a `Node`, a stage of dvc.yaml or a share; only its inputs are fetched.
        commit: The commit to check out, if the clone has no edits.
        entries: Entries of dvc.lock of the stages that made the inputs, packed by `lockfile.pack`.
    """
    log, stop, asked = get_run_logger(), processes.Stop(), Node(**node)
    name = asked.name
    environment.enter()
    with processes.signals(stop, log.warning), progress(name) as progressed:
        try:
            with clone.at(commit, stop=stop, say=log.info):
                lockfile.adopt(lockfile.unpack(entries), stop=stop)
                clone.pull(asked.inputs, stop=stop, say=log.info)
                done = stage_run.run(
                    asked,
                    pull=not asked.forced,
                    move=True,
                    stop=stop,
                    say=log.info,
                    progressed=progressed,
                )
                entry, files = lockfile.read().get(name), {}  # of a share, there is none
                if entry:
                    clone.push(name, stop=stop, say=log.info)
                    files = clone.results_of(entry)
        except RrcmError as error:
            if stop.is_set():
                return stopped(stop)
            # Another host may have what this one lacks; an error of the stage itself is the same.
            final = isinstance(error, stage_run.Failed) and not error.retryable
            return Failed(name=FINAL if final else "Failed", message=str(error))
        result = {
            "entry": lockfile.pack({name: entry} if entry else {}),
            "files": files,
            "outcome": done.outcome,
            "seconds": done.seconds,
        }
        Artifact(type="result", description="What dvc.lock has of it", data=result).create()
    return Completed(name=done.outcome.value.capitalize())


def current_state() -> State:
    """What the server has as the state of the current run; others may have changed it."""
    with get_client(sync_client=True) as client:
        return client.read_flow_run(UUID(current.id)).state


def stopped(stop: processes.Stop, summary: str = "") -> State:
    """The state of a stopped run: cancelled if a person stopped it, in Prefect or here."""
    message = f"{stop.reason}; the same command goes on{f' ({summary})' if summary else ''}"
    try:
        cancelled = not stop.crashed or current_state().is_cancelling()
    except REFUSED:
        cancelled = False
    return Cancelled(message=message) if cancelled else Crashed(message=message)


def there(
    node: Node, commit: str, entries: Mapping[str, Any], *, stop: threading.Event, say: Say
) -> tuple[Result, dict[str, Any]]:
    """Have a worker run a stage; return its result and its entries for dvc.lock, not yet written.

    A share has none. Outputs that git keeps, such as metrics, are written here; DVC's remote does
    not have them. ``commit`` is a full hash that every clone can fetch, ``entries`` are those of
    the stages that it needs; when ``stop`` is set, the run is cancelled, and its end awaited;
    ``say`` is called with the reason for waiting.

    Raises:
        Stopped: ``stop`` was set.
        Failed: The stage failed, or its worker was lost; after a lost worker another one
            may take the run.
    """
    asked = {"node": asdict(node), "commit": commit, "entries": lockfile.pack(entries)}
    try:
        with _turn:
            run = run_deployment(DEPLOYMENT, parameters=asked, timeout=0)
    except ObjectNotFound:
        raise StageError(
            f"the server has no deployment {DEPLOYMENT}; `rrcm flow deploy` makes it"
        ) from None
    with get_client(sync_client=True) as client:
        state, stopped_here = _over(node.name, run.id, client, stop=stop, say=say)
        if state.is_completed():
            result = json.loads(_artifact(client, run.id, "result").data)
            made = lockfile.unpack(result["entry"])
            for entry in made.values():
                clone.put_results(entry, result["files"])
            outcome, seconds = Outcome(result["outcome"]), result["seconds"]
            return Result(stage=node.name, outcome=outcome, seconds=seconds), made
    if stopped_here:
        raise Stopped(f"{node.name}: stopped; what it saved is kept, and a new run goes on")
    if state.is_cancelled():
        raise stage_run.Failed(f"{node.name}: its run was cancelled")
    message = f"{node.name}: {state.message or state.name}"
    raise stage_run.Failed(message, retryable=state.name != FINAL)


def _over(
    name: str, run: UUID, client: SyncPrefectClient, *, stop: threading.Event, say: Say
) -> tuple[State, bool]:
    """Wait for the end of a run; return its last state, and whether it was cancelled from here.

    A run that stopped reporting is given up; one that no worker took stays awaited.
    """
    heard, news, cancelled, announced = time.monotonic(), None, 0.0, False
    starting = max(SILENCE, min(3 * SILENCE, SUBMISSION))  # a new process has much to load
    while True:
        try:
            state = client.read_flow_run(run).state
            if state.is_final():
                return state, bool(cancelled)
            now, before = time.monotonic(), news
            bar = _artifact(client, run, "progress")
            news = (state.type, bar and bar.updated)
            heard = now if news != before else heard
            silent = now - heard
            if stop.is_set() and not cancelled:
                cancelled = now
                asked = Cancelled() if state.is_scheduled() else Cancelling()
                client.set_flow_run_state(run, asked)
            elif cancelled and now - cancelled > FAREWELL:
                client.set_flow_run_state(run, Cancelled(message="no answer"), force=True)
            elif state.is_scheduled():
                if silent > LONELY and not announced:
                    announced = True
                    say("waiting for a worker; `rrcm flow worker`, in a clone, starts one")
            elif silent > (starting if state.is_pending() else SILENCE):
                lost = Crashed(message=f"nothing was heard of it for {silent:.0f} s")
                client.set_flow_run_state(run, lost, force=True)
        except ObjectNotFound:
            raise stage_run.Failed(f"{name}: its run was deleted") from None
        except httpx.HTTPError as error:  # the run may well go on
            if time.monotonic() - heard > SILENCE:
                raise stage_run.Failed(
                    f"{name}: no answer of the server ({error})", retryable=True
                ) from None
        time.sleep(1.0) if stop.is_set() else stop.wait(BEAT)


def _artifact(client: SyncPrefectClient, run: UUID, kind: str) -> Any:
    mine = ArtifactFilter(flow_run_id={"any_": [run]}, type={"any_": [kind]})
    return next(iter(client.read_artifacts(artifact_filter=mine)), None)
