"""Implements `rrcm flow up` and `rrcm flow worker`, which run until a signal, and `rrcm flow run`.

Guarantee: on SIGTERM or Ctrl-C, active runs are stopped first, report this to the server, and are
waited for; then worker and server end. If this process is killed, even by SIGKILL, all that it
started ends too; such runs report nothing, and the next `rrcm flow up` marks them as crashed. The
same holds if the server ends early: nothing can be reported, and stages save and end at once.
"""

import os
import signal
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from subprocess import Popen
from typing import Any

import psutil

from pipeline.workflow import gpus, processes, supervise
from pipeline.workflow.flow import environment
from pipeline.workflow.flow.environment import ADDRESS, FLOWS, HOME, POOL, STAGES
from pipeline.workflow.processes import POLL, Say
from rrcm.core.errors import ConfigError, StageError, one_line
from rrcm.serving.listener import listen

START = 120.0  # seconds until the server must answer; a second or two is usual
FAREWELL = 60.0  # seconds for a stopped run to end; its stage has 30
# Seconds that the clock of a host may be behind the server's: a worker takes runs that are due by
# its own clock, or so much later. Runs of stages are always due at once.
BEHIND = 24 * 3600
TAIL = 5  # lines of a log in an error


def run(*, say: Say, hosts: bool, **parameters: Any) -> None:
    """Run the flow `rebuild` in this process with these parameters; its log is on the terminal.

    If the server is gone or has another secret at its end, the run ends as its stages did, all the
    same: a secret that outlived the server would be sent to whoever listens there meanwhile.

    Raises:
        StageError: A stage failed, the run was stopped, or the server was gone when it began.
        RrcmError: A target or option is not valid, or no server answers.
    """
    environment.named()
    if not hosts:  # stages that run here need no answer, and Prefect would ask for two minutes
        os.environ.setdefault("PREFECT_CLIENT_MAX_RETRIES", "1")
    from pipeline.workflow.flow import deployments, flows  # prefect reads its settings now
    from pipeline.workflow.flow import hosts as workers

    deployments.check()
    address = os.environ[ADDRESS]
    flows.quiet()
    try:
        state = flows.rebuild(hosts=hosts, **parameters, return_state=True)
    except workers.REFUSED as error:
        if not flows.ended:
            raise StageError(f"{address}: {one_line(error)}") from None
        state = flows.ended[-1]
        say(f"{state.message}; {address} did not hear of it, as it is gone or was started again")
    if not state.is_completed():
        raise StageError(state.message or f"the run ended as {state.name}")


def up(*, host: str, port: int, say: Say) -> None:
    """Run a Prefect server for this checkout, with its deployments and a worker for its flows.

    Database and logs are in .rrcm/prefect. Port 0 takes a free one.

    Raises:
        ConfigError: The environment names another server, or the address is not available.
        StageError: This is no checkout, it runs here already, or the server or worker ended.
    """
    if address := os.environ.get(ADDRESS):
        raise ConfigError(
            f"{ADDRESS}: {address} is a server already; `rrcm flow deploy` and `rrcm flow worker` "
            "use it; unset it for one of this checkout"
        )
    environment.enter()
    stop = processes.Stop()
    with processes.signals(stop, say), environment.alone():
        environment.prepare()
        with listen(host, port) as listener:
            say("starting Prefect's server; the first time in a checkout takes half a minute")
            os.environ |= environment.settings(host, listener, environment.secret())
            command, files = environment.command(listener), (listener.fileno(),)
            with _running("server", command, give=files) as server:
                if not _begun(server, stop):
                    return
                from pipeline.workflow.flow import deployments  # prefect reads the environment

                deployments.sweep()
                deployed, url = deployments.deploy(), os.environ[ADDRESS].removesuffix("/api")
                with _worker(FLOWS, 1) as worker:
                    environment.publish()
                    say(
                        f"{deployed}\n{url} shows runs; Ctrl-C ends it\nit asks for a password: "
                        f"the secret in {environment.SERVER}"
                    )
                    while not stop.wait(POLL):
                        _look("server", server)
                        _look("worker", worker)


