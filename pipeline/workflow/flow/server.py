"""Implements `rrcm flow up` and `rrcm flow worker`, which run until a signal, and `rrcm flow run`.

Guarantee: on SIGTERM or Ctrl-C, active runs are stopped first, report this to the server, and are
waited for; then worker and server end. If this process is killed, even by SIGKILL, all that it
started ends too; such runs report nothing, and the next `rrcm flow up` marks them as crashed. The
same holds if the server ends early: nothing can be reported, and stages save and end at once.
"""

import atexit
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from subprocess import Popen

import psutil

from pipeline.workflow import gpus, locks, processes, supervise
from pipeline.workflow.flow import environment, guarded
from pipeline.workflow.flow.environment import FLOWS, POOL, STAGES
from rrcm.core.errors import ConfigError, StageError
from rrcm.core.files import write_json
from rrcm.core.locks import lock

LOCK = environment.HOME / "up.lock"
START = 120.0  # seconds until the server must answer; a second or two is usual
FAREWELL = 60.0  # seconds for a stopped run to end; its stage has 30
# Seconds that the clock of a host may be behind the server's: a worker takes runs that are due by
# its own clock, or so much later. Runs of stages are always due at once.
BEHIND = 24 * 3600
POLL = 0.2
TAIL = 5  # lines of a log in an error
LOOPBACK = "127.0.0.1"
LEAN = {  # services that the server of a single run does not need
    **{
        f"PREFECT_SERVER_SERVICES_{service}_ENABLED": "false"
        for service in ("SCHEDULER", "LATE_RUNS", "FOREMAN", "TRIGGERS", "PAUSE_EXPIRATIONS")
    },
    "PREFECT_SERVER_LOGGING_LEVEL": "ERROR",
}

Say = Callable[[str], None]


def run(
    targets: Sequence[str],
    *,
    force: Sequence[str],
    retries: int,
    hosts: bool,
    commit: str,
    shares: int,
) -> None:
    """Run the flow `rebuild` in this process and report it on the terminal.

    It uses the server that `environment.prepare` finds. Otherwise it starts one, which ends with
    this process and leaves its database to the next one.

    Raises:
        StageError: A stage failed, or the run was stopped.
        RrcmError: A target or option is not valid, or the server does not answer.
    """
    if address := environment.prepare():
        if guarded.status(f"{address.rstrip('/')}/health", seconds=10.0) not in (200, 401, 403):
            raise StageError(
                f"{address}: no server answers there; start it, or unset {environment.ADDRESS}"
            )
    elif hosts:
        raise StageError(
            "--hosts: workers need a server; set PREFECT_API_URL, or start `rrcm flow up`"
        )
    else:
        guarded.home()
        stack = ExitStack()
        # Prefect flushes its logs at interpreter exit, before this handler ends the server.
        atexit.register(stack.close)
        with (environment.HOME / "starting").open("ab") as turn:  # two would create the database
            stop = processes.Stop()
            locks.take(turn.fileno(), stop=stop, why="another server to start", say=print)
            stack.enter_context(_serving(LOOPBACK, 0, stop, LEAN))
    from pipeline.workflow.flow import (  # imports prefect, which reads its settings now
        deployments,
        flows,
    )

    deployments.check(pool=False)
    state = flows.rebuild(
        targets=[*targets],
        force=[*force],
        hosts=hosts,
        retries=retries,
        commit=commit,
        shares=shares,
        return_state=True,
    )
    if not state.is_completed():
        raise StageError(state.message or f"the run ended as {state.name}")


def up(*, host: str, port: int, schedules: bool | None, say: Say) -> None:
    """Run a Prefect server for this checkout, with its deployments and a worker for its flows.

    Database and logs are in .rrcm/prefect. Port 0 takes a free one. ``schedules``: see
    `deployments.deploy`.

    Raises:
        ConfigError: The environment names another server, or the address is not available.
        StageError: This is no checkout, it runs here already, or the server or worker ended.
    """
    if address := os.environ.get(environment.ADDRESS):
        raise ConfigError(
            f"{environment.ADDRESS}: {address} is a server already; `rrcm flow deploy` and `rrcm "
            "flow worker` use it; unset it for one of this checkout"
        )
    environment.enter()
    stop = processes.Stop()
    with processes.signals(stop, say), _alone():
        environment.prepare()
        with _serving(host, port, stop, say=say) as (server, warning):
            if stop.is_set():
                return
            from pipeline.workflow.flow import (
                deployments,  # imports prefect, which reads the environment
            )

            deployments.sweep()
            told, url = deployments.deploy(schedules), os.environ[environment.ADDRESS]
            name = f"{socket.gethostname()}-{Path.cwd().name}-{FLOWS}"
            with _worker(FLOWS, name, 1, heard=lambda: server.poll() is None) as worker:
                write_json(environment.SERVER, {"url": url, "pid": os.getpid()})
                say(
                    f"{told}\n{url.removesuffix('/api')} shows runs; Ctrl-C ends it\n"
                    f"it asks for a password: the line in {environment.SECRET}{warning}"
                )
                _wait({"server": server, "worker": worker}, stop)


