"""The server of a checkout: nobody but its user can use it, and at its end nothing is left."""

import base64
import json
import os
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import clones
import databases
import httpx
import psutil
import pytest
from builders import refused
from clones import Service, alive, until
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


@dataclass(frozen=True)
class Guarded:
    """A server, with a deployment that a worker of it would run."""

    folder: Path
    process: subprocess.Popen[bytes]
    url: str
    known: str
    deployment: str = ""

    @property
    def attack(self) -> str:
        return f"{self.url}/deployments/{self.deployment}/create_flow_run"

    def post(self, path: str, **body: object) -> str:
        """As its user; the id of what was made."""
        answer = httpx.post(f"{self.url}/{path}", json=body, auth=self.login, timeout=60)
        assert answer.is_success, answer.text
        return answer.json()["id"]

    @property
    def login(self) -> tuple[str, str]:
        user, _, password = self.known.partition(":")
        return user, password


@pytest.fixture(scope="module")
def server() -> Iterator[Guarded]:
    """As `rrcm flow up` starts it, in a folder that all users may enter: what refuses them is ours.

    The folder of the secret was there before, open to everyone.
    """
    folder, before, variables = Path(tempfile.mkdtemp()), Path.cwd(), dict(os.environ)
    folder.chmod(0o755)
    os.chdir(folder)
    try:
        environment.HOME.mkdir(parents=True)
        environment.HOME.chmod(0o777)
        databases.place(environment.HOME)
        known = environment.secret()
        with environment.alone(), environment.listening("127.0.0.1", 0) as listener:
            own = environment.settings("127.0.0.1", listener, known)
            os.environ |= own
            environment.publish()
            more = own | {"PREFECT_HOME": str(folder / environment.HOME), "DO_NOT_TRACK": "1"}
            command, file = environment.command(listener), listener.fileno()
            with (folder / "log").open("wb") as log:
                process = subprocess.Popen(
                    command, env=variables | more, pass_fds=(file,), stdout=log, stderr=log
                )
            one = Guarded(folder, process, own[environment.ADDRESS], known)
            try:
                assert flow_server._begun(process, processes.Stop())
                flow = one.post("flows/", name="rebuild")
                one.post("work_pools/", name="rrcm", type="process")
                found = one.post("deployments/", name="on-demand", flow_id=flow)
                os.environ.clear()
                os.environ.update(variables)
                os.chdir(before)
                yield Guarded(folder, process, one.url, known, found)
            finally:
                os.chdir(folder)
                process.terminate()
                process.wait(60)
    finally:
        os.chdir(before)
        os.environ.clear()
        os.environ.update(variables)
        shutil.rmtree(folder)


def test_without_the_secret_no_run_is_made_and_with_it_one_is(server: Guarded):
    wrong = [None, ("rrcm", "wrong"), ("", ""), (server.login[0], server.login[1][:-1])]
    answers = [httpx.post(server.attack, json=EXPLOIT, auth=auth) for auth in wrong]
    bearer = httpx.post(
        server.attack, json=EXPLOIT, headers={"Authorization": f"Bearer {server.known}"}
    )

    assert {one.status_code for one in (*answers, bearer)} == {401}
    assert httpx.post(server.attack, json={}, auth=server.login).status_code == 201


def test_every_route_asks_for_the_secret_but_those_that_say_that_a_server_is_there(
    server: Guarded,
):
    schema = httpx.get(f"{server.url}/openapi.json", auth=server.login, timeout=60).json()
    routes = {
        (method, path if path.startswith("/api/") else f"/api{path}")
        for path, methods in schema["paths"].items()
        for method in methods
    }
    with httpx.Client(base_url=server.url.removesuffix("/api")) as stranger:
        answers = {
            (method, path): stranger.request(method, path).status_code for method, path in routes
        }

    assert len(routes) > 150
    assert {route for route, code in answers.items() if code != 401} <= OPEN


def test_no_stream_is_had_without_the_secret(server: Guarded):
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
        assert told(path, "rrcm:wrong", None) == told(path, "rrcm:wrong", ["prefect"]) == "refused"
        assert told(path, server.known, None) == "refused"
        assert told(path, server.known, ["prefect"]) == "auth_success"


