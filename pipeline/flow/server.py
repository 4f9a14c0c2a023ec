"""What a Prefect server is told of this project: the pool, its queues, and prefect.yaml."""

import os
import sys
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

from pipeline.flow import commands
from pipeline.flow.environment import AUTH, FLOWS, POOL, SECRET, STAGES
from rrcm.errors import StageError, one_line

AT_WORK = [StateType.PENDING, StateType.RUNNING, StateType.CANCELLING]
OURS = WorkPoolFilter(name=WorkPoolFilterName(any_=[POOL]))


def deploy(schedules: bool | None) -> str:
    """Make the pool, its queues and the deployments of prefect.yaml, as they are now.

    Args:
        schedules: Switch all of them on or off. None leaves each as it is at the server, and new
            ones as prefect.yaml has them.

    Returns:
        A line for each deployment.

    Raises:
        StageError: The server does not answer, or refuses.
    """
    try:
        with get_client(sync_client=True) as client:
            _pool(client)
            before = {one.name: _scheduled(one) for one in _deployments(client)}
        _apply()
        with get_client(sync_client=True) as client:
            for one in _deployments(client):
                wanted = before.get(one.name) if schedules is None else schedules
                for schedule in one.schedules if wanted is not None else ():
                    client.update_deployment_schedule(one.id, schedule.id, active=wanted)
            return "\n".join(_line(one) for one in _deployments(client))
    except httpx.HTTPError as error:
        raise _refused(error) from None


def greet() -> None:
    """See that the server takes us.

    Raises:
        StageError: It asks for another secret, or does not answer.
    """
    try:
        with get_client(sync_client=True) as client:
            client.read_work_pools(limit=1)
    except httpx.HTTPError as error:
        raise _refused(error) from None


def check() -> None:
    """See that there is a pool to work for.

    Raises:
        StageError: There is none, or the server does not answer.
    """
    try:
        with get_client(sync_client=True) as client:
            client.read_work_pool(POOL)
    except ObjectNotFound:
        raise StageError(
            f"{_address()}: has no work pool {POOL}; `rrcm flow deploy` makes it"
        ) from None
    except httpx.HTTPError as error:
        raise _refused(error) from None


def sweep() -> None:
    """Give up flows that were at work when their worker died: nobody else would tell of it."""
    with get_client(sync_client=True) as client:
        types = FlowRunFilterStateType(any_=AT_WORK)
        for run in client.read_flow_runs(
            flow_run_filter=FlowRunFilter(state=FlowRunFilterState(type=types)),
            work_pool_filter=OURS,
            work_queue_filter=WorkQueueFilter(name=WorkQueueFilterName(any_=[FLOWS])),
        ):
            lost = Crashed(message="its worker ended before it; a new run goes on")
            client.set_flow_run_state(run.id, lost, force=True)


def _pool(client: SyncPrefectClient) -> None:
    try:
        client.create_work_pool(WorkPoolCreate(name=POOL, type="process"))
    except ObjectAlreadyExists:
        pass
    for queue in (FLOWS, STAGES):
        try:
            client.create_work_queue(name=queue, work_pool_name=POOL)
        except ObjectAlreadyExists:
            pass


def _deployments(client: SyncPrefectClient) -> list[DeploymentResponse]:
    return sorted(client.read_deployments(work_pool_filter=OURS), key=lambda one: one.name)


def _scheduled(deployment: DeploymentResponse) -> bool:
    return any(schedule.active for schedule in deployment.schedules)


def _apply() -> None:
    command = [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all"]
    code, lines = commands.run(command, environment=os.environ, stop=Event(), say=lambda line: None)
    if code != 0:
        raise StageError(f"prefect.yaml: {' '.join(lines[-3:])}")


def _line(deployment: DeploymentResponse) -> str:
    crons = ", ".join(f"{schedule.schedule.cron}" for schedule in deployment.schedules)
    state = "on" if _scheduled(deployment) else "off: `rrcm flow deploy --schedules`"
    return f"  {deployment.name}" + (f": {crons} ({state})" if crons else "")


def _refused(error: Exception) -> StageError:
    if isinstance(error, httpx.HTTPStatusError) and error.response.status_code == 401:
        return StageError(
            f"{_address()}: {AUTH} is not the secret of this server, or not set; where `rrcm flow "
            f"up` runs, it is in {SECRET}"
        )
    return StageError(f"{_address()}: {one_line(error) or type(error).__name__}")


def _address() -> str:
    return os.environ.get("PREFECT_API_URL", "no PREFECT_API_URL")
