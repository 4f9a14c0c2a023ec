"""A server in a process of its own: its answers, limits, tokens, and end."""

import io
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
from threading import Thread

import httpx
import numpy as np
import pytest
from builders import refused
from linear_smoothed import SAME, ask, classifier, encoded
from PIL import Image
from sklearn.datasets import load_digits
from workspace import RUN, Workspace

from rrcm.certification import openers
from rrcm.cli.commands import serve
from rrcm.config.defaults import DRAWS
from rrcm.core.errors import ConfigError
from rrcm.serving import bearer
from rrcm.serving.listener import listen

SECRET, OTHER = "0123456789abcdef-._~+/=", "the-one-of-another-client"
TINY = ("--model", "tiny", "--sigma", "0.5")
DIGITS = [
    encoded(np.round(image * 255 / 16).astype(np.uint8)) for image in load_digits().images[:40]
]


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
    with server(finished, "--n0", "20000") as (process, address), ThreadPoolExecutor(2) as clients:
        url = f"{address}/certify"
        begun = [clients.submit(httpx.post, url, content=DIGITS[0], timeout=300) for _ in range(2)]
        load = {"waiting": 0, "computing": 0}
        while load["waiting"] + load["computing"] < 2:
            load = httpx.get(f"{address}/health").json()
        process.terminate()
        deadline = time.monotonic() + 60
        with pytest.raises(httpx.ConnectError):
            while time.monotonic() < deadline:
                with suppress(httpx.ReadError, httpx.RemoteProtocolError):  # let in as it closed
                    httpx.get(f"{address}/health")
        assert process.poll() is None
        for one in begun:
            response = one.result()
            assert response.status_code == 200 and response.json()["n"] > 0
        assert process.wait(10) == 0


def test_a_server_asks_for_its_token_limits_what_is_sent_and_logs_requests(
    finished: Workspace, tmp_path: Path
):
    """Connections, headers, bodies and file descriptors; a place is free again."""
    (tmp_path / "token").write_text(SECRET)
    right = {"Authorization": f"Bearer {SECRET}"}
    options = ("--connections", "3", "--max-bytes", "1048576")
    with server(finished, "--token-file", str(tmp_path / "token"), *options) as (process, address):
        assert httpx.get(f"{address}/model").status_code == 401
        assert httpx.post(f"{address}/certify", content=b"x").status_code == 401
        assert httpx.get(f"{address}/model", headers=right).status_code == 200
        assert httpx.get(f"{address}/a%0Ab", headers=right).status_code == 404
        with connected(address) as client:
            client.sendall(b"GET /health HTTP/1.1\r\nX-Long: " + b"x" * serve.HEADER)
            assert client.recv(100).startswith(b"HTTP/1.1 400 ")
        head = httpx.head(f"{address}/health/")
        assert head.status_code == 200 and not head.content
        body = bytes(9 * 2**20)
        response = httpx.post(f"{address}/certify", content=body, headers=right, timeout=30)
        assert response.status_code == 413
        assert response.json() == {"detail": "the body is longer than 1,048,576 bytes"}
        with idle(address, 2):
            assert health(address) == 200
        with idle(address, 3):
            assert health(address) == 503
        output: list[str] = []
        reader = Thread(target=lambda: output.extend(process.stdout), daemon=True)
        reader.start()  # a full pipe would stop the server
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (64, 64))
        with idle(address, 90):
            time.sleep(3)  # asyncio tries again every second
        deadline, status = time.monotonic() + 30, 0
        while status != 200:
            assert time.monotonic() < deadline, "no answer any more"
            with suppress(httpx.HTTPError):
                status = health(address)
        process.terminate()
        process.wait(20)
        reader.join(20)

    lines = [line for line in output if "HTTP/1.1" in line]
    assert all("127.0.0.1" in line for line in lines)
    assert sum("Too many open files" in line for line in output) == 1
    assert not any("Traceback" in line for line in output)
    assert '"GET /model HTTP/1.1" 401' in lines[0] and "/a%0Ab" in lines[3]
    assert SECRET not in "".join(output) and process.returncode == 0


def test_only_the_token_opens_all_but_the_health():
    async def talk(client: httpx.AsyncClient) -> None:
        wrong = (f"Bearer {OTHER} {SECRET}", f"Basic {SECRET}", f"Bearer {SECRET}x", "Bearer é")
        right = (f"Bearer {SECRET}", f"bearer {OTHER}")
        for sent in (None, SECRET, *wrong, *right):
            headers = {} if sent is None else {"Authorization": sent.encode("latin-1")}
            paths = ("/", "/health", "/docs", "/openapi.json", "/model", "/metrics")
            answers = [await client.get(path, headers=headers) for path in paths]
            for path in ("/certify", "/watch"):
                answers.append(await client.post(path, headers=headers, content=DIGITS[0]))
            opened = [200, 200, 422, 422] if sent in right else [401] * 4
            statuses = [answer.status_code for answer in answers]
            assert statuses == [200, 200, 404, 404, *opened], sent
            if sent not in right:
                assert answers[4].headers["www-authenticate"] == "Bearer"
                assert "Authorization: Bearer" in answers[4].json()["detail"]

    ask(talk, classifier(), tokens=(OTHER.encode(), SECRET.encode()))


def test_tokens_are_read_one_a_line_without_comments(tmp_path: Path):
    (tmp_path / "token").write_text(f"# of us\n {SECRET}\n\n#of them\r\n{OTHER}\r\n")

    assert bearer.read(tmp_path / "token") == (SECRET.encode(), OTHER.encode())
    for wrong, why in ((tmp_path, "a folder, not a file"), (tmp_path / "none", "not found")):
        with refused(ConfigError, f"--token-file {wrong}: {why}"):
            bearer.read(wrong)


def test_a_file_that_holds_no_token_is_refused_and_not_shown(tmp_path: Path):
    file = tmp_path / "token"
    wrong = (
        b"",
        b"short",
        b"two words of a secret",
        b"x" * 5000,
        b"\xff" * 20,
        b"# a comment alone",
    )
    for held, line in [*((held, 1) for held in wrong), (f"{SECRET}\n\ntoo-short".encode(), 3)]:
        file.write_bytes(held)
        words = f"--token-file {file}: line {line}: expected a token of 16 to 4,096"
        with refused(ConfigError, words) as error:
            bearer.read(file)
        assert "too-short" not in str(error.value) and SECRET not in str(error.value)


def test_a_server_for_others_says_so(capsys: pytest.CaptureFixture[str]):
    for host, count in (("127.0.0.1", 0), ("0.0.0.0", 1)):
        with socket.create_server((host, 0)) as listener:
            serve._warn(listener)

        error = capsys.readouterr().err
        assert error.startswith(f"warning: --host {host}: " * count) and error.count("\n") == count


def test_a_port_that_is_taken_is_named_and_answers_do_not_wait_for_acknowledgements():
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        for host in ("127.0.0.1", "0.0.0.0"):
            with refused(ConfigError, f"--host {host} --port {port}: cannot listen there"):
                listen(host, port)
        with socket.create_connection(("127.0.0.1", port)), listener.accept()[0] as accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