def test_pages_of_other_origins_and_names_may_not_ask(server: Guarded):
    """A page whose name is made to mean loopback has that name's memory, without the secret."""
    plain = {"Origin": ELSEWHERE, "Content-Type": "text/plain"}  # which needs no leave
    sent = httpx.post(server.attack, content=json.dumps(EXPLOIT), headers=plain)
    renamed = httpx.post(server.attack, json=EXPLOIT, headers={"Host": "attacker.example.org"})
    health = httpx.get(f"{server.url}/health", headers={"Origin": ELSEWHERE})
    asks = {"Access-Control-Request-Method": "POST"}
    asks |= {"Access-Control-Request-Headers": "authorization,content-type"}
    preflights = [
        httpx.options(server.attack, headers={"Origin": origin, **asks})
        for origin in (ELSEWHERE, "null", server.url.removesuffix("/api"))
    ]

    assert [one.status_code for one in preflights] == [400, 400, 200]
    assert sent.status_code == renamed.status_code == 401
    for answer in (*preflights[:1], sent, health):
        assert "Access-Control-Allow-Origin" not in answer.headers
    assert "set-cookie" not in renamed.headers
    assert "www-authenticate" not in renamed.headers, "a browser would then remember, and send it"


@pytest.mark.skipif(
    os.getuid() != 0 or not shutil.which("setpriv"), reason="only root can be another user"
)
def test_another_user_neither_reads_the_secret_nor_makes_a_run(server: Guarded):
    file = server.folder / environment.SERVER
    asked = [server.attack, str(server.process.pid), str(file)]
    other = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    done = subprocess.run(
        [*other, sys.executable, "-I", "-c", STRANGER, *asked],
        capture_output=True,
        text=True,
        check=True,
    )
    *read, command, answer = done.stdout.splitlines()

    assert json.loads(file.read_text())["PREFECT_API_AUTH_STRING"] == server.known
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert read == ["PermissionError", "PermissionError"]
    assert "uvicorn" in command and server.login[1] not in command
    assert answer == "401"


def test_the_secret_is_in_no_log(server: Guarded):
    token = base64.b64encode(server.known.encode())

    for file in (path for path in server.folder.rglob("*") if path.is_file()):
        if file != server.folder / environment.SERVER:
            content = file.read_bytes()
            assert server.login[1].encode() not in content and token not in content, file


