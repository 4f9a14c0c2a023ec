"""The environment that Prefect reads at import, the server of this checkout, and its secret.

A worker executes, as its user, whatever Prefect's API receives. Every user of a machine can reach
its loopback addresses, and so may a web page in a browser there. Hence every server started here
requires a secret, whatever its address, and there is no way to start one without.

Guarantee: the secret is in the environment of processes of this user and in one file of a folder
that nobody else may enter; it is on no command line and in no log. The port is held from before the
secret is made until every process that received the secret has ended, so that nobody else can
listen there and receive it.
"""

import json
import os
import secrets
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rrcm.core import locks
from rrcm.core.errors import ConfigError, StageError
from rrcm.core.files import write_json
from rrcm.inference import extras

HOME = Path(".rrcm/prefect")  # Prefect's database and files, of this checkout alone
SERVER = HOME / "server.json"  # address and secret of the server of `rrcm flow up`
LOCK = HOME / "up.lock"  # held while `rrcm flow up` runs
CHECKOUT = "RRCM_CHECKOUT"  # the checkout of a worker's flows, which start in another folder
ADDRESS = "PREFECT_API_URL"
AUTH = "PREFECT_API_AUTH_STRING"  # the secret of the server at ADDRESS
SERVER_AUTH = "PREFECT_SERVER_API_AUTH_STRING"
SHORTEST = 16  # characters of a secret chosen by a person
POOL, FLOWS, STAGES = "rrcm", "flows", "stages"  # the work pool and its queues, as in prefect.yaml
APPLICATION = "prefect.server.api.server:create_app"
LINES = "%(asctime)s  "

QUIET = {  # no telemetry, and no prompts on Prefect's pages
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
}
USUAL = {  # defaults that the environment may override
    "PREFECT_SERVER_EPHEMERAL_ENABLED": "false",  # Prefect must not start a server by itself
    # Between two requests of a worker for runs: with many workers, the server's main load.
    "PREFECT_WORKER_QUERY_SECONDS": "5",
    "PREFECT_LOGGING_INTERNAL_LEVEL": "CRITICAL",  # else each event that could not be sent is told
    "PREFECT_LOGGING_FORMATTERS_STANDARD_FLOW_RUN_FMT": f"{LINES}%(message)s",
    "PREFECT_LOGGING_FORMATTERS_STANDARD_TASK_RUN_FMT": f"{LINES}%(task_run_name)s: %(message)s",
}


def prepare() -> str:
    """Set the variables that Prefect reads at import; return the address of the server to use.

    The address is PREFECT_API_URL, else that of `rrcm flow up` in this checkout, whose secret is
    then used, else an empty string. No telemetry is sent. May be called again.

    Raises:
        ModuleNotFoundError: Prefect is not installed.
    """
    extras.require("prefect")
    os.environ.update(QUIET)
    for name, value in USUAL.items():
        os.environ.setdefault(name, value)
    if not os.environ.get(ADDRESS):
        os.environ["PREFECT_HOME"] = str(HOME.absolute())
        with suppress(FileNotFoundError), LOCK.open("rb") as file:
            if not locks.lock(file.fileno()):  # `rrcm flow up` runs
                os.environ |= json.loads(SERVER.read_text())
    return os.environ.get(ADDRESS, "")


def named() -> str:
    """`prepare`, where a server must be there.

    Raises:
        ConfigError: No server is named, and none runs in this checkout.
    """
    if address := prepare():
        return address
    raise ConfigError(
        f"no server: start `rrcm flow up` in this checkout, or set {ADDRESS}=http://HOST:4200/api; "
        "`rrcm repro --jobs` needs none"
    )


@contextmanager
def alone() -> Iterator[None]:
    """Ensure that this is the only `rrcm flow up` of this checkout, and that its folder is ours.

    Raises:
        StageError: It runs already, or the folder belongs to another user.
    """
    try:
        HOME.mkdir(mode=0o700, parents=True, exist_ok=True)
        HOME.chmod(0o700)  # somebody else may have made it
    except OSError as error:
        raise StageError(f"{HOME}: {error.strerror}; it must be a folder of yours") from None
    with locks.alone(LOCK, "`rrcm flow up`", say=print, patience=0.0):
        SERVER.unlink(missing_ok=True)  # left by one that was killed
        try:
            yield
        finally:
            SERVER.unlink(missing_ok=True)


def publish() -> None:
    """Let other commands of this checkout, by this user, use the server of our environment."""
    write_json(SERVER, {name: os.environ[name] for name in (ADDRESS, AUTH)})


def enter() -> None:
    """Change to the checkout that RRCM_CHECKOUT names, if it is set; every flow starts with this.

    Raises:
        StageError: It is no checkout.
    """
    folder = Path(os.environ.get(CHECKOUT, "."))
    if not (folder / "dvc.yaml").is_file():
        raise StageError(f"{folder.absolute()}: is no checkout (no dvc.yaml); see {CHECKOUT}")
    os.environ[CHECKOUT] = str(folder.absolute())
    os.chdir(folder)


def secret() -> str:
    """A fresh secret, or that of PREFECT_SERVER_API_AUTH_STRING.

    Raises:
        ConfigError: The variable's secret can be guessed, or cannot be sent.
    """
    if not (given := os.environ.get(SERVER_AUTH)):
        return f"rrcm:{secrets.token_urlsafe(32)}"
    if len(given) < SHORTEST or not given.isascii():
        raise ConfigError(
            f"{SERVER_AUTH}: must be {SHORTEST} characters or more, all of them ASCII; unset it "
            "for a fresh one with each start"
        )
    return given


def settings(host: str, listener: socket.socket, known: str) -> dict[str, str]:
    """Environment variables of a server at ``listener``, and of its clients."""
    port = listener.getsockname()[1]
    reachable = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    origin = f"http://{f'[{reachable}]' if ':' in reachable else reachable}:{port}"
    return {
        ADDRESS: f"{origin}/api",
        AUTH: known,
        SERVER_AUTH: known,
        # No requests from pages of other origins; the server's own pages need no CORS.
        "PREFECT_SERVER_API_CORS_ALLOWED_ORIGINS": origin,
        "PREFECT_SERVER_API_HOST": host,
        "PREFECT_SERVER_API_PORT": str(port),
        "PREFECT_SERVER_UI_API_URL": "/api",  # relative, to work from browsers on other hosts
    }


def command(listener: socket.socket) -> list[str]:
    """The command line of the server; its process must inherit the socket."""
    uvicorn = [sys.executable, "-m", "uvicorn", "--factory", APPLICATION, "--log-level", "warning"]
    return [*uvicorn, "--fd", str(listener.fileno())]
