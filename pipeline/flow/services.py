"""What runs until a signal ends it: `rrcm flow up` and `rrcm flow worker`.

Guarantee: on SIGTERM or Ctrl-C, runs at work are stopped first, tell the server so, and are waited
for; then worker and server end. If this process is killed, even by SIGKILL, all that it started
ends too; runs then do not tell, and the next `rrcm flow up` does it for them.
"""

import os
import socket
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from subprocess import Popen
from threading import Thread

import psutil

from pipeline.flow import commands, environment, signals, slots
from pipeline.flow.environment import FLOWS, POOL, REPORT, REPORT_ADDRESS, STAGES
from rrcm.errors import ConfigError, StageError
from rrcm.files import write_json

LOCK = environment.HOME / "up.lock"
START = 120.0  # seconds until the server must answer
FAREWELL = 60.0  # for a run to end that was told to; its stage has 30
POLL = 0.2
TAIL = 5  # lines of a log that an error tells
QUERY = "2"  # seconds between a worker's questions


def up(*, host: str, port: int, schedules: bool | None, say: Callable[[str], None]) -> None:
    """Run a Prefect server for this checkout, with its deployments and a worker for its flows.

    Database and logs are in .rrcm/prefect. Port 0 takes a free one. ``schedules``: see
    `server.deploy`.

    Raises:
        ConfigError: Another server is meant, or the address cannot be had.
        StageError: This is no checkout, it runs here already, or a part of it ended.
    """
    if address := os.environ.get(environment.ADDRESS):
        raise ConfigError(
            f"{environment.ADDRESS}: {address} is a server already; `rrcm flow deploy` and `rrcm "
            "flow worker` use it; unset it for one of this checkout"
        )
    environment.enter()
    stop = signals.Stop()
    with signals.heeded(stop, say), _alone():
        environment.prepare()
        url = _server_settings(host, port)
        say("starting Prefect's server; the first time in a checkout takes half a minute")
        with _serving_report() as report, _running("server", _prefect("server", "start")) as server:
            _until_it_answers(url, server, stop)
            if stop.is_set():
                return
            told = _told(schedules)
            os.environ.update({REPORT_ADDRESS: report} | _worker_settings())
            name = f"{socket.gethostname()}-{Path.cwd().name}-{FLOWS}"
            with _running("worker", _worker(FLOWS, name=name, limit=1)) as worker, _known(url):
                say(f"{told}\n{url.removesuffix('/api')} shows runs; Ctrl-C ends it")
                _wait({"server": server, "worker": worker}, stop)


def work(*, queue: str, name: str, limit: int, say: Callable[[str], None]) -> None:
    """Take runs of a queue for this checkout: ``stages`` as a host, ``flows`` as a coordinator.

    Args:
        queue: One of the two.
        name: What the server calls this worker; empty: host and folder.
        limit: Runs at once; 0: as many as this host has slots, or one coordinator.
        say: Told what happens.

    Raises:
        ConfigError: There is no such queue, or no server is meant.
        StageError: This is no checkout, the server does not answer, or the worker ended.
    """
    if queue not in (FLOWS, STAGES):
        raise ConfigError(f"--queue: must be {STAGES} or {FLOWS}, got {queue!r}")
    environment.enter()
    if not (address := environment.prepare()):
        raise ConfigError(
            f"no server: set {environment.ADDRESS}=http://HOST:4200/api, or start `rrcm flow up` "
            "in this checkout"
        )
    from pipeline.flow import server  # imports prefect, which reads the environment

    server.check()
    os.environ.update(_worker_settings())
    name = name or f"{socket.gethostname()}-{Path.cwd().name}-{queue}"
    limit = limit or (len(slots.names()) if queue == STAGES else 1)
    stop = signals.Stop()
    with signals.heeded(stop, say):
        command = _worker(queue, name=name, limit=limit)
        say(f"{name}: takes {limit} of queue {queue} at {address}; Ctrl-C ends it")
        with _running("worker", command, log=False) as worker:
            _wait({"worker": worker}, stop)


@contextmanager
def _alone() -> Iterator[None]:
    LOCK.parent.mkdir(parents=True, exist_ok=True)
    with LOCK.open("ab") as file:
        if not slots.lock(file.fileno()):
            address = environment.running() or "it is starting"
            raise StageError(f"`rrcm flow up` runs in this checkout already: {address}")
        environment.SERVER.unlink(missing_ok=True)  # of one that was killed
        yield


