"""A stage on whichever host is free: the flow of a worker, and how a coordinator asks for it.

The coordinator says all that is needed: the commit, what dvc.lock has of the stage's inputs, and
the inputs by name, so that a clone at any earlier state can run it. What comes back is the entry of
dvc.lock; outputs and the run's cache entry lie at the remote before it does.

Guarantee: a run asked for here is over when `there` returns or raises, or was given up because
nothing was heard of it. Each run tells that it lives, every few seconds; a host that is gone
is one that no longer does.
"""

import base64
import json
import os
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any
from uuid import UUID

import httpx
from prefect import flow, get_run_logger
from prefect.artifacts import Artifact, create_progress_artifact
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import ArtifactUpdate
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.deployments import run_deployment
from prefect.exceptions import ObjectNotFound
from prefect.runtime import flow_run as own
from prefect.states import Cancelled, Cancelling, Completed, Crashed
from prefect.states import Failed as FailedState

from pipeline.flow import checkouts, environment, plan, results, running, signals
from pipeline.flow.environment import POOL, STAGES
from pipeline.flow.plan import Node
from pipeline.flow.running import Done, Failed, Outcome, Stopped
from rrcm.errors import RrcmError, StageError

DEPLOYMENT = "stage/stage"
POLL, LOOK = 1.0, 3.0  # seconds between two questions whether a run is over; how far it is
SILENCE = float(os.environ.get("RRCM_SILENCE_SECONDS", 180.0))  # after which a run is given up
BEAT = SILENCE / 12  # between signs of life of a run that has nothing to tell
OFTEN = SILENCE / 36  # and of one that has
SUBMISSION = 180.0  # until a worker that took a run must have started it
LONELY = 60.0  # after which it is said that nobody takes a run
FAREWELL = 90.0  # for a run to end that was told to; its stage has 30
FINAL = "Failed for good"  # the name of a state that no second try can mend

Say = Callable[[str], None]
Progressed = Callable[[float, str], None]
_turn = threading.Lock()  # Prefect counts the runs that a flow asks for, but not atomically


def pack(entries: Mapping[str, Any]) -> str:
    """Entries of dvc.lock as text, some ten times shorter: Prefect takes no large parameters."""
    return base64.b64encode(zlib.compress(json.dumps(entries).encode())).decode()


def unpack(packed: str) -> dict[str, Any]:
    """The reverse of `pack`."""
    return json.loads(zlib.decompress(base64.b64decode(packed)))


@flow(name="stage", flow_run_name="{name}", persist_result=False)
def stage(
    name: str, commit: str, devices: int, inputs: list[str], entries: str, forced: bool
) -> State:
    """Run one stage in this worker's clone, at a commit, and give the remote what it made.

    Args:
        name: As in dvc.yaml.
        commit: The clone is taken there, if nobody edited it.
        devices: Slots of this host that the stage takes; 0: all.
        inputs: What it reads of other stages and of data; nothing else is fetched.
        entries: Of dvc.lock, of the stages that made them, packed.
        forced: Run it even if it was run before.
    """
    log, stop = get_run_logger(), signals.Stop()
    environment.enter()
    with signals.heeded(stop, log.warning), _beating(name) as beat:
        try:
            with checkouts.at(commit, stop=stop, say=log.info):
                plan.adopt(unpack(entries))
                checkouts.pull(inputs, stop=stop, say=log.info)
                done = running.run(
                    name,
                    devices=devices,
                    forced=forced,
                    pull=not forced,
                    stop=stop,
                    say=log.info,
                    progressed=beat.progressed,
                )
                checkouts.push(name, stop=stop, say=log.info)
                entry = plan.entries([name])[name]
                made = {"entry": entry, "files": results.made_by(entry)}
        except RrcmError as error:
            if stop.is_set():
                return _stopped(stop)
            final = isinstance(error, Failed) and error.final
            return FailedState(name=FINAL if final else "Failed", message=str(error))
        _leave(asdict(done) | made)
    return Completed(name=done.outcome.value.capitalize())


def _stopped(stop: signals.Stop) -> State:
    """Cancelled if that was asked for by way of Prefect, else it ended with its worker."""
    with get_client(sync_client=True) as client:
        state = client.read_flow_run(UUID(own.id)).state
    asked = state is not None and state.is_cancelling()
    return Cancelled(message=stop.reason) if asked else Crashed(message=stop.reason)


def _leave(result: dict[str, Any]) -> None:
    """Where the coordinator finds it, through the API alone."""
    Artifact(type="result", description="What dvc.lock has of it", data=result).create()


@dataclass(kw_only=True, slots=True)
class _Beat:
    """How far a run is, told now and then."""

    percent: float = 0.0
    text: str = ""
    over: threading.Event = field(default_factory=threading.Event)
    news: threading.Event = field(default_factory=threading.Event)

    def progressed(self, percent: float, text: str) -> None:
        self.percent, self.text = percent, text
        self.news.set()

    def tell(self, artifact: UUID) -> None:
        """Until it is over; a server that does not answer now may do so later."""
        with get_client(sync_client=True) as client:
            while not self.over.wait(OFTEN):
                self.news.wait(BEAT - OFTEN)
                self.news.clear()
                update = ArtifactUpdate(data=self.percent, description=self.text or "at work")
                try:
                    client.update_artifact(artifact_id=artifact, artifact=update)
                except httpx.HTTPError:
                    continue


@contextmanager
def _beating(name: str) -> Iterator[_Beat]:
    beat = _Beat()
    artifact = create_progress_artifact(0.0, description=f"{name}: begins")
    teller = threading.Thread(target=beat.tell, args=(artifact,), daemon=True)
    teller.start()
    try:
        yield beat
    finally:
        beat.over.set()
        beat.news.set()


