"""Who connects, and who may ask: neither numbers nor patience keep a server from its work."""

import asyncio
import logging
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from builders import refused
from starlette.types import Receive, Scope, Send
from workspace import ROOT

from rrcm.cli.commands import serve
from rrcm.core.errors import ConfigError
from rrcm.serving import bearer, connections
from rrcm.serving.connections import SPARE, Door

SECRET, OTHER = "0123456789abcdef-._~+/=", "the-one-of-another-client"
SERVER = """
import resource, socket, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]),) * 2)
from linear_smoothed import classifier
from rrcm.cli.commands import serve
from rrcm.serving import application
from rrcm.serving.connections import Door
from rrcm.serving.endpoints import Limits
app = application.app(classifier(), name="linear", limits=Limits(workers=1), tokens=%s)
door = Door(seconds=float(sys.argv[2]))
if len(sys.argv) > 3:  # as if something else had taken the descriptors
    door.most = 10**6
with socket.create_server(("127.0.0.1", 0)) as listener:
    serve.run(app, listener, door=door, name=str(door.most), grace=5)
"""


@contextmanager
def server(*options: str, log: Path, secret: bytes | None = None) -> Iterator[tuple[int, int]]:
    """One in a process of its own: its port, and how many connections it has room for."""
    with log.open("w") as said:
        process = subprocess.Popen(
            [sys.executable, "-c", SERVER % repr((secret,) if secret else ()), *options],
            cwd=ROOT / "tests",
            env={"PYTHONPATH": f"{ROOT}:{ROOT / 'tests/support'}", "PATH": "/usr/bin:/bin"},
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
        )
        try:
            line = process.stdout.readline()
            assert "http://" in line, log.read_text()
            yield int(line.split("/")[2].split(":")[1]), int(line.split(":")[0])
        finally:
            process.kill()
            process.wait()
            process.stdout.close()


