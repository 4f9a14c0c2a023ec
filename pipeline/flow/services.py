"""What runs until a signal ends it: `rrcm flow up` and `rrcm flow worker`.

Guarantee: on SIGTERM or Ctrl-C, runs at work are stopped first, tell the server so, and are waited
for; then worker and server end. If this process is killed, even by SIGKILL, all that it started
ends too; runs then do not tell, and the next `rrcm flow up` does it for them. So it is when the
server ends before its time: nobody could be told, and stages save and end at once.
"""

import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from subprocess import Popen
from threading import Thread
from typing import BinaryIO

import psutil

from pipeline.flow import commands, environment, guarded, signals, slots, supervise
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
    with signals.heeded(stop, say), _alone() as now:
        environment.prepare()
        secret = guarded.secret()
        with guarded.listening(host, port) as listener, guarded.kept(secret):
            os.environ |= guarded.settings(host, listener, secret)
            say("starting Prefect's server; the first time in a checkout takes half a minute")
            _serve(listener, schedules=schedules, stop=stop, say=say, now=now)


def _serve(
    listener: socket.socket,
    *,
    schedules: bool | None,
    stop: signals.Stop,
    say: Callable[[str], None],
    now: Callable[[str], None],
) -> None:
    """The parts of `up`, until ``stop``; ``now`` is told how far it is."""
    url, files = os.environ[environment.ADDRESS], (listener.fileno(),)
    with (
        _serving_report() as report,
        _running("server", guarded.command(listener), files=files) as server,
        _ending(now),
    ):
        _until_it_answers(url, server, stop)
        if stop.is_set():
            return
        told = _told(schedules)
        os.environ.update({REPORT_ADDRESS: report} | _worker_settings())
        command = _worker(FLOWS, name=f"{socket.gethostname()}-{Path.cwd().name}-{FLOWS}", limit=1)
        heard = partial(_runs, server)
        with _running("worker", command, heard=heard) as worker, _ending(now), _known(url):
            now(url)
            say(
                f"{told}\n{url.removesuffix('/api')} shows runs; Ctrl-C ends it\n"
                f"it asks for a password: the line in {environment.SECRET}"
                f"{guarded.warning(listener)}"
            )
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
def _alone() -> Iterator[Callable[[str], None]]:
    """Hold the lock of this checkout; whoever comes second is told what was last called with."""
    guarded.home()
    with LOCK.open("ab") as file:
        if not slots.lock(file.fileno()):
            raise StageError(f"`rrcm flow up` runs in this checkout already: {LOCK.read_text()}")
        LOCK.write_text("it is starting")
        environment.SERVER.unlink(missing_ok=True)  # of one that was killed
        yield LOCK.write_text


@contextmanager
def _ending(now: Callable[[str], None]) -> Iterator[None]:
    try:
        yield
    finally:
        now("it is ending, and waits for its runs; the same command a little later")


def _worker_settings() -> dict[str, str]:
    """Of a worker and its runs, for which `python` must be this one."""
    checkout, path = str(Path.cwd()), commands.path()
    return {environment.CHECKOUT: checkout, "PREFECT_WORKER_QUERY_SECONDS": QUERY, "PATH": path}


def _worker(queue: str, *, name: str, limit: int) -> list[str]:
    options = {"--pool": POOL, "--type": "process", "--work-queue": queue, "--name": name}
    words = [word for option in options.items() for word in option]
    prefect = [sys.executable, "-m", "prefect", "--no-prompt"]
    return [*prefect, "worker", "start", *words, "--limit", str(limit)]


@contextmanager
def _running(
    what: str,
    command: list[str],
    *,
    log: bool = True,
    files: Sequence[int] = (),
    heard: Callable[[], bool] = lambda: True,
) -> Iterator[Popen[str]]:
    """A part, from its start to its end, as a process that stops it when it is told to.

    It inherits ``files``. A worker's runs are waited for as long as their server may hear of them.
    """
    with open(_log(what) if log else os.devnull, "wb") as file:
        output = file.fileno() if log else None
        with commands.start(
            command, environment=os.environ, output=output, grace=FAREWELL, files=files
        ) as process:
            try:
                yield process
            finally:
                if what == "worker":
                    _quiet(process, heard)
                process.terminate()
                process.wait()


def _runs(process: Popen[str]) -> bool:
    return process.poll() is None


def _log(what: str) -> Path:
    return environment.HOME / f"{what}.log"


def _quiet(supervisor: Popen[str], heard: Callable[[], bool]) -> None:
    """Stop a worker's runs before it: its own way is to kill them, and to tell nobody.

    Frozen, it starts no further ones meanwhile. A run whose server is gone would try for minutes to
    tell it; killed, its stages still save.
    """
    try:
        for worker in psutil.Process(supervisor.pid).children():
            worker.suspend()
            runs = worker.children()
            for run in runs:
                supervise.send(run, signal.SIGTERM)
            deadline = time.monotonic() + FAREWELL
            while any(map(_lives, runs)) and heard() and time.monotonic() < deadline:
                time.sleep(POLL)
            for process in (*runs, worker):
                supervise.send(process, signal.SIGKILL)
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
        if guarded.ready(url):
            return
        if time.monotonic() > deadline:
            raise StageError(f"the server does not answer; {_log('server')} says more")


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
    if (code := process.poll()) is None:
        return
    said = _log(what).read_text(errors="replace") if _log(what).exists() else ""
    tail = " / ".join([line.strip() for line in said.splitlines() if line.strip()][-TAIL:])
    killed = {128 + number: f"was killed by {number.name}" for number in signal.Signals}
    how = killed.get(code, f"ended (exit code {code})")
    raise StageError(f"the {what} {how}{f': {tail}' if tail else ''}")


class _Pages(SimpleHTTPRequestHandler):
    """Files of one folder, to read, for whom was told where they are; and no lists of them."""

    server: "_Reports"

    def translate_path(self, path: str) -> str:
        return super().translate_path(path.removeprefix(self.server.prefix))

    def send_head(self) -> BinaryIO | BytesIO | None:
        given = self.path[: len(self.server.prefix)]
        if not secrets.compare_digest(given.encode(), self.server.prefix.encode()):
            self.send_error(404)
            return None
        return super().send_head()

    def list_directory(self, path: str | os.PathLike[str]) -> None:
        self.send_error(404)

    def log_message(self, format: str, *args: object) -> None:
        """Nobody asked who reads a report."""


class _Reports(ThreadingHTTPServer):
    """The report of this checkout, whenever there is one, for users of this host who know where."""

    def __init__(self) -> None:
        self.prefix = f"/{secrets.token_urlsafe(16)}/"
        super().__init__(("127.0.0.1", 0), partial(_Pages, directory=str(REPORT.absolute())))

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}{self.prefix}"


@contextmanager
def _serving_report() -> Iterator[str]:
    """The address of the report: like a password, it is told to runs, and so on Prefect's pages."""
    with _Reports() as server:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server.address
        finally:
            server.shutdown()
