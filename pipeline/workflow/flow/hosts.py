"""Runs a stage on any free host: the flow of a worker, and the coordinator's request for it.

The request has all that a clone at any earlier state needs: the commit, the entries of dvc.lock of
the stage's inputs, and the paths of the inputs. The result is the stage's entry for dvc.lock; by
then its outputs and its run-cache entry are at the remote.

Guarantee: a run requested here is over when `there` returns or raises, or was given up because it
stopped reporting. Each run updates its progress every few seconds; one on a lost host does not.
"""

import json
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from uuid import UUID

import httpx
from prefect import flow, get_run_logger
from prefect.artifacts import Artifact
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId
from prefect.client.schemas.objects import State, StateType
from prefect.deployments import run_deployment
from prefect.exceptions import ObjectNotFound
from prefect.runtime import flow_run as current
from prefect.states import Cancelled, Cancelling, Completed, Crashed, Failed

from pipeline.workflow import lockfile, processes, shares, stage_run
from pipeline.workflow.flow import artifacts, checkout, environment
from pipeline.workflow.locks import Stopped
from pipeline.workflow.plan import Node
from pipeline.workflow.stage_run import Done, Outcome
from rrcm.core.errors import RrcmError, StageError

DEPLOYMENT = "stage/stage"
SILENCE = float(os.environ.get("RRCM_SILENCE_SECONDS", 180.0))  # after which a run is given up
# Seconds between two checks whether a run is over, of a new run and of one that takes minutes
OFTEN, SELDOM = 1.0, max(1.0, min(5.0, SILENCE / 12))
SUBMISSION = 180.0  # until a worker that took a run must have started it
LONELY = 60.0  # seconds until a message that no worker takes a run
FAREWELL = 90.0  # seconds for a cancelled run to end; its stage has 30
FINAL = "Failed for good"  # the name of the state of a failure that a retry cannot fix

Say = Callable[[str], None]
_turn = threading.Lock()  # Prefect's counter of a flow's subflow runs is not atomic


@flow(name="stage", flow_run_name="{name}", persist_result=False)
def stage(
    name: str, commit: str, devices: int, inputs: list[str], entries: str, forced: bool
) -> State:
    """Run one stage in this worker's clone, at a commit, and push its outputs to the remote.

    What it saves on its way is copied to the remote, too, and it goes on from what is there. Of a
    share, that is all; the stage itself finds it.

    Args:
        name: Name of the stage in dvc.yaml, or of a share.
        commit: The commit to check out, if the clone has no edits.
        devices: GPUs of this host that the stage takes; 0: all.
        inputs: Outputs of other stages and data that it reads; nothing else is fetched.
        entries: Entries of dvc.lock of the stages that made the inputs, packed by `lockfile.pack`.
        forced: Run it even if it was run before.
    """
    log, stop = get_run_logger(), processes.Stop()
    environment.enter()
    with (
        processes.signals(stop, log.warning),
        artifacts.progress(name, {}, every=SILENCE / 12) as progressed,
    ):
        try:
            with checkout.at(commit, stop=stop, say=log.info):
                if restored := lockfile.restore():
                    log.warning(restored)
                lockfile.adopt(lockfile.unpack(entries), stop=stop)
                checkout.pull(inputs, stop=stop, say=log.info)
                done = stage_run.run(
                    name,
                    devices=devices,
                    forced=forced,
                    pull=not forced,
                    move=True,
                    stop=stop,
                    say=log.info,
                    progressed=progressed,
                )
                made: dict[str, Any] = {"entry": lockfile.pack({}), "files": {}}
                if name == shares.split(name)[0]:
                    checkout.push(name, stop=stop, say=log.info)
                    entry = lockfile.entries([name])
                    files = checkout.results_of(entry[name])
                    made = {"entry": lockfile.pack(entry), "files": files}
        except RrcmError as error:
            if stop.is_set():
                return stopped(stop)
            # Another host may have what this one lacks; an error of the stage itself is the same.
            final = isinstance(error, stage_run.Failed) and not error.retryable
            return Failed(name=FINAL if final else "Failed", message=str(error))
        made |= {"outcome": done.outcome, "seconds": done.seconds}
        Artifact(type="result", description="What dvc.lock has of it", data=made).create()
    return Completed(name=done.outcome.value.capitalize())


def stopped(stop: processes.Stop, told: str = "") -> State:
    """The state of a stopped run: cancelled if a person stopped it, in Prefect or here."""
    message = f"{stop.reason}; the same command goes on{f' ({told})' if told else ''}"
    with get_client(sync_client=True) as client:
        now = client.read_flow_run(UUID(current.id)).state
    cancelled = not stop.crashed or (now is not None and now.is_cancelling())
    return Cancelled(message=message) if cancelled else Crashed(message=message)