def work(*, queue: str, name: str, limit: int, say: Say) -> None:
    """Take runs of a queue for this checkout: ``stages`` as a host, ``flows`` as a coordinator.

    Args:
        queue: ``stages`` or ``flows``.
        name: Name of this worker at the server; empty: host and folder.
        limit: Runs at once; 0: as many as this host has GPUs, or one coordinator.
        say: Called with progress messages.

    Raises:
        ConfigError: There is no such queue, or no server is configured.
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
    from pipeline.workflow.flow import deployments  # imports prefect, which reads the environment

    deployments.check(pool=True)
    name = name or f"{socket.gethostname()}-{Path.cwd().name}-{queue}"
    limit = limit or (len(gpus.names()) if queue == STAGES else 1)
    stop = processes.Stop()
    with processes.signals(stop, say), _worker(queue, name, limit, log=False) as worker:
        say(f"{name}: takes {limit} of queue {queue} at {address}; Ctrl-C ends it")
        _wait({"worker": worker}, stop)


@contextmanager
def _alone() -> Iterator[None]:
    """Ensure that this is the only `rrcm flow up` of this checkout."""
    guarded.home()
    with LOCK.open("ab") as file:
        if not lock(file.fileno()):
            doing = environment.running() or "it is starting, or ending, and waits for its runs"
            raise StageError(f"`rrcm flow up` runs in this checkout already: {doing}")
        environment.SERVER.unlink(missing_ok=True)  # left by one that was killed
        try:
            yield
        finally:
            environment.SERVER.unlink(missing_ok=True)


@contextmanager
def _serving(
    host: str,
    port: int,
    stop: processes.Stop,
    more: Mapping[str, str] | None = None,
    *,
    say: Say | None = None,
) -> Iterator[tuple[Popen[bytes], str]]:
    """Yield Prefect's server once it answers or ``stop`` is set, and `guarded.warning`.

    Our environment gets its address and secret. With ``say``, other commands of this checkout may
    use it too, and the secret is kept in a file for them.
    """
    secret = guarded.secret()
    with ExitStack() as stack:
        listener = stack.enter_context(guarded.listening(host, port))
        if say:
            stack.enter_context(guarded.kept(secret))
            say("starting Prefect's server; the first time in a checkout takes half a minute")
        os.environ |= guarded.settings(host, listener, secret)
        command, files = guarded.command(listener), (listener.fileno(),)
        server = stack.enter_context(_running("server", command, more or {}, files))
        deadline = time.monotonic() + START
        while not guarded.ready(os.environ[environment.ADDRESS]) and not stop.wait(POLL / 4):
            _look("server", server)
            if time.monotonic() > deadline:
                raise StageError(f"Prefect's server does not begin; {_log('server')} says why")
        yield server, guarded.warning(listener)


@contextmanager
def _worker(
    queue: str, name: str, limit: int, *, log: bool = True, heard: Callable[[], bool] = lambda: True
) -> Iterator[Popen[bytes]]:
    """Run a worker; its runs use this checkout and this Python interpreter."""
    more = {environment.CHECKOUT: str(Path.cwd()), "PATH": processes.path()}
    if queue == STAGES:
        more["PREFECT_WORKER_PREFETCH_SECONDS"] = str(BEHIND)
    prefect = [sys.executable, "-m", "prefect", "--no-prompt", "worker", "start", "--pool", POOL]
    options = ["--type", "process", "--work-queue", queue, "--name", name, "--limit", str(limit)]
    with _running("worker", [*prefect, *options], more, log=log) as process:
        try:
            yield process
        finally:
            _end_runs(process, heard)


@contextmanager
def _running(
    what: str,
    command: list[str],
    more: Mapping[str, str],
    files: Sequence[int] = (),
    *,
    log: bool = True,
) -> Iterator[Popen[bytes]]:
    """Run a server or worker during the block. It inherits ``files``."""
    with open(_log(what) if log else os.devnull, "wb") as file:
        process = processes.start(
            command,
            environment=os.environ | more,
            output=file.fileno() if log else None,
            grace=FAREWELL,
            give=files,
        )
    with process:
        yield process


def _log(what: str) -> Path:
    return environment.HOME / f"{what}.log"


def _end_runs(supervisor: Popen[bytes], heard: Callable[[], bool]) -> None:
    """Stop a worker's runs before the worker, which would kill them without reporting it.

    The worker is suspended meanwhile and starts no further runs. If the server is gone (``heard``
    is False), a run would try for minutes to report; it is killed, and its stages still save.
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


def _wait(parts: Mapping[str, Popen[bytes]], stop: processes.Stop) -> None:
    while not stop.wait(POLL):
        for what, process in parts.items():
            _look(what, process)


def _look(what: str, process: Popen[bytes]) -> None:
    if (code := process.poll()) is None:
        return
    said = _log(what).read_text(errors="replace") if _log(what).exists() else ""
    tail = " / ".join([line.strip() for line in said.splitlines() if line.strip()][-TAIL:])
    killed = {128 + number: f"was killed by {number.name}" for number in signal.Signals}
    how = killed.get(code, f"ended (exit code {code})")
    raise StageError(f"the {what} {how}{f': {tail}' if tail else ''}")