def there(
    node: Node,
    *,
    commit: str,
    entries: Mapping[str, Any],
    stop: threading.Event,
    say: Say,
    progressed: Progressed,
) -> tuple[Done, dict[str, Any]]:
    """Have a worker run a stage; how it ended, and its entry for dvc.lock, which is left alone.

    What git keeps of its outputs, such as metrics, is here then; DVC's remote does not have it.

    Args:
        node: The stage.
        commit: Its full name; every clone can have it.
        entries: Of dvc.lock, as they are now; those of its inputs are sent.
        stop: Set, the run is cancelled, and waited for.
        say: Told what is waited for.
        progressed: Called with the percentage and the text of a bar, as it proceeds.

    Raises:
        Stopped: ``stop`` was set.
        Failed: The stage failed, or its worker was lost; not final then, another may take it.
    """
    needed = {name: entries[name] for name in node.upstream if name in entries}
    parameters = {
        "name": node.name,
        "commit": commit,
        "devices": node.devices,
        "inputs": _outputs(node.inputs, needed),
        "entries": pack(needed),
        "forced": node.forced,
    }
    try:
        with _turn:
            asked = run_deployment(DEPLOYMENT, parameters=parameters, timeout=0)
    except ObjectNotFound:
        raise StageError(
            f"the server has no deployment {DEPLOYMENT}; `rrcm flow deploy` makes it"
        ) from None
    return _Watch(node.name, asked.id, say=say, progressed=progressed).wait(stop)


def _outputs(inputs: Sequence[str], entries: Mapping[str, Any]) -> list[str]:
    """Inputs by names that `dvc pull` knows: it takes no folder in which several outputs lie."""
    made = [out["path"] for entry in entries.values() for out in entry.get("outs", ())]
    found = {path: [out for out in made if out.startswith(f"{path}/")] for path in inputs}
    return [one for path, inside in found.items() for one in inside or [path]]


class _Watch:
    """A run that was asked for, seen from here."""

    def __init__(self, name: str, run: UUID, *, say: Say, progressed: Progressed) -> None:
        self.name, self.run, self._say, self._progressed = name, run, say, progressed
        self._heard = time.monotonic()
        self._sign: object = None
        self._alone = False
        self._asked = 0.0  # when it was told to end
        self._due = 0.0

    def wait(self, stop: threading.Event) -> tuple[Done, dict[str, Any]]:
        """Until it is over."""
        with get_client(sync_client=True) as client:
            while True:
                try:
                    seen = client.read_flow_run(self.run)
                    if seen.state.is_final():
                        return self._ended(client, seen.state)
                    if stop.is_set():
                        self._end(client, seen.state)
                    self._look(client, seen)
                except httpx.HTTPError as error:  # the run may well go on
                    if time.monotonic() - self._heard > SILENCE:
                        raise Failed(f"{self.name}: no answer of the server ({error})") from None
                time.sleep(POLL) if stop.is_set() else stop.wait(POLL)

    def _ended(self, client: SyncPrefectClient, state: State) -> tuple[Done, dict[str, Any]]:
        message = state.message or state.name
        if state.is_completed():
            found = json.loads(self._artifact(client, "result").data)
            done = Done(outcome=Outcome(found["outcome"]), seconds=found["seconds"])
            results.put(found["entry"], found["files"])
            return done, found["entry"]
        if self._asked:
            raise Stopped(f"{self.name}: stopped; what it saved is kept, and a new run goes on")
        if state.is_cancelled():
            raise Failed(f"{self.name}: its run was cancelled", final=True)
        raise Failed(f"{self.name}: {message}", final=state.name == FINAL)

    def _artifact(self, client: SyncPrefectClient, kind: str) -> Any:
        mine = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[self.run]))
        found = [one for one in client.read_artifacts(artifact_filter=mine) if one.type == kind]
        return found[0] if found else None

    def _end(self, client: SyncPrefectClient, state: State) -> None:
        """Tell it to; who does not in time, is over by word of ours."""
        now = time.monotonic()
        if not self._asked:
            self._asked = now
            state = Cancelled() if state.is_scheduled() else Cancelling()
            client.set_flow_run_state(self.run, state)
        elif now - self._asked > FAREWELL:
            client.set_flow_run_state(self.run, Cancelled(message="no answer"), force=True)

    def _look(self, client: SyncPrefectClient, seen: FlowRun) -> None:
        """Whether anything is heard of it."""
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + LOOK
        artifact = self._artifact(client, "progress")
        sign = (seen.state.type, artifact and artifact.updated)
        silent = time.monotonic() - self._heard
        if sign != self._sign:
            self._sign, self._heard = sign, time.monotonic()
            if artifact and artifact.data:
                self._progressed(float(artifact.data), artifact.description or "")
        elif seen.state.type == StateType.SCHEDULED:
            if silent > LONELY and not self._alone:
                self._alone = True
                self._say(_nobody(client))
        elif silent > (SUBMISSION if seen.state.type == StateType.PENDING else SILENCE):
            lost = Crashed(message=f"nothing was heard of it for {silent:.0f} s")
            client.set_flow_run_state(self.run, lost, force=True)


def _nobody(client: SyncPrefectClient) -> str:
    queue = client.read_work_queue_by_name(STAGES, work_pool_name=POOL)
    if queue.status is not None and queue.status.value == "READY":
        return "waiting: all workers are busy"
    return "waiting: no worker is there; `rrcm flow worker`, in a clone of a host, starts one"
