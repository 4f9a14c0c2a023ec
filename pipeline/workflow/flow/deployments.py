"""Registers this project's work pool and deployments at a Prefect server."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
    WorkPoolFilter,
    WorkPoolFilterName,
    WorkQueueFilter,
    WorkQueueFilterName,
)
from prefect.client.schemas.objects import StateType
from prefect.client.schemas.responses import DeploymentResponse
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound
from prefect.states import Crashed

from pipeline.workflow import processes
from pipeline.workflow.flow.environment import ADDRESS, AUTH, FLOWS, POOL, SECRET
from rrcm.core.errors import StageError, one_line

AT_WORK = [StateType.PENDING, StateType.RUNNING, StateType.CANCELLING]
OURS = WorkPoolFilter(name=WorkPoolFilterName(any_=[POOL]))


def deploy(schedules: bool | None) -> str:
    """Create or update the work pool, the queues and the deployments of prefect.yaml.

    Args:
        schedules: Whether all schedules are active. None leaves each as it is at the server, and
            new ones as in prefect.yaml.

    Returns:
        A line for each deployment.

    Raises:
        StageError: The server does not answer, or refuses.
    """
    with _asked() as client:
        try:
            client.create_work_pool(WorkPoolCreate(name=POOL, type="process"))
        except ObjectAlreadyExists:
            pass
        before = {one.name: _scheduled(one) for one in _deployments(client)}
    command = [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all"]
    code, lines = processes.run(command, stop=Event(), say=lambda line: None)
    if code != 0:
        raise StageError(f"prefect.yaml: {' '.join(lines[-3:])}")
    with _asked() as client:
        for one in _deployments(client):
            wanted = before.get(one.name) if schedules is None else schedules
            for schedule in one.schedules if wanted is not None else ():
                client.update_deployment_schedule(one.id, schedule.id, active=wanted)
        return "\n".join(_line(one) for one in _deployments(client))


def check(*, pool: bool) -> None:
    """Check that the server accepts our secret and, if ``pool``, that it has the work pool.

    Raises:
        StageError: The server asks for another secret, does not answer, or has no pool.
    """
    with _asked() as client:
        try:
            client.read_work_pool(POOL) if pool else client.read_work_pools(limit=1)
        except ObjectNotFound:
            raise StageError(
                f"{os.environ[ADDRESS]}: has no work pool {POOL}; `rrcm flow deploy` makes it"
            ) from None


def sweep() -> None:
    """Mark flow runs as crashed whose worker died; they could not report it themselves."""
    with _asked() as client:
        types = FlowRunFilterStateType(any_=AT_WORK)
        for run in client.read_flow_runs(
            flow_run_filter=FlowRunFilter(state=FlowRunFilterState(type=types)),
            work_pool_filter=OURS,
            work_queue_filter=WorkQueueFilter(name=WorkQueueFilterName(any_=[FLOWS])),
        ):
            lost = Crashed(message="its worker ended before it; a new run goes on")
            client.set_flow_run_state(run.id, lost, force=True)


@contextmanager
def _asked() -> Iterator[SyncPrefectClient]:
    """A Prefect client whose errors become a `StageError` of one line."""
    address = os.environ.get(ADDRESS, f"no {ADDRESS}")
    try:
        with get_client(sync_client=True) as client:
            yield client
    except httpx.HTTPError as error:
        if isinstance(error, httpx.HTTPStatusError) and error.response.status_code == 401:
            raise StageError(
                f"{address}: {AUTH} is not the secret of this server, or not set; where `rrcm flow "
                f"up` runs, it is in {SECRET}"
            ) from None
        raise StageError(f"{address}: {one_line(error) or type(error).__name__}") from None


def _deployments(client: SyncPrefectClient) -> list[DeploymentResponse]:
    return sorted(client.read_deployments(work_pool_filter=OURS), key=lambda one: one.name)


def _scheduled(deployment: DeploymentResponse) -> bool:
    return any(schedule.active for schedule in deployment.schedules)


def _line(deployment: DeploymentResponse) -> str:
    crons = ", ".join(f"{schedule.schedule.cron}" for schedule in deployment.schedules)
    state = "on" if _scheduled(deployment) else "off: `rrcm flow deploy --schedules`"
    return f"  {deployment.name}" + (f": {crons} ({state})" if crons else "")
