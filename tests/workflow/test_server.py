"""`rrcm flow up`: a server with this project's deployments, and nothing left of it afterwards."""

import os
import signal
import sqlite3
import time
from pathlib import Path

import clones
import pytest
import workspace
from clones import Service, alive, until
from workspace import Workspace

UVICORN = ["-m", "uvicorn"]


def states(checkout: Path) -> dict[str, str]:
    """Id -> state of each run of a flow, as the database has it."""
    with sqlite3.connect(checkout / ".rrcm/prefect/prefect.db") as database:
        rows = database.execute("select id, state_type from flow_run").fetchall()
    database.close()
    return {str(row[0]).replace("-", ""): row[1] for row in rows}


@pytest.mark.slow
def test_up_serves_schedules_and_survives_being_killed_without_leaving_a_process(tmp_path: Path):
    team = clones.make(tmp_path / "team")
    checkout = team.clone("coordinator")
    hold = team.hold("big")

    often = {"PREFECT_SERVER_SERVICES_SCHEDULER_LOOP_SECONDS": "3"}
    service = Service(team, checkout, "--schedules", **often)
    names = {f"{one['name']}" for one in service.ask("deployments/filter", {})}
    queues = {one["name"] for one in service.ask("work_pools/rrcm/queues/filter", {})}
    planned = {"flow_runs": {"state": {"type": {"any_": ["SCHEDULED"]}}}}
    scheduled = until(lambda: service.ask("flow_runs/filter", planned))

    assert names == {"rebuild", "recertify", "on-demand", "stage"}
    assert {"flows", "stages"} <= queues
    assert all(run["auto_scheduled"] for run in scheduled)
    again = checkout.run("rrcm", "flow", "up", fails=True, **service.environment)
    assert again == f"error: `rrcm flow up` runs in this checkout already: {service.url}\n"

    run = service.start("rebuild/on-demand", targets=["left"])
    until(lambda: team.began() == [("big", "coordinator")])
    service.process.kill()
    service.process.wait()
    until(lambda: not alive(team), seconds=60)

    service = Service(team, checkout)
    assert states(checkout.path)[run.replace("-", "")] == "CRASHED"
    active = [
        one["schedules"][0]["active"]
        for one in service.ask("deployments/filter", {})
        if one["schedules"]
    ]
    assert active == [True, True]  # as they were

    run = service.start("rebuild/on-demand", targets=["left"])
    until(lambda: len(team.began()) == 2)
    os.kill(service.process.pid, signal.SIGTERM)
    assert service.process.wait(60) == 0
    assert not alive(team)
    assert states(checkout.path)[run.replace("-", "")] == "CRASHED"  # told by itself
    assert not (checkout.path / ".rrcm/prefect/server.json").exists()
    hold.unlink()


@pytest.mark.slow
def test_up_ends_soon_after_its_server_was_killed_and_can_be_started_again(tmp_path: Path):
    team = clones.make(tmp_path / "team")
    checkout = team.clone("coordinator")
    hold = team.hold("big")
    service = Service(team, checkout)
    run = service.start("rebuild/on-demand", targets=["left"])
    until(lambda: team.began() == [("big", "coordinator")])
    token = service.secret.partition(":")[2]
    commands = [" ".join(one.cmdline()) for one in clones.processes(service.process.pid)]
    (server,) = [
        one for one in clones.processes(service.process.pid) if one.cmdline()[1:3] == UVICORN
    ]

    server.kill()
    began = time.monotonic()
    code = service.process.wait(60)
    seconds = time.monotonic() - began

    last = service.log.read_text().splitlines()[-1]
    assert (code, last) == (1, "error: the server was killed by SIGKILL")
    assert seconds < 30, "some 3 s; the processor is others' too, and 60 s were for runs to tell"
    assert not alive(team)
    assert not any(token in one for one in commands)
    assert token not in service.log.read_text()
    home = checkout.path / ".rrcm/prefect"
    assert not (home / "server.json").exists() and not (home / "secret").exists()

    service = Service(team, checkout)
    assert service.secret.partition(":")[2] != token
    assert states(checkout.path)[run.replace("-", "")] == "CRASHED"
    service.process.terminate()
    assert service.process.wait(60) == 0
    for file in home.iterdir():
        assert not file.is_file() or token.encode() not in file.read_bytes(), file
    hold.unlink()


@pytest.fixture
def nearly(tmp_path: Path) -> Workspace:
    """All of a checkout that is looked at before anything starts."""
    (tmp_path / "dvc.yaml").touch()
    return Workspace(tmp_path)


@pytest.mark.parametrize("address", [("192.0.2.1", "0"), ("127.0.0.1", "99999")])
def test_an_address_that_cannot_be_had_is_said_in_one_line(nearly: Workspace, address: tuple):
    host, port = address
    command = ("rrcm", "flow", "up", "--host", host, "--port", port)
    output = nearly.run(*command, fails=True, PREFECT_API_URL="", PYTHONPATH=str(workspace.ROOT))

    assert output.startswith(f"error: --host {host} --port {port}: cannot listen there")
    assert output.count("\n") == 1


def test_a_server_that_is_meant_is_not_started_again(nearly: Workspace):
    url = "http://127.0.0.1:9/api"
    environment = {"PREFECT_API_URL": url, "PYTHONPATH": str(workspace.ROOT)}

    up = nearly.run("rrcm", "flow", "up", fails=True, **environment)
    worker = nearly.run("rrcm", "flow", "worker", fails=True, **environment)

    assert up.startswith(f"error: PREFECT_API_URL: {url} is a server already; ")
    assert worker.startswith(f"error: {url}: ") and worker.count("\n") == 1
