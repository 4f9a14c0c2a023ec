"""The server of a checkout: nobody but its user can use it, and at its end nothing is left."""

import base64
import json
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import clones
import httpx
import pytest
from builders import refused
from clones import Service, alive, until
from servers import Server
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect
from workspace import ROOT, Workspace

from pipeline.workflow import processes
from pipeline.workflow.flow import environment
from pipeline.workflow.flow import server as flow_server
from rrcm.core.errors import ConfigError, StageError

NOBODY = 65534
EXPLOIT = {"job_variables": {"command": "touch pwned"}}
OPEN = {("get", "/api/health"), ("get", "/api/ready")}  # they say that a server is there
ELSEWHERE = "http://attacker.example.org"
SOCKETS = (
    *("events/in", "events/out", "logs/out", "task_runs/subscriptions/scheduled"),
    "work_pools/rrcm/workers/connect",
)
STRANGER = """
import sys, urllib.error, urllib.request
url, process, secret = sys.argv[1:]
for path in (secret, f"/proc/{process}/environ"):
    try:
        print(open(path).read())
    except OSError as error:
        print(type(error).__name__)
print(open(f"/proc/{process}/cmdline").read().replace(chr(0), " "))
try:
    print(urllib.request.urlopen(urllib.request.Request(url, b"{}")).status)
except urllib.error.HTTPError as error:
    print(error.code)
"""


@pytest.fixture
def attack(server: Server) -> str:
    """Where whoever may ask can have a worker run a command."""
    flow = server.make("flows/", name="rebuild")
    deployment = server.make("deployments/", name="on-demand", flow_id=flow)
    return f"{server.url}/deployments/{deployment}/create_flow_run"


def test_without_the_secret_no_request_is_carried_out_and_with_it_a_run_is_made(
    server: Server, attack: str
):
    schema = httpx.get(f"{server.url}/openapi.json", auth=server.login, timeout=60).json()
    routes = {
        (method, path if path.startswith("/api/") else f"/api{path}")
        for path, methods in schema["paths"].items()
        for method in methods
    }
    with httpx.Client(base_url=server.url.removesuffix("/api")) as stranger:
        answers = {route: stranger.request(*route).status_code for route in routes}
    almost = (server.login[0], server.login[1][:-1])

    assert len(routes) > 150
    assert {route for route, code in answers.items() if code != 401} <= OPEN
    assert httpx.post(attack, json=EXPLOIT, auth=almost).status_code == 401
    assert httpx.post(attack, json={}, auth=server.login).status_code == 201


def test_no_stream_is_had_without_the_secret(server: Server):
    def told(path: str, token: str, protocols: list[str] | None) -> str:
        url = f"{server.url}/{path}".replace("http", "ws", 1)
        try:
            with connect(url, subprotocols=protocols) as socket:
                socket.send(json.dumps({"type": "auth", "token": token}))
                return json.loads(socket.recv(timeout=60))["type"]
        except Exception as error:  # refused before or after the handshake
            assert isinstance(error, ConnectionClosed) or "403" in str(error), error
            return "refused"

    for path in SOCKETS:
        assert told(path, "rrcm:wrong", ["prefect"]) == told(path, server.secret, None) == "refused"
        assert told(path, server.secret, ["prefect"]) == "auth_success"


def test_pages_of_other_origins_and_names_may_not_ask(server: Server, attack: str):
    """A page whose name is made to mean loopback has that name's memory, without the secret."""
    plain = {"Origin": ELSEWHERE, "Content-Type": "text/plain"}  # which needs no leave
    sent = httpx.post(attack, content=json.dumps(EXPLOIT), headers=plain)
    renamed = httpx.post(attack, json=EXPLOIT, headers={"Host": "attacker.example.org"})
    health = httpx.get(f"{server.url}/health", headers={"Origin": ELSEWHERE})
    asks = {"Access-Control-Request-Method": "POST"}
    asks |= {"Access-Control-Request-Headers": "authorization,content-type"}
    other, ours = (
        httpx.options(attack, headers={"Origin": origin, **asks})
        for origin in (ELSEWHERE, server.url.removesuffix("/api"))
    )

    assert (other.status_code, ours.status_code) == (400, 200)
    assert sent.status_code == renamed.status_code == 401
    for answer in (other, sent, health):
        assert "Access-Control-Allow-Origin" not in answer.headers
    assert "set-cookie" not in renamed.headers
    assert "www-authenticate" not in renamed.headers, "a browser would then remember, and send it"