def there(
    node: Node,
    commit: str,
    inputs: Mapping[str, Any],
    *,
    stop: threading.Event,
    say: Say,
) -> tuple[Done, dict[str, Any]]:
    """Have a worker run a stage; return its result and its entries for dvc.lock, not yet written.

    A share has none.

    Outputs that git keeps, such as metrics, are written here; DVC's remote does not have them.

    Args:
        node: The stage.
        commit: The full hash of a commit that every clone can fetch.
        inputs: The current entries of dvc.lock of the stages that it needs.
        stop: When it is set, the run is cancelled, and its end awaited.
        say: Called with the reason for waiting.

    Raises:
        Stopped: ``stop`` was set.
        Failed: The stage failed, or its worker was lost; after a lost worker another one
            may take the run.
    """
    parameters = {
        "name": node.name,
        "commit": commit,
        "devices": node.devices,
        "inputs": _outputs(node.inputs, inputs),
        "entries": lockfile.pack(inputs),
        "forced": node.forced,
    }
    try:
        with _turn:
            asked = run_deployment(DEPLOYMENT, parameters=parameters, timeout=0)
    except ObjectNotFound:
        raise StageError(
            f"the server has no deployment {DEPLOYMENT}; `rrcm flow deploy` makes it"
        ) from None
    with get_client(sync_client=True) as client:
        return _Watch(node.name, asked.id, client, say).wait(stop)


def _outputs(inputs: Sequence[str], entries: Mapping[str, Any]) -> list[str]:
    """Input paths as `dvc pull` accepts them: not a folder that contains several outputs."""
    made = [out["path"] for entry in entries.values() for out in entry.get("outs", ())]
    found = {path: [out for out in made if out.startswith(f"{path}/")] for path in inputs}
    return [one for path, inside in found.items() for one in inside or [path]]


class _Watch:
    """Follows a requested run until it ends, from the coordinator."""

    def __init__(self, name: str, run: UUID, client: SyncPrefectClient, say: Say) -> None:
        self._name, self._run, self._client, self._say = name, run, client, say
        self._began = self._heard = time.monotonic()
        self._kind: StateType | None = None  # of the last answer
        self._bar: object = None  # when its progress was last updated
        self._asked = 0.0  # when its cancellation was requested

    def wait(self, stop: threading.Event) -> tuple[Done, dict[str, Any]]:
        """Wait until the run is over; return its result and its entries for dvc.lock."""
        while True:
            try:
                state = self._client.read_flow_run(self._run).state
                if state.is_final():
                    return self._ended(state)
                if stop.is_set():
                    self._end(state)
                self._look(state)
            except ObjectNotFound:
                raise stage_run.Failed(f"{self._name}: its run was deleted") from None
            except httpx.HTTPError as error:  # the run may well go on
                if time.monotonic() - self._heard > SILENCE:
                    raise stage_run.Failed(
                        f"{self._name}: no answer of the server ({error})", retryable=True
                    ) from None
            # A twentieth of the time that the run has taken so far, within the bounds above
            pause = min(max(OFTEN, (time.monotonic() - self._began) / 20), SELDOM)
            time.sleep(OFTEN) if stop.is_set() else stop.wait(pause)

    def _ended(self, state: State) -> tuple[Done, dict[str, Any]]:
        if state.is_completed():
            found = json.loads(self._artifact("result").data)
            entries = lockfile.unpack(found["entry"])
            for entry in entries.values():
                checkout.put_results(entry, found["files"])
            return Done(outcome=Outcome(found["outcome"]), seconds=found["seconds"]), entries
        if self._asked:
            raise Stopped(f"{self._name}: stopped; what it saved is kept, and a new run goes on")
        if state.is_cancelled():
            raise stage_run.Failed(f"{self._name}: its run was cancelled")
        message = f"{self._name}: {state.message or state.name}"
        raise stage_run.Failed(message, retryable=state.name != FINAL)

    def _artifact(self, kind: str) -> Any:
        mine = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[self._run]))
        found = self._client.read_artifacts(artifact_filter=mine)
        return next((one for one in found if one.type == kind), None)

    def _progressed(self) -> bool:
        """Whether its progress was updated since the last call, which costs the server a query."""
        bar = self._artifact("progress")
        before, self._bar = self._bar, bar and bar.updated
        return self._bar != before

    def _end(self, state: State) -> None:
        """Cancel the run; one that does not end in time is marked as ended."""
        now = time.monotonic()
        if not self._asked:
            self._asked = now
            state = Cancelled() if state.is_scheduled() else Cancelling()
            self._client.set_flow_run_state(self._run, state)
        elif now - self._asked > FAREWELL:
            state = Cancelled(message="no answer")
            self._client.set_flow_run_state(self._run, state, force=True)

    def _look(self, state: State) -> None:
        """Give the run up if it stopped reporting; one that no worker took stays awaited."""
        before, self._kind = self._kind, state.type
        silent = time.monotonic() - self._heard
        if state.type != before:
            self._heard = time.monotonic()
        elif state.is_scheduled():
            if silent > LONELY:
                self._say("waiting for a worker; `rrcm flow worker`, in a clone, starts one")
                self._say = lambda line: None
        elif silent > SILENCE / 6 and self._progressed():
            self._heard = time.monotonic()
        elif silent > (max(SILENCE, SUBMISSION) if state.is_pending() else SILENCE):
            lost = Crashed(message=f"nothing was heard of it for {silent:.0f} s")
            self._client.set_flow_run_state(self._run, lost, force=True)