def work(*, queue: str, say: Say) -> None:
    """Take runs of a queue for this checkout: ``stages`` as a host, ``flows`` as a coordinator.

    So many stages at once as this host has GPUs, or one flow.

    Raises:
        ConfigError: No server is configured.
        StageError: This is no checkout, the server does not answer, or the worker ended.
    """
    environment.enter()
    address = environment.named()
    from pipeline.workflow.flow import deployments  # imports prefect, which reads the environment

    deployments.check()
    limit, stop = 1, processes.Stop()
    if queue == STAGES:
        limit = len(gpus.names())
        os.environ["PREFECT_WORKER_PREFETCH_SECONDS"] = str(BEHIND)
    with processes.signals(stop, say), _worker(queue, limit, log=False) as worker:
        say(f"takes {limit} of queue {queue} at {address}; Ctrl-C ends it")
        while not stop.wait(POLL):
            _look("worker", worker)


def _begun(server: Popen[bytes], stop: processes.Stop) -> bool:
    """Wait until the server answers, and asks for the secret; False if ``stop`` was set before."""
    url, deadline = os.environ[ADDRESS], time.monotonic() + START
    while (code := _status(f"{url}/admin/version")) != 401:
        _look("server", server)
        if code == 200:
            raise StageError(f"{url}: Prefect's server asks for no secret, and so is not used")
        if time.monotonic() > deadline:
            raise StageError(f"Prefect's server does not begin; {_log('server')} says why")
        if stop.wait(POLL / 4):
            return False
    return True


def _status(url: str) -> int:
    """The HTTP status of a request without the secret; 0 if there is no answer."""
    import httpx  # as Prefect has it

    try:
        return httpx.get(url, timeout=2.0, trust_env=False).status_code
    except httpx.HTTPError:
        return 0


@contextmanager
def _worker(queue: str, limit: int, *, log: bool = True) -> Iterator[Popen[bytes]]:
    """Run a worker; its runs use this checkout and this Python interpreter."""
    prefect = [sys.executable, "-m", "prefect", "--no-prompt", "worker", "start", "--pool", POOL]
    name = f"{socket.gethostname()}-{Path.cwd().name}-{queue}"
    options = ["--type", "process", "--work-queue", queue, "--name", name, "--limit", str(limit)]
    with _running("worker", [*prefect, *options], log=log) as process:
        try:
            yield process
        finally:
            _end_runs(process)


def _running(
    what: str, command: list[str], *, give: Sequence[int] = (), log: bool = True
) -> Popen[bytes]:
    """Start a server or worker, which ends with us. It inherits the files ``give``."""
    with open(_log(what) if log else os.devnull, "wb") as file:
        output = file.fileno() if log else None
        return processes.start(command, output=output, grace=FAREWELL, give=give)


def _log(what: str) -> Path:
    return HOME / f"{what}.log"


def _end_runs(supervisor: Popen[bytes]) -> None:
    """Stop a worker's runs before the worker, which would kill them without reporting it.

    The worker is suspended meanwhile and starts no further runs. A run that does not end, such as
    one whose server is gone, is killed; its stages have saved by then.
    """
    with suppress(psutil.NoSuchProcess):
        for worker in psutil.Process(supervisor.pid).children():
            worker.suspend()
            runs = worker.children()
            for run in runs:
                supervise.send(run, signal.SIGTERM)
            deadline = time.monotonic() + FAREWELL
            while any(map(_lives, runs)) and time.monotonic() < deadline:
                time.sleep(POLL)
            for process in (*runs, worker):
                supervise.send(process, signal.SIGKILL)


def _lives(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _look(what: str, process: Popen[bytes]) -> None:
    if (code := process.poll()) is None:
        return
    output = _log(what).read_text(errors="replace") if _log(what).exists() else ""
    tail = " / ".join([line.strip() for line in output.splitlines() if line.strip()][-TAIL:])
    killed = {128 + number: f"was killed by {number.name}" for number in signal.Signals}
    how = killed.get(code, f"ended (exit code {code})")
    raise StageError(f"the {what} {how}{f': {tail}' if tail else ''}")
