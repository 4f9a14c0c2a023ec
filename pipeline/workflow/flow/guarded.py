"""Starts the Prefect server of a checkout so that only its user can use it.

A worker executes, as its user, whatever Prefect's API receives. Every user of a machine can reach
its loopback addresses, and so may a web page in a browser there. Hence every server started here
requires a secret, whatever its address, and there is no way to start one without.

Guarantee: the secret is in the environment of processes of this user and in one file that nobody
else may read; it is on no command line and in no log. The port is held from before the secret is
made until every process that received the secret has ended, so that nobody else can listen there
and receive it.
"""

import ipaddress
import os
import secrets
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

from pipeline.workflow.flow.environment import ADDRESS, AUTH, HOME, SECRET
from rrcm.core.errors import ConfigError, StageError

SERVER_AUTH = "PREFECT_SERVER_API_AUTH_STRING"
SHORTEST = 16  # characters of a secret chosen by a person
APPLICATION = "prefect.server.api.server:create_app"


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


def home() -> None:
    """Make Prefect's folder of this checkout, accessible to this user only.

    Raises:
        StageError: It belongs to another user.
    """
    try:
        HOME.mkdir(mode=0o700, parents=True, exist_ok=True)
        HOME.chmod(0o700)  # an earlier version may have made it
    except OSError as error:
        raise StageError(f"{HOME}: {error.strerror}; it must be a folder of yours") from None


@contextmanager
def kept(known: str) -> Iterator[None]:
    """Keep the secret in a file during the block, for `rrcm flow run` by this user here."""
    SECRET.unlink(missing_ok=True)  # left by a server that was killed
    with open(os.open(SECRET, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(f"{known}\n")
    try:
        yield
    finally:
        SECRET.unlink(missing_ok=True)


def listening(host: str, port: int) -> socket.socket:
    """A listening socket for `command`; port 0 takes a free one.

    Raises:
        ConfigError: The address is not available.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"--host {host} --port {port}: cannot listen there ({error})") from None
    # Accepted connections inherit this; uvicorn does not set it on a socket that it is given.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


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


def warning(listener: socket.socket) -> str:
    """A warning, after a line feed, if it listens at more than loopback; else empty."""
    if ipaddress.ip_address(listener.getsockname()[0]).is_loopback:
        return ""
    return "\nwarning: without TLS, whoever can listen in on the network reads the password"


def command(listener: socket.socket) -> list[str]:
    """The command line of the server; its process must inherit the socket."""
    uvicorn = [sys.executable, "-m", "uvicorn", "--factory", APPLICATION, "--log-level", "warning"]
    return [*uvicorn, "--fd", str(listener.fileno())]


def ready(url: str) -> bool:
    """Whether the started server answers.

    Raises:
        StageError: It also answers requests without the secret.
    """
    if (code := status(f"{url}/admin/version")) == 200:
        raise StageError(f"{url}: Prefect's server asks for no secret, and so is not used")
    return code == 401


def status(url: str, *, seconds: float = 2.0) -> int:
    """The HTTP status of a request without the secret; 0 if there is no answer."""
    try:
        with urllib.request.urlopen(url, timeout=seconds) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        error.close()
        return error.code
    except (OSError, ValueError):
        return 0
