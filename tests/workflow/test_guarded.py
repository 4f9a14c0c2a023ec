"""Nobody but its user can use a Prefect server that is started here: the attacks, refused."""

import base64
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

import databases
import httpx
import psutil
import pytest
import screens
from builders import refused
from survivors import until
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect
from workspace import ROOT, Workspace

from pipeline.workflow.flow import environment, guarded
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
    def origin(self) -> str:
        return self.url.removesuffix("/api")

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
    """In a folder that all users may enter, so that what refuses them is what is tested."""
    folder, before = Path(tempfile.mkdtemp()), Path.cwd()
    folder.chmod(0o755)
    os.chdir(folder)
    try:
        guarded.home()
        databases.place(environment.HOME)
        known = guarded.secret()
        with guarded.listening("127.0.0.1", 0) as listener, guarded.kept(known):
            own = guarded.settings("127.0.0.1", listener, known)
            more = own | {"PREFECT_HOME": str(folder / environment.HOME), "DO_NOT_TRACK": "1"}
            command, file = guarded.command(listener), listener.fileno()
            with (folder / "log").open("wb") as log:
                process = subprocess.Popen(
                    command, env=os.environ | more, pass_fds=(file,), stdout=log, stderr=log
                )
            one = Guarded(folder, process, own[environment.ADDRESS], known)
            try:
                until(lambda: guarded.ready(one.url) or process.poll() is not None, seconds=120)
                flow = one.post("flows/", name="rebuild")
                one.post("work_pools/", name="rrcm", type="process")
                found = one.post("deployments/", name="on-demand", flow_id=flow)
                yield Guarded(folder, process, one.url, known, found)
            finally:
                process.terminate()
                process.wait(60)
    finally:
        os.chdir(before)
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
    with httpx.Client(base_url=server.origin) as stranger:
        answers = {
            (method, path): stranger.request(method, path).status_code for method, path in routes
        }

    assert len(routes) > 150
    assert {route for route, code in answers.items() if code != 401} <= OPEN


@pytest.mark.parametrize("path", SOCKETS)
@pytest.mark.parametrize("protocols", [[], ["prefect"]])
def test_no_stream_is_had_without_the_secret(server: Guarded, path: str, protocols: list[str]):
    url = f"{server.url}/{path}".replace("http", "ws", 1)

    def told(token: str) -> str:
        try:
            with connect(url, subprotocols=protocols or None) as socket:
                socket.send(json.dumps({"type": "auth", "token": token}))
                return json.loads(socket.recv(timeout=60))["type"]
        except Exception as error:  # refused before or after the handshake
            assert isinstance(error, ConnectionClosed) or "403" in str(error), error
            return "refused"

    assert told("rrcm:wrong") == "refused"
    assert told(server.known) == ("auth_success" if protocols else "refused")


def test_pages_of_other_origins_may_not_ask(server: Guarded):
    def preflight(origin: str) -> httpx.Response:
        asks = {"Access-Control-Request-Method": "POST"}
        asks |= {"Access-Control-Request-Headers": "authorization,content-type"}
        return httpx.options(server.attack, headers={"Origin": origin, **asks})

    simple = {"Origin": ELSEWHERE, "Content-Type": "text/plain"}  # which needs no leave
    sent = httpx.post(server.attack, content=json.dumps(EXPLOIT), headers=simple)
    health = httpx.get(f"{server.url}/health", headers={"Origin": ELSEWHERE})

    assert preflight(ELSEWHERE).status_code == HTTPStatus.BAD_REQUEST
    assert preflight("null").status_code == HTTPStatus.BAD_REQUEST
    assert preflight(server.origin).headers["Access-Control-Allow-Origin"] == server.origin
    assert sent.status_code == 401
    for answer in (preflight(ELSEWHERE), sent, health):
        assert "Access-Control-Allow-Origin" not in answer.headers


def test_another_name_of_the_host_gains_nothing(server: Guarded):
    """A page whose name is made to mean loopback has that name's memory, without the secret."""
    there = {"Host": "attacker.example.org"}
    answer = httpx.post(server.attack, json=EXPLOIT, headers=there)

    assert answer.status_code == 401
    assert "set-cookie" not in answer.headers
    assert "www-authenticate" not in answer.headers, "a browser would then remember, and send it"


@pytest.mark.skipif(
    os.getuid() != 0 or not shutil.which("setpriv"), reason="only root can be another user"
)
def test_another_user_neither_reads_the_secret_nor_makes_a_run(server: Guarded):
    file = server.folder / environment.SECRET
    asked = [server.attack, str(server.process.pid), str(file)]
    other = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    done = subprocess.run(
        [*other, sys.executable, "-I", "-c", STRANGER, *asked],
        capture_output=True,
        text=True,
        check=True,
    )
    *read, command, answer = done.stdout.splitlines()

    assert file.read_text().strip() == server.known
    assert read == ["PermissionError", "PermissionError"]
    assert "uvicorn" in command and server.login[1] not in command
    assert answer == "401"


def test_the_secret_is_in_no_log(server: Guarded):
    token = base64.b64encode(server.known.encode())

    for file in (path for path in server.folder.rglob("*") if path.is_file()):
        if file != server.folder / environment.SECRET:
            content = file.read_bytes()
            assert server.login[1].encode() not in content and token not in content, file