def _server_settings(host: str, port: int) -> str:
    """Where the server's API will be; what it, and all that talks to it, reads."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.create_server((host, port), family=family) as listener:
            port = listener.getsockname()[1]
    except (OSError, OverflowError) as error:
        raise ConfigError(f"--host {host} --port {port}: cannot listen there ({error})") from None
    reachable = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    url = f"http://{f'[{reachable}]' if ':' in reachable else reachable}:{port}/api"
    os.environ |= {
        environment.ADDRESS: url,
        "PREFECT_SERVER_API_HOST": host,
        "PREFECT_SERVER_API_PORT": str(port),
        "PREFECT_SERVER_UI_API_URL": "/api",  # for browsers elsewhere, too
    }
    return url


def _worker_settings() -> dict[str, str]:
    """Of a worker and its runs, for which `python` must be this one."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    checkout = str(Path.cwd())
    return {environment.CHECKOUT: checkout, "PREFECT_WORKER_QUERY_SECONDS": QUERY, "PATH": path}


def _prefect(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "prefect", "--no-prompt", *arguments]


def _worker(queue: str, *, name: str, limit: int) -> list[str]:
    options = {"--pool": POOL, "--type": "process", "--work-queue": queue, "--name": name}
    words = [word for option in options.items() for word in option]
    return _prefect("worker", "start", *words, "--limit", str(limit))


@contextmanager
def _running(what: str, command: list[str], *, log: bool = True) -> Iterator[Popen[str]]:
    """A part, from its start to its end, as a process that stops it when it is told to."""
    with open(_log(what) if log else os.devnull, "wb") as file:
        output = file.fileno() if log else None
        with commands.start(
            command, environment=os.environ, output=output, grace=FAREWELL
        ) as process:
            try:
                yield process
            finally:
                if what == "worker":
                    _quiet(process)
                process.terminate()
                process.wait()


def _log(what: str) -> Path:
    return environment.HOME / f"{what}.log"


def _quiet(supervisor: Popen[str]) -> None:
    """Stop a worker's runs before it: its own way is to kill them, and to tell nobody.

    Frozen, it starts no further ones meanwhile.
    """
    try:
        for worker in psutil.Process(supervisor.pid).children():
            worker.suspend()
            runs = worker.children()
            for run in runs:
                run.terminate()
            deadline = time.monotonic() + FAREWELL
            while any(map(_lives, runs)) and time.monotonic() < deadline:
                time.sleep(POLL)
            worker.kill()
    except psutil.NoSuchProcess:
        return


def _lives(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _until_it_answers(url: str, server: Popen[str], stop: signals.Stop) -> None:
    deadline = time.monotonic() + START
    while not stop.wait(POLL):
        _look("server", server)
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            if time.monotonic() > deadline:
                raise StageError(
                    f"the server does not answer; {_log('server')} says more"
                ) from None


def _told(schedules: bool | None) -> str:
    """Have the server know this project, and what became of earlier runs; its deployments."""
    from pipeline.flow import server  # imports prefect, which reads the environment

    server.sweep()
    return server.deploy(schedules)


@contextmanager
def _known(url: str) -> Iterator[None]:
    """Let `rrcm flow run` of this checkout find the server."""
    write_json(environment.SERVER, {"url": url, "pid": os.getpid()})
    try:
        yield
    finally:
        environment.SERVER.unlink(missing_ok=True)


def _wait(parts: Mapping[str, Popen[str]], stop: signals.Stop) -> None:
    while not stop.wait(POLL):
        for what, process in parts.items():
            _look(what, process)


def _look(what: str, process: Popen[str]) -> None:
    if process.poll() is None:
        return
    said = _log(what).read_text(errors="replace") if _log(what).exists() else ""
    tail = " / ".join(line.strip() for line in said.splitlines()[-TAIL:])
    raise StageError(f"the {what} ended (exit code {process.returncode}): {tail}")


class _Pages(SimpleHTTPRequestHandler):
    """Files of one folder, to read, and no lists of them."""

    def list_directory(self, path: str | os.PathLike[str]) -> None:
        self.send_error(404)

    def log_message(self, format: str, *args: object) -> None:
        """Nobody asked who reads a report."""


@contextmanager
def _serving_report() -> Iterator[str]:
    """The report of this checkout, whenever there is one, for this host alone; its address."""
    pages = partial(_Pages, directory=str(REPORT.absolute()))
    with ThreadingHTTPServer(("127.0.0.1", 0), pages) as server:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