def test_nobody_else_can_listen_at_a_port_whose_server_is_gone():
    with environment.listening("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        for host in ("127.0.0.1", "0.0.0.0"):
            with refused(ConfigError, f"--host {host} --port {port}: cannot listen there"):
                environment.listening(host, port)


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::1"])
def test_whatever_it_listens_at_a_server_has_a_secret(host: str):
    with environment.listening(host, 0) as listener:
        own = environment.settings(host, listener, "rrcm:a secret")
        assert ("without TLS" in environment.warning(listener)) == (host == "0.0.0.0")

    assert own["PREFECT_API_AUTH_STRING"] == own["PREFECT_SERVER_API_AUTH_STRING"] != ""
    assert own["PREFECT_SERVER_API_CORS_ALLOWED_ORIGINS"] + "/api" == own["PREFECT_API_URL"]
    assert "rrcm:a secret" not in " ".join(environment.command(listener))


def test_a_secret_is_fresh_or_long_enough_and_cannot_be_switched_off(
    monkeypatch: pytest.MonkeyPatch,
):
    for given in (None, ""):
        monkeypatch.setenv(environment.SERVER_AUTH, given or "")
        secrets = {environment.secret() for _ in range(100)}
        assert len(secrets) == 100 and min(map(len, secrets)) > 40
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


def test_who_lacks_the_secret_is_told_what_to_set(server: Guarded, nearly: Workspace):
    theirs = {"PREFECT_API_URL": server.url, "PREFECT_API_AUTH_STRING": "rrcm:of another server"}

    assert nearly.run("rrcm", "flow", "worker", fails=True, PYTHONPATH=str(ROOT), **theirs) == (
        f"error: {server.url}: PREFECT_API_AUTH_STRING is not the secret of this server, or not "
        "set; where `rrcm flow up` runs, it is in .rrcm/prefect/server.json\n"
    )


# --- which server


@pytest.fixture
def nearly(tmp_path: Path) -> Workspace:
    """All of a checkout that is looked at before anything starts."""
    (tmp_path / "dvc.yaml").write_text("stages: {}\n")
    (tmp_path / "params.yaml").touch()
    return Workspace(tmp_path)


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
        with refused(StageError, "runs in this checkout already: it is starting, or ending"):
            environment.alone().__enter__()
        variables |= {"PREFECT_API_URL": URL, "PREFECT_API_AUTH_STRING": "rrcm:its secret"}
        environment.publish()
        with refused(StageError, f"runs in this checkout already: {URL}"):
            environment.alone().__enter__()
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


def test_an_address_that_cannot_be_used_is_said_in_one_line(nearly: Workspace):
    def told(*command: str, url: str) -> str:
        said = nearly.run(*command, fails=True, PREFECT_API_URL=url, PYTHONPATH=str(ROOT))
        assert said.count("\n") == 1
        return said

    up, nowhere = ("rrcm", "flow", "up"), "http://127.0.0.1:9/api"
    assert told(*up, "--host", "192.0.2.1", "--port", "0", url="").startswith(
        "error: --host 192.0.2.1 --port 0: cannot listen there"
    )
    assert told(*up, url=nowhere).startswith(f"error: PREFECT_API_URL: {nowhere} is a server ")
    assert told("rrcm", "flow", "run", url=nowhere).startswith(f"error: {nowhere}: ")


def test_the_command_line_imports_neither_prefect_nor_dvc():
    code = "import cli, sys; print(*{'prefect', 'dvc', 'torch'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.split() == []


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
    (checkout.path / "prefect.yaml").write_text(given)

    service, token = Service(team, checkout), service.secret.partition(":")[2]
    assert states(checkout.path)[run.replace("-", "")] == "CRASHED"
    active = [
        one["schedules"][0]["active"]
        for one in service.ask("deployments/filter", {})
        if one["schedules"]
    ]
    assert active == [False, False]
    run = service.start("rebuild/on-demand", targets=["left"])
    until(lambda: len(team.began()) == 2)
    uvicorn = ["-m", "uvicorn"]
    started = clones.processes(service.process.pid)
    (server,) = [one for one in started if one.cmdline()[1:3] == uvicorn]
    assert not any(token in " ".join(one.cmdline()) for one in started)
    server.kill()
    began = time.monotonic()
    code = service.process.wait(60)
    last = service.log.read_text().splitlines()[-1]
    assert (code, last) == (1, "error: the server was killed by SIGKILL")
    assert time.monotonic() - began < 30, "some 3 s, and 60 s were for runs to tell"
    assert not alive(team) and not (home / "server.json").exists()

    service = Service(team, checkout)
    assert service.secret.partition(":")[2] != token
    assert states(checkout.path)[run.replace("-", "")] == "CRASHED"
    run = service.start("rebuild/on-demand", targets=["left"])
    until(lambda: len(team.began()) == 3)
    os.kill(service.process.pid, signal.SIGTERM)
    assert service.process.wait(60) == 0
    assert not alive(team)
    assert states(checkout.path)[run.replace("-", "")] == "CRASHED"  # told by itself
    for file in (file for file in home.iterdir() if file.is_file()):
        assert token.encode() not in file.read_bytes(), file
    hold.unlink()


def test_runs_whose_server_is_gone_are_not_waited_for(tmp_path: Path):
    stubborn = (
        "import pathlib, signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        f"pathlib.Path({str(tmp_path / 'ready')!r}).touch(); time.sleep(600)"
    )
    start = "import subprocess, sys; subprocess.run([sys.executable, '-c', *sys.argv[1:]])"
    worker = [sys.executable, "-c", start, start, stubborn]  # and its only run
    with subprocess.Popen(worker) as supervisor:
        until((tmp_path / "ready").exists)
        run = psutil.Process(supervisor.pid).children(recursive=True)[-1]
        began = time.monotonic()
        flow_server._end_runs(supervisor, lambda: False)
        assert supervisor.wait(60) == 0
    assert time.monotonic() - began < flow_server.FAREWELL / 2
    until(lambda: not run.is_running() or run.status() == psutil.STATUS_ZOMBIE, seconds=30)
