"""``rrcm flow run``: the flow in this process, at the server that is there or at one of its own."""

import atexit
import fcntl
import os
import sys
import time
from collections.abc import Sequence

from pipeline.flow import commands, environment, guarded, lockfile, plan
from rrcm.errors import StageError

LOOPBACK = "127.0.0.1"
PATIENCE = 120.0  # seconds that a server may take to begin; a second or two is usual
LEAN = {  # what a server of one run has no use for
    **{
        f"PREFECT_SERVER_SERVICES_{service}_ENABLED": "false"
        for service in ("SCHEDULER", "LATE_RUNS", "FOREMAN", "TRIGGERS", "PAUSE_EXPIRATIONS")
    },
    "PREFECT_SERVER_LOGGING_LEVEL": "ERROR",
}


def run(
    targets: Sequence[str],
    *,
    force: Sequence[str],
    retries: int,
    hosts: bool,
    commit: str,
    publish: str,
) -> None:
    """Run the flow `rebuild` and tell of it on the terminal.

    It is seen at the server that `environment.prepare` finds. Without, one runs as long as we do,
    and leaves what it knows to the next one.

    Raises:
        StageError: A stage failed, or the run was stopped.
        RrcmError: What is asked for makes no sense, or the server does not answer.
    """
    address = environment.prepare()
    if hosts and not address:
        raise StageError(
            "--hosts: workers need a server; set PREFECT_API_URL, or start `rrcm flow up`"
        )
    if restored := lockfile.restore():
        print(restored, file=sys.stderr)
    server = None if address else _Server()
    # While the server begins; another commit may have another graph.
    nodes = None if commit else plan.load(targets, force=force, here=not hosts)
    from pipeline.flow import flows  # with prefect, which reads its settings now

    if server:
        server.wait()
    else:
        _require(address)
    if not hosts:
        flows.READY.set(nodes)
    state = flows.rebuild(
        targets=[*targets],
        force=[*force],
        hosts=hosts,
        retries=retries,
        commit=commit,
        publish=publish,
        return_state=True,
    )
    if not state.is_completed():
        raise StageError(state.message or f"the run ended as {state.name}")


class _Server:
    """Prefect's server, on loopback, for this process alone and as long as it lives."""

    def __init__(self) -> None:
        guarded.home()
        self._log = environment.HOME / "server.log"
        self._turn = (environment.HOME / "starting").open("ab")  # two would both make the database
        fcntl.flock(self._turn, fcntl.LOCK_EX)
        self._listener = guarded.listening(LOOPBACK, 0)
        os.environ |= guarded.settings(LOOPBACK, self._listener, guarded.secret())
        self._url = os.environ[environment.ADDRESS]
        with self._log.open("wb") as log:
            self._process = commands.start(
                guarded.command(self._listener),
                environment=os.environ | LEAN,
                output=log.fileno(),
                files=(self._listener.fileno(),),
            )
        # Prefect sends what it has not sent yet when the interpreter ends, which is before this.
        atexit.register(self._end)

    def wait(self) -> None:
        """Until it answers.

        Raises:
            StageError: It does not begin, or asks for no secret.
        """
        deadline = time.monotonic() + PATIENCE
        with self._turn:
            while not guarded.ready(self._url):
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise StageError(f"Prefect's server does not begin; {self._log} says why")
                time.sleep(0.05)

    def _end(self) -> None:
        self._process.terminate()
        self._process.wait()


def _require(address: str) -> None:
    """See that a server is there that is ready, and takes us."""
    if guarded.status(f"{address.rstrip('/')}/health", seconds=10.0) not in (200, 401, 403):
        raise StageError(
            f"{address}: no server answers there; start it, or unset {environment.ADDRESS}"
        )
    from pipeline.flow import server  # imports prefect, which reads the environment

    server.greet()