@pytest.mark.skipif(
    os.getuid() != 0 or not shutil.which("setpriv"), reason="only root can be another user"
)
def test_another_user_neither_reads_the_secret_nor_makes_a_run(server: Server, attack: str):
    file = server.folder / environment.SERVER
    asked = [attack, str(server.process.pid), str(file)]
    other = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    done = subprocess.run(
        [*other, sys.executable, "-I", "-c", STRANGER, *asked],
        capture_output=True,
        text=True,
        check=True,
    )
    *read, command, answer = done.stdout.splitlines()

    assert json.loads(file.read_text())["PREFECT_API_AUTH_STRING"] == server.secret
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert read == ["PermissionError", "PermissionError"]
    assert "uvicorn" in command and server.login[1] not in command
    assert answer == "401"


def test_the_secret_is_in_no_log(server: Server):
    token = base64.b64encode(server.secret.encode())

    for file in (path for path in server.folder.rglob("*") if path.is_file()):
        if file != server.folder / environment.SERVER:
            content = file.read_bytes()
            assert server.login[1].encode() not in content and token not in content, file


def test_a_secret_is_fresh_or_long_enough_and_cannot_be_switched_off(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setenv(environment.SERVER_AUTH, "")
    assert environment.secret() != environment.secret() and len(environment.secret()) > 40
    monkeypatch.setenv(environment.SERVER_AUTH, "of:a whole team of ours")
    assert environment.secret() == "of:a whole team of ours"
    for given in ("admin:pass", "admin:\N{GREEK SMALL LETTER SIGMA} and many more"):
        monkeypatch.setenv(environment.SERVER_AUTH, given)
        with refused(ConfigError, environment.SERVER_AUTH, "unset it"):
            environment.secret()


def test_a_server_that_asks_for_no_secret_is_not_used(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PREFECT_API_URL", "http://open/api")
    monkeypatch.setattr(flow_server, "_status", lambda url: 200)
    monkeypatch.setattr(flow_server, "_look", lambda what, process: None)

    with refused(StageError, "http://open/api", "asks for no secret"):
        flow_server._begun(None, processes.Stop())


def test_who_lacks_the_secret_is_told_what_to_set(server: Server, tmp_path: Path):
    """In all of a checkout that is looked at before anything starts."""
    theirs = {"PREFECT_API_URL": server.url, "PREFECT_API_AUTH_STRING": "rrcm:of another server"}
    (tmp_path / ".git").mkdir()
    (tmp_path / "dvc.yaml").write_text("stages: {}\n")
    (tmp_path / "params.yaml").touch()
    nearly = Workspace(tmp_path)

    assert nearly.run("rrcm", "flow", "worker", fails=True, PYTHONPATH=str(ROOT), **theirs) == (
        f"error: {server.url}: PREFECT_API_AUTH_STRING is not the secret of this server, or not "
        "set; where `rrcm flow up` runs, it is in .rrcm/prefect/server.json\n"
    )


# --- which server


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, str]:
    """An environment of the test's own, in an empty folder."""
    own = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT", "RRCM"))}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "environ", own)
    return own


URL = "http://127.0.0.1:4200/api"


def test_a_server_of_this_checkout_is_meant_as_long_as_it_lives(variables: dict[str, str]):
    """And of two starts the second is told what the first does."""
    with environment.alone():
        with refused(StageError, f"`rrcm flow up`: process {os.getpid()} is at the same work"):
            environment.alone().__enter__()
        variables |= {"PREFECT_API_URL": URL, "PREFECT_API_AUTH_STRING": "rrcm:its secret"}
        environment.publish()
        del variables["PREFECT_API_URL"], variables["PREFECT_API_AUTH_STRING"]
        left = environment.SERVER.read_text()
        assert environment.prepare() == variables["PREFECT_API_URL"] == URL
        assert variables["PREFECT_API_AUTH_STRING"] == "rrcm:its secret"
    del variables["PREFECT_API_URL"]
    assert not environment.SERVER.exists()
    environment.SERVER.write_text(left)  # of one that was killed

    assert environment.prepare() == ""
    with refused(ConfigError, "no server: start `rrcm flow up`", "`rrcm repro --jobs`"):
        environment.named()
    with environment.alone():
        assert not environment.SERVER.exists()


def test_a_server_that_is_named_is_meant_and_nobody_is_told_of_it(variables: dict[str, str]):
    variables["PREFECT_API_URL"] = "http://example.org/api"
    with environment.alone():
        environment.SERVER.write_text(json.dumps({"PREFECT_API_AUTH_STRING": "rrcm:of ours"}))
        assert environment.prepare() == environment.named() == "http://example.org/api"
    assert "PREFECT_API_AUTH_STRING" not in variables, "ours is not for others"
    assert "PREFECT_HOME" not in variables
    with refused(ConfigError, "PREFECT_API_URL: http://example.org/api is a server already"):
        flow_server.up(host="127.0.0.1", port=0, say=print)
    assert variables["DO_NOT_TRACK"] == "1"
    assert variables["PREFECT_SERVER_ANALYTICS_ENABLED"] == "false"


def test_a_flow_goes_to_its_checkout_or_says_that_it_has_none(
    variables: dict[str, str], tmp_path: Path
):
    (tmp_path / "clone").mkdir()
    (tmp_path / "clone/dvc.yaml").touch()
    variables["RRCM_CHECKOUT"] = "clone"
    environment.enter()
    environment.enter()
    assert Path.cwd() == tmp_path / "clone"

    variables["RRCM_CHECKOUT"] = str(tmp_path)
    with refused(StageError, "is no checkout", "RRCM_CHECKOUT"):
        environment.enter()


# --- its end


def states(checkout: Path) -> dict[str, str]:
    """Runs of a server that is gone, and their states, from its database."""
    with sqlite3.connect(checkout / ".rrcm/prefect/prefect.db") as database:
        rows = database.execute("select id, state_type from flow_run").fetchall()
    database.close()
    return {str(row[0]).replace("-", ""): row[1] for row in rows}


@pytest.mark.slow
def test_up_serves_schedules_and_survives_kills_without_leaving_a_process(tmp_path: Path):
    """Killed itself, then its server; then stopped. A run is told of each end."""
    team = clones.make(tmp_path / "team")
    checkout = team.clone("coordinator")
    given = (checkout.path / "prefect.yaml").read_text()
    (checkout.path / "prefect.yaml").write_text(given.replace("active: false", "active: true"))
    hold, home = team.hold("big"), checkout.path / ".rrcm/prefect"

    service = Service(team, checkout, PREFECT_SERVER_SERVICES_SCHEDULER_LOOP_SECONDS="3")
    names = {one["name"] for one in service.ask("deployments/filter", {})}
    planned = {"flow_runs": {"state": {"type": {"any_": ["SCHEDULED"]}}}}
    assert names == {"rebuild", "recertify", "on-demand", "stage"}
    assert until(lambda: service.ask("flow_runs/filter", planned))[0]["auto_scheduled"]
    again = checkout.run("rrcm", "flow", "up", fails=True, **service.environment)
    assert again.startswith("error: `rrcm flow up`: process ") and again.count("\n") == 1
    run = service.start("rebuild/on-demand", targets=["left"])
    until(lambda: team.began() == [("big", "coordinator")])
    service.process.kill()
    service.process.wait()
    until(lambda: not alive(team), seconds=60)
    (checkout.path / "prefect.yaml").write_text(given)

    service, token = Service(team, checkout), service.secret.partition(":")[2]
    assert states(checkout.path)[run.replace("-", "")] == "CRASHED"
    run = service.start("rebuild/on-demand", targets=["left"])
    until(lambda: len(team.began()) == 2)
    started = clones.processes(service.process.pid)
    (server,) = [one for one in started if one.cmdline()[1:3] == ["-m", "uvicorn"]]
    assert not any(token in " ".join(one.cmdline()) for one in started)
    server.kill()
    assert service.process.wait(120) == 1
    assert service.log.read_text().endswith("error: the server was killed by SIGKILL\n")
    assert not alive(team) and not (home / "server.json").exists()

    service = Service(team, checkout)
    assert service.secret.partition(":")[2] != token
    run = service.start("rebuild/on-demand", targets=["left"])
    until(lambda: len(team.began()) == 3)
    service.process.terminate()
    assert service.process.wait(60) == 0
    assert not alive(team)
    assert states(checkout.path)[run.replace("-", "")] == "CRASHED"  # told by itself
    hold.unlink()
