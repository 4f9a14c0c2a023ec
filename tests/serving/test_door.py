"""A server in a process of its own: its answers, limits, tokens, and end."""

import asyncio
import io
import math
import re
import resource
import socket
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
import pytest
from builders import refused
from linear_smoothed import classifier, png
from PIL import Image
from sklearn.datasets import load_digits
from workspace import RUN, Workspace

from rrcm.certification import openers
from rrcm.cli.commands import serve
from rrcm.config.defaults import DRAWS
from rrcm.core.errors import ConfigError
from rrcm.serving import application, bearer
from rrcm.serving.endpoints import Limits

SECRET, OTHER = "0123456789abcdef-._~+/=", "the-one-of-another-client"
SAME = ("label", "name", "radius", "p_A", "n_A", "n", "draws", "stop", "alpha")
TINY = ("--model", "tiny", "--sigma", "0.5")
DIGITS = [png(np.round(image * 255 / 16).astype(np.uint8)) for image in load_digits().images[:40]]


@contextmanager
def server(checkout: Workspace, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`rrcm serve` in a checkout, and its address."""
    process = checkout.start("rrcm", "serve", *TINY, "--port", "0", *options)
    try:
        line = ""
        while "http://" not in line:
            line = process.stdout.readline()
            assert line, "the server did not start"
        yield process, re.search(r"http://[^/]+", line)[0]
    finally:
        process.kill()
        process.communicate()


def connected(address: str) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])), timeout=30)


@contextmanager
def idle(address: str, count: int) -> Iterator[None]:
    """Connections over which nothing comes."""
    with ExitStack() as opened:
        for _ in range(count):
            opened.enter_context(connected(address))
        yield


def health(address: str) -> int:
    return httpx.get(f"{address}/health", timeout=10).status_code


def test_a_served_answer_is_that_of_predict(finished: Workspace, tmp_path: Path):
    (tmp_path / "digit.png").write_bytes(DIGITS[0])
    with server(finished, "--reproducible") as (_, address):
        reply = httpx.post(f"{address}/certify?seed=7", content=DIGITS[0], timeout=60).json()

    image = ("--image", str(tmp_path / "digit.png"), "--seed", "7", "--stop", "spending")
    printed = finished.run("rrcm", "predict", *TINY, *image)
    assert f"class {reply['name']}, " in printed
    assert f"radius of {math.floor(reply['radius'] * 1e4) / 1e4:.4f} " in printed
    assert f"({reply['n_A']:,} of {reply['n']:,} noisy draws)" in printed


def test_answers_under_load_are_those_of_their_seeds(finished: Workspace):
    """And every bad request is refused; nothing is left after SIGTERM."""

    def send(number: int) -> tuple[bytes, httpx.Response]:
        content = b"no picture" if number % 5 == 0 else DIGITS[number]
        return content, httpx.post(f"{address}/certify", content=content, timeout=120)

    with server(finished) as (process, address):
        served = httpx.get(f"{address}/model").json()
        with ThreadPoolExecutor(8) as clients:
            answers = [*clients.map(send, range(len(DIGITS)))]
        process.terminate()
        assert process.wait(20) == 0

    keys = ("n0", "n", "batch_size", "certificate", "alpha")
    draws = replace(DRAWS, stop=served["rule"], **{key: served[key] for key in keys})
    offline = openers.trained(RUN, sigma=0.5, root=finished.path, draws=draws)
    for content, response in answers:
        if content == b"no picture":
            assert response.status_code == 422
            continue
        reply = response.json()
        with Image.open(io.BytesIO(content)) as image:
            answer = offline.answer(image, seed=int(reply["seed"]))
        assert reply["abstained"] == answer.abstained and reply["stop"] != "budget"
        if not answer.abstained:
            assert all(reply[key] == getattr(answer, key) for key in SAME)


def test_sigterm_finishes_what_was_let_in_and_refuses_the_rest(finished: Workspace):
    endless = ("--n0", "200000", "--timeout", "30")
    with server(finished, *endless) as (process, address), ThreadPoolExecutor(2) as clients:
        url = f"{address}/certify"
        begun = [clients.submit(httpx.post, url, content=DIGITS[0], timeout=30) for _ in range(2)]
        time.sleep(1)
        process.terminate()
        time.sleep(0.5)
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{address}/health")
        assert process.poll() is None
        for one in begun:
            response = one.result()
            assert response.status_code == 200 and response.json()["n"] > 0
        assert process.wait(10) == 0


def test_connections_are_limited_and_a_place_is_free_again(finished: Workspace):
    with server(finished, "--connections", "3") as (_, address):
        with idle(address, 2):
            assert health(address) == 200
        with idle(address, 3):
            assert health(address) == 503
        time.sleep(0.2)
        assert health(address) == 200


def test_a_server_without_descriptors_serves_again_when_there_are_some(finished: Workspace):
    with server(finished) as (process, address):
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (64, 64))
        with idle(address, 90):
            time.sleep(0.5)
        deadline = time.monotonic() + 30
        status = 0
        while status != 200:
            assert time.monotonic() < deadline, "no answer any more"
            with suppress(httpx.HTTPError):
                status = health(address)
        process.terminate()
        assert "Too many open files" in process.communicate(timeout=20)[0]


def test_headers_and_bodies_are_limited_and_a_client_reads_why(finished: Workspace):
    with server(finished, "--max-bytes", "1048576") as (_, address):
        with connected(address) as client:
            client.sendall(b"GET /health HTTP/1.1\r\nX-Long: " + b"x" * serve.HEADER)
            assert client.recv(100).startswith(b"HTTP/1.1 400 ")
        response = httpx.post(f"{address}/certify", content=bytes(9 * 2**20), timeout=30)
        assert response.status_code == 413
        assert response.json() == {"detail": "the body is longer than 1,048,576 bytes"}


def test_a_server_asks_for_its_token_and_logs_requests(finished: Workspace, tmp_path: Path):
    (tmp_path / "token").write_text(SECRET)
    with server(finished, "--token-file", str(tmp_path / "token")) as (process, address):
        right = {"Authorization": f"Bearer {SECRET}"}
        assert health(address) == 200
        assert httpx.get(f"{address}/model").status_code == 401
        assert httpx.post(f"{address}/certify", content=b"x").status_code == 401
        assert httpx.get(f"{address}/model", headers=right).status_code == 200
        assert httpx.get(f"{address}/a%0Ab", headers=right).status_code == 404
        process.terminate()
        output = process.communicate(timeout=20)[0]

    lines = [line for line in output.splitlines() if "HTTP/1.1" in line]
    assert len(lines) == 5 and all("127.0.0.1" in line for line in lines)
    assert '"GET /model HTTP/1.1" 401' in lines[1] and "/a%0Ab" in lines[4]
    assert SECRET not in output and process.returncode == 0


@pytest.mark.parametrize(
    "sent, right",
    [
        (None, False),
        (f"Bearer {SECRET}", True),
        (f"bearer {OTHER}", True),
        (f"Bearer {OTHER} {SECRET}", False),
        (f"Basic {SECRET}", False),
        (f"Bearer {SECRET}x", False),
        (f"Bearer {SECRET[:-1]}", False),
        ("Bearer é", False),
        (SECRET, False),
    ],
)
def test_only_the_token_opens_all_but_the_health(sent: str | None, right: bool):
    async def main() -> list[httpx.Response]:
        tokens = (OTHER.encode(), SECRET.encode())
        app = application.app(classifier(), name="linear", limits=Limits(workers=1), tokens=tokens)
        headers = {} if sent is None else {"Authorization": sent.encode("latin-1")}
        transport = httpx.ASGITransport(app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://a.test") as client,
        ):
            paths = ("/health", "/docs", "/openapi.json", "/model", "/metrics")
            answers = [await client.get(path, headers=headers) for path in paths]
            return [*answers, await client.post("/certify", headers=headers, content=DIGITS[0])]

    health, docs, openapi, *others = asyncio.run(main())

    assert (health.status_code, docs.status_code, openapi.status_code) == (200, 404, 404)
    assert [answer.status_code for answer in others] == ([200, 200, 422] if right else [401] * 3)
    if not right:
        assert others[0].headers["www-authenticate"] == "Bearer"
        assert "Authorization: Bearer" in others[0].json()["detail"]


@pytest.mark.parametrize(
    "held",
    [b"", b"short", b"two words of a secret", b"x" * 5000, b"\xff" * 20, b"# a comment alone"],
)
def test_a_file_that_holds_no_token_is_refused(tmp_path: Path, held: bytes):
    file = tmp_path / "token"
    file.write_bytes(held)

    with refused(ConfigError, f"--token-file {file}: line 1: expected a token of 16 to 4,096"):
        bearer.read(file)


def test_tokens_are_read_one_a_line_without_comments(tmp_path: Path):
    (tmp_path / "token").write_text(f"# of us\n {SECRET}\n\n#of them\r\n{OTHER}\r\n")

    assert bearer.read(tmp_path / "token") == (SECRET.encode(), OTHER.encode())
    for wrong, why in ((tmp_path, "a folder, not a file"), (tmp_path / "none", "not found")):
        with refused(ConfigError, f"--token-file {wrong}: {why}"):
            bearer.read(wrong)


def test_a_line_that_is_no_token_is_named_and_not_shown(tmp_path: Path):
    (tmp_path / "token").write_text(f"{SECRET}\n\ntoo-short")

    with pytest.raises(ConfigError, match="line 3: expected a token") as error:
        bearer.read(tmp_path / "token")
    assert "too-short" not in str(error.value) and SECRET not in str(error.value)


@pytest.mark.parametrize("host, said", [("127.0.0.1", False), ("0.0.0.0", True)])
def test_a_server_for_others_says_so(capsys, host: str, said: bool):
    with socket.create_server((host, 0)) as listener:
        serve._warn(listener)

    error = capsys.readouterr().err
    assert error.startswith(f"warning: --host {host}: ") if said else error == ""
    assert error.count("\n") == said


def test_a_port_that_is_taken_is_named(finished: Workspace):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        output = finished.run("rrcm", "serve", *TINY, "--port", port, fails=True)

    assert f"--port {port}: cannot listen there" in output and len(output.splitlines()) == 1