@contextmanager
def idle(port: int, count: int, sent: bytes = b"") -> Iterator[list[socket.socket]]:
    """Connections over which next to nothing comes."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert count < limit - 50
    opened = [socket.create_connection(("127.0.0.1", port), timeout=30) for _ in range(count)]
    try:
        for one in opened:
            one.sendall(sent)
        yield opened
    finally:
        for one in opened:
            one.close()


def health(port: int) -> httpx.Response:
    return httpx.get(f"http://127.0.0.1:{port}/health", timeout=10)


HEAD = b"POST /certify HTTP/1.1\r\nHost: a.test\r\nContent-Length: 99\r\n\r\n"


@pytest.mark.parametrize("sent", [b"", b"GET /hea", HEAD], ids=["nothing", "half a head", "a head"])
def test_more_idle_connections_than_descriptors_keep_nobody_out(tmp_path: Path, sent: bytes):
    log = tmp_path / "log"
    with server("128", "60", log=log) as (port, most), idle(port, 300) as opened:
        assert 20 < most < 128 - SPARE
        for one in opened:
            try:
                one.sendall(sent)
            except OSError:
                pass  # it was cut off already
        for _ in range(5):
            began = time.monotonic()
            assert health(port).status_code == 200
            assert time.monotonic() - began < 5

    said = log.read_text()
    assert f"all {most} connections were taken" in said and "Traceback" not in said
    assert sum("connections" in line for line in said.splitlines()) == 1


def test_descriptors_that_are_gone_are_said_once_and_service_goes_on(tmp_path: Path):
    log = tmp_path / "log"
    with server("128", "3", "no cap", log=log) as (port, _):
        with idle(port, 200):
            time.sleep(2)
            said = log.read_text()
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            try:
                assert health(port).status_code == 200
                break
            except httpx.HTTPError:
                time.sleep(0.2)
        else:
            pytest.fail("no answer any more")

    assert said.count("cannot accept a connection: Too many open files") == 1
    assert "Traceback" not in said and said.count("\n") < 10


@pytest.mark.parametrize("after", [b"", b"GET /health HTTP/1.1\r\nHost: a.test\r\n\r\n"])
def test_a_head_that_trickles_in_is_cut_off(tmp_path: Path, after: bytes):
    """The first one of a connection, and a later one."""
    with server("256", "1", log=tmp_path / "log") as (port, _), idle(port, 1, after) as (one,):
        if after:
            assert b"200" in one.recv(20)
        one.settimeout(0.2)
        began = time.monotonic()
        cut = False
        while not cut and time.monotonic() - began < 15:
            try:
                one.sendall(b"G")
                cut = one.recv(4096) == b""
            except TimeoutError:
                continue
            except OSError:
                cut = True

    assert cut and time.monotonic() - began < 10


def test_who_does_not_read_the_answers_is_cut_off(tmp_path: Path):
    ask = b"GET /openapi.json HTTP/1.1\r\nHost: a.test\r\n\r\n"
    with server("256", "1", log=tmp_path / "log") as (port, _):
        one = socket.socket()
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        one.connect(("127.0.0.1", port))
        one.setblocking(False)
        began, cut = time.monotonic(), False
        while not cut and time.monotonic() - began < 20:
            try:
                one.send(100 * ask)
            except BlockingIOError:
                time.sleep(0.1)
            except OSError:
                cut = True
        one.close()
        assert health(port).status_code == 200

    assert cut


def test_a_cap_leaves_room_for_files(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(resource, "getrlimit", lambda which: (1024, 1024))
    room = connections.affordable()

    assert 1024 - SPARE - 200 < room < 1024 - SPARE
    assert Door().most == room and Door(7).most == 7
    for wrong in (0, -1, 2000):
        with refused(ConfigError, "--connections: the limit of 1,024", f"got {wrong:,}"):
            Door(wrong)
    monkeypatch.setattr(resource, "getrlimit", lambda which: (20, 20))
    with refused(ConfigError, "--connections: the limit of 20", "1 to 0"):
        Door()


def test_a_line_is_said_once_a_minute_with_its_count(monkeypatch, caplog):
    clock = [1000.0]
    monkeypatch.setattr(connections.time, "monotonic", lambda: clock[0])
    caplog.set_level(logging.WARNING)
    door = Door(1)
    for _ in range(100):
        door.say("full of %d", 1)
    clock[0] += 61
    door.say("full of %d", 1)

    assert [record.getMessage() for record in caplog.records] == [
        "full of 1",
        "full of 1; 99 times more since it was last said",
    ]


# Who may ask.


@pytest.mark.parametrize(
    "sent, right",
    [
        (None, False),
        (f"Bearer {SECRET}", True),
        (f"Bearer {OTHER}", True),
        (f"Bearer {OTHER} {SECRET}", False),
        (f"bearer  {SECRET} ", True),
        (f"Basic {SECRET}", False),
        (f"Bearer {SECRET}x", False),
        (f"Bearer {SECRET[:-1]}", False),
        ("Bearer ", False),
        ("Bearer é", False),
        (SECRET, False),
    ],
)
def test_only_the_token_opens_all_but_the_health(sent: str | None, right: bool):
    async def inside(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def main() -> dict[str, httpx.Response]:
        guard = httpx.ASGITransport(bearer.Guard(inside, (OTHER.encode(), SECRET.encode())))
        headers = {} if sent is None else {"Authorization": sent.encode("latin-1")}
        async with httpx.AsyncClient(transport=guard, base_url="http://a.test") as found:
            paths = (
                "/health",
                "/model",
                "/certify",
                "/metrics",
                "/docs",
                "/openapi.json",
                "/health/",
            )
            return {path: await found.get(path, headers=headers) for path in paths}

    found = asyncio.run(main())

    assert found.pop("/health").status_code == 200
    assert {one.status_code for one in found.values()} == {200 if right else 401}
    if not right:
        assert found["/model"].headers["www-authenticate"] == "Bearer"
        assert "Authorization: Bearer" in found["/model"].json()["detail"]


def test_a_real_server_asks_for_its_token(tmp_path: Path):
    log = tmp_path / "log"
    with server("256", "5", log=log, secret=SECRET.encode()) as (port, _):
        url = f"http://127.0.0.1:{port}"
        right = {"Authorization": f"Bearer {SECRET}"}
        assert health(port).status_code == 200
        assert httpx.get(f"{url}/model").status_code == 401
        assert httpx.post(f"{url}/certify", content=b"x").status_code == 401
        assert httpx.get(f"{url}/model", headers=right).status_code == 200

    assert SECRET not in log.read_text() and "GET /model 401" in log.read_text()


@pytest.mark.parametrize(
    "held",
    [
        b"",
        b"short",
        b"two words of a secret",
        b"x" * 5000,
        b"\xff" * 20,
        "é".encode() * 20,
        b"# nothing but a comment, which is no token",
        SECRET.encode() + b" # no comment here",
    ],
)
def test_a_file_that_holds_no_token_is_refused(tmp_path: Path, held: bytes):
    file = tmp_path / "token"
    file.write_bytes(held)

    with refused(ConfigError, f"--token-file {file}: line 1: expected a token of 16 to 4,096"):
        bearer.read(file)


def test_tokens_are_read_one_a_line_without_comments(tmp_path: Path):
    (tmp_path / "token").write_text(f"# of us\n {SECRET}\n\n#of them\r\n{OTHER}\r\n")

    assert bearer.read(tmp_path / "token") == (SECRET.encode(), OTHER.encode())
    for wrong in (tmp_path, tmp_path / "none"):
        with refused(ConfigError, f"--token-file {wrong}: not a file"):
            bearer.read(wrong)


def test_a_line_that_is_no_token_is_named_and_not_shown(tmp_path: Path):
    (tmp_path / "token").write_text(f"{SECRET}\n\ntoo-short")

    with pytest.raises(ConfigError, match="line 3: expected a token") as error:
        bearer.read(tmp_path / "token")
    assert "too-short" not in str(error.value) and SECRET not in str(error.value)


@pytest.mark.parametrize(
    "mode, exposed", [(0o600, False), (0o640, False), (0o604, True), (0o602, True)]
)
def test_a_file_for_all_users_is_exposed(tmp_path: Path, mode: int, exposed: bool):
    (tmp_path / "token").write_text(SECRET)
    (tmp_path / "token").chmod(mode)

    assert bearer.is_exposed(tmp_path / "token") is exposed


@pytest.mark.parametrize("host, said", [("127.0.0.1", False), ("0.0.0.0", True)])
def test_a_server_for_others_says_so(capsys, host: str, said: bool):
    with socket.create_server((host, 0)) as listener:
        serve._warn(listener)

    error = capsys.readouterr().err
    assert error.startswith(f"warning: --host {host}: ") if said else error == ""
    assert error.count("\n") == said