def test_nobody_else_can_listen_at_a_port_whose_server_is_gone(tmp_path: Path):
    with guarded.listening("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        for host in ("127.0.0.1", "0.0.0.0"):
            with refused(ConfigError, f"--host {host} --port {port}: cannot listen there"):
                guarded.listening(host, port)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0", "::1"])
def test_whatever_it_listens_at_a_server_has_a_secret(host: str):
    with guarded.listening(host, 0) as listener:
        own = guarded.settings(host, listener, "rrcm:a secret")
        assert ("without TLS" in guarded.warning(listener)) == (host == "0.0.0.0")

    assert own["PREFECT_API_AUTH_STRING"] == own["PREFECT_SERVER_API_AUTH_STRING"] != ""
    assert own["PREFECT_SERVER_API_CORS_ALLOWED_ORIGINS"] + "/api" == own["PREFECT_API_URL"]
    assert "rrcm:a secret" not in " ".join(guarded.command(listener))


def test_a_secret_is_fresh_or_long_enough_and_cannot_be_switched_off(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.delenv(guarded.SERVER_AUTH, raising=False)
    assert len({guarded.secret() for _ in range(100)}) == 100
    assert len(guarded.secret()) > 40
    monkeypatch.setenv(guarded.SERVER_AUTH, "")
    assert len(guarded.secret()) > 40
    monkeypatch.setenv(guarded.SERVER_AUTH, "of:a whole team of ours")
    assert guarded.secret() == "of:a whole team of ours"
    for given in ("admin:pass", "admin:\N{GREEK SMALL LETTER SIGMA} and many more"):
        monkeypatch.setenv(guarded.SERVER_AUTH, given)
        with refused(ConfigError, guarded.SERVER_AUTH, "unset it"):
            guarded.secret()


def test_the_file_of_the_secret_is_never_another_ones_to_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    environment.HOME.mkdir(parents=True)
    environment.HOME.chmod(0o777)
    environment.SECRET.touch(0o666)
    modes, create = [], os.open

    def spied(path: Path, flags: int, mode: int) -> int:
        file = create(path, flags, mode)
        modes.append((stat.S_IMODE(os.fstat(file).st_mode), os.fstat(file).st_size))
        return file

    with environment.SECRET.open() as opened_before:
        before = os.umask(0)
        try:
            guarded.home()
            monkeypatch.setattr(os, "open", spied)
            with guarded.kept("rrcm:a secret"):
                modes.append((stat.S_IMODE(environment.SECRET.stat().st_mode), 14))
                assert environment.SECRET.read_text() == "rrcm:a secret\n"
                assert opened_before.read() == ""
        finally:
            os.umask(before)

    assert modes == [(0o600, 0), (0o600, 14)]
    assert stat.S_IMODE(environment.HOME.stat().st_mode) == 0o700
    assert not environment.SECRET.exists()


def test_a_server_that_asks_for_no_secret_is_not_used(monkeypatch: pytest.MonkeyPatch):
    codes = {"http://open/api/admin/version": 200, "http://ours/api/admin/version": 401}
    monkeypatch.setattr(guarded, "status", lambda url: codes.get(url, 0))

    assert guarded.ready("http://ours/api")
    assert not guarded.ready("http://nowhere/api")
    with refused(StageError, "http://open/api", "asks for no secret"):
        guarded.ready("http://open/api")


@pytest.mark.parametrize(
    ("command", "secret"), [("worker", ""), ("deploy", "rrcm:of another server")]
)
def test_who_lacks_the_secret_is_told_what_to_set(
    server: Guarded, tmp_path: Path, command: str, secret: str
):
    (tmp_path / "dvc.yaml").write_text("stages: {}\n")
    (tmp_path / "params.yaml").touch()
    theirs = {"PREFECT_API_URL": server.url, "PREFECT_API_AUTH_STRING": secret}
    expected = (
        f"error: {server.url}: PREFECT_API_AUTH_STRING is not the secret of this server, or not "
        "set; where `rrcm flow up` runs, it is in .rrcm/prefect/secret\n"
    )

    said = Workspace(tmp_path).run(
        "rrcm", "flow", command, fails=True, PYTHONPATH=str(ROOT), **theirs
    )
    assert said == expected


@pytest.mark.skipif(not screens.browser(), reason="no browser")
def test_a_person_logs_in_with_the_secret_and_sees_runs(server: Guarded, tmp_path: Path):
    run = server.post(f"deployments/{server.deployment}/create_flow_run", name="by a person")
    with screens.opened(f"{server.origin}/runs") as page:
        page.log_in(server.known)
        page.go(f"{server.origin}/runs/flow-run/{run}")
        page.wait("document.body.innerText.includes('by a person')")
        if folder := os.environ.get("RRCM_SCREENS"):
            page.picture(Path(folder, "guarded.png"))


def test_of_two_starts_in_a_checkout_the_second_is_told_what_the_first_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    url = "http://127.0.0.1:4200/api"
    with flow_server._alone():

        def told(doing: str) -> None:
            with refused(StageError, f"runs in this checkout already: {doing}"):
                with flow_server._alone():
                    pass

        told("it is starting, or ending")
        environment.SERVER.write_text(json.dumps({"url": url, "pid": os.getpid()}))
        told(url)
        environment.SERVER.unlink()
        told("it is starting, or ending")
    with flow_server._alone():
        assert not environment.SERVER.exists()


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
