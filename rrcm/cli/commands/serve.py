"""``rrcm serve``: serves certified answers over HTTP from this process, until a signal ends it."""

import asyncio
import ipaddress
import logging
import re
import signal
import socket
from functools import partial
from pathlib import Path
from types import FrameType

import numpy as np
import torch
import uvicorn
from starlette.types import ASGIApp

from rrcm.certification.sampling import session, voting
from rrcm.certification.smoothed import Smoothed
from rrcm.cli import sources
from rrcm.cli.requests import Request
from rrcm.cli.runs import Trained
from rrcm.core.errors import ConfigError
from rrcm.serving import application, bearer
from rrcm.serving.connections import AT_ONCE, Connection, Door
from rrcm.serving.endpoints import Limits

UNITS = {"": 1, "k": 2**10, "M": 2**20}
BACKLOG = 2048  # connections that the kernel keeps until they are accepted
GRACE = 5  # seconds that a connection may take to close after the last answer


class Server(uvicorn.Server):
    """Prints when it is ready, and reports each kind of connection error once."""

    ready = ""
    door: Door

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Like uvicorn's, with a longer backlog; then print that the server is ready."""
        asyncio.get_running_loop().set_exception_handler(self.door.trouble)
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(BACKLOG)  # longer than the number accepted at a time
        print(self.ready, flush=True)


def serve(
    request: Request,
    *,
    host: str,
    port: int,
    timeout: float,
    queue: int,
    max_bytes: str,
    max_total: str,
    connections: int | None,
    token_file: Path | None,
    reproducible: bool,
) -> None:
    """Serve a classifier until SIGTERM or Ctrl-C; accepted requests are answered first.

    Port 0 takes a free one. The address is printed once the server is ready.

    Raises:
        RrcmError: The classifier cannot be served, a limit is not valid, or the address is not
            available.
    """
    limits = Limits(
        workers=session.workers(),
        bytes=size(max_bytes, "--max-bytes"),
        total=size(max_total, "--max-total"),
        queue=queue,
        seconds=timeout,
    )
    tokens = () if token_file is None else bearer.read(token_file)
    if token_file is not None and bearer.is_exposed(token_file):
        sources.note(
            f"--token-file {token_file}: all users of this machine may use it; `chmod 600` it",
            kind="warning",
        )
    classifier, name = _classifier(request.answering()), _name(request)
    app = application.app(
        classifier, name=name, limits=limits, reproducible=reproducible, tokens=tokens
    )
    with _listening(host, port) as listener:
        if not tokens:
            _warn(listener)
        run(
            app,
            listener,
            door=Door(connections),
            name=f"{name} at sigma = {classifier.sigma:g}",
            grace=int(timeout) + GRACE,
        )


def run(app: ASGIApp, listener: socket.socket, *, door: Door, name: str, grace: int) -> None:
    """Serve ``app`` until a signal, and at most ``grace`` seconds longer."""
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO)
    server = Server(
        uvicorn.Config(
            app,
            http=partial(Connection, door=door),  # type: ignore[arg-type]  # called, as a class is
            backlog=AT_ONCE,
            ws="none",
            log_config=None,
            log_level="warning",
            access_log=False,  # the application has its own
            server_header=False,
            timeout_graceful_shutdown=grace,
        )
    )
    server.door = door
    server.ready = f"{name}: http://{_address(listener)}/certify takes pictures, /docs says how"
    for ending in (signal.SIGTERM, signal.SIGINT):
        signal.signal(ending, _end)  # uvicorn raises the signal again, after its own shutdown
    server.run(sockets=[listener])


def _classifier(request: Request) -> Smoothed:
    """Open the classifier, check and compile it, so that no client waits for that."""
    found = sources.classifier(request)
    backend, size = found.backend, found.draws.batch_size
    if not voting.is_batch_invariant(backend, torch.rand(size, *found.shape)):
        sources.note(
            f"{backend.provider} rounds a row by its place in a batch, so a seed may give other "
            "votes where two scores nearly tie"
        )
    found.answer(np.zeros(found.shape, dtype=np.uint8))
    return found


def _name(request: Request) -> str:
    source = request.source
    if isinstance(source, Trained):
        return source.evaluation.run
    return Path(source.name).stem if source.kind == "onnx" else source.name


def _end(number: int, frame: FrameType | None) -> None:
    raise SystemExit(0)


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"--host {host} --port {port}: cannot listen there ({error})") from None


def _warn(listener: socket.socket) -> None:
    """Warn if other machines may connect and no token is required."""
    address = listener.getsockname()[0]
    if not ipaddress.ip_address(address.partition("%")[0]).is_loopback:
        sources.note(
            f"--host {address}: whoever reaches this port has answers computed and reads what is "
            "served; --token-file asks them for a token, a proxy or firewall keeps them out",
            kind="warning",
        )


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def size(text: str, option: str) -> int:
    """Parse ``500k`` or ``10M`` to bytes.

    Raises:
        ConfigError: The text is neither, nor a plain number; names the option.
    """
    found = re.fullmatch(r"([0-9]{1,12})([kM]?)", text)
    if not found:
        raise ConfigError(f"{option}: expected a size such as 500k or 10M, got {text!r}")
    return int(found[1]) * UNITS[found[2]]
