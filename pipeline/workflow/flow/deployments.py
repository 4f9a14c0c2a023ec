"""Registers this project's work pool and deployments at a Prefect server."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Event

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.filters import FlowRunFilter, WorkPoolFilter, WorkQueueFilter
from prefect.client.schemas.objects import StateType
from prefect.client.schemas.responses import DeploymentResponse
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound
from prefect.states import Crashed

from pipeline.workflow import processes
from pipeline.workflow.flow.environment import ADDRESS, AUTH, FLOWS, POOL, SERVER
from rrcm.core.errors import StageError, one_line

AT_WORK = [StateType.PENDING, StateType.RUNNING, StateType.CANCELLING]
OURS = WorkPoolFilter(name={"any_": [POOL]})


def deploy() -> str:
    """Make the work pool, the queues and the deployments at the server those of prefect.yaml.

    Returns:
        A line for each deployment.

    Raises:
        StageError: The server does not answer, or refuses.
    """
    with _asked() as client, suppress(ObjectAlreadyExists):
        client.create_work_pool(WorkPoolCreate(name=POOL, type="process"))
    command = [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all"]
    code, lines = processes.run(command, stop=Event(), say=lambda line: None)
    if code != 0:
        raise StageError(f"prefect.yaml: {' '.join(lines[-3:])}")
    with _asked() as client:
        return "\n".join(sorted(map(_line, client.read_deployments(work_pool_filter=OURS))))


def check() -> None:
    """Check that the server accepts our secret and has the work pool.

    Raises:
        StageError: The server asks for another secret, does not answer, or has no pool.
    """
    with _asked() as client:
        try:
            client.read_work_pool(POOL)
        except ObjectNotFound:
            raise StageError(
                f"{os.environ[ADDRESS]}: has no work pool {POOL}; `rrcm flow deploy` makes it"
            ) from None


def sweep() -> None:
    """Mark flow runs as crashed whose worker died; they could not report it themselves."""
    with _asked() as client:
        at_work = FlowRunFilter(state={"type": {"any_": AT_WORK}})
        queue = WorkQueueFilter(name={"any_": [FLOWS]})
        for run in client.read_flow_runs(
            flow_run_filter=at_work, work_pool_filter=OURS, work_queue_filter=queue
        ):
            lost = Crashed(message="its worker ended before it; a new run goes on")
            client.set_flow_run_state(run.id, lost, force=True)


@contextmanager
def _asked() -> Iterator[SyncPrefectClient]:
    """A Prefect client whose errors become a `StageError` of one line."""
    address = os.environ[ADDRESS]
    try:
        with get_client(sync_client=True) as client:
            yield client
    except httpx.HTTPError as error:
        if isinstance(error, httpx.HTTPStatusError) and error.response.status_code == 401:
            raise StageError(
                f"{address}: {AUTH} is not the secret of this server, or not set; where `rrcm flow "
                f"up` runs, it is in {SERVER}"
            ) from None
        raise StageError(f"{address}: {one_line(error) or type(error).__name__}") from None


def _line(deployment: DeploymentResponse) -> str:
    crons = [
        f"{one.schedule.cron} ({'on' if one.active else 'off: `active` in prefect.yaml'})"
        for one in deployment.schedules
    ]
    return f"  {deployment.name}{': ' * bool(crons)}{', '.join(crons)}"
