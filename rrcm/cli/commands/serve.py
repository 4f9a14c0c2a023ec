"""``rrcm serve``: serves certified answers over HTTP from this process, until a signal ends it."""

import asyncio
import errno
import ipaddress
import logging
import math
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import uvicorn
from starlette.types import ASGIApp

from rrcm.certification.sampling import drawing
from rrcm.certification.smoothed import Smoothed
from rrcm.certification.votes import reach
from rrcm.cli.classifiers import note
from rrcm.cli.requests import Request
from rrcm.serving import application, bearer
from rrcm.serving.endpoints import Terms
from rrcm.serving.listener import listen

HEADER = 16 * 2**10  # bytes of a request's header
BACKLOG = 64  # connections that asyncio accepts before it handles one
EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)  # asyncio tries again
REMIND = 60  # seconds until the log says so again
GRACE = 5  # seconds that a connection may take to close after the last answer
LOG = logging.getLogger(__name__)


def serve(
    request: Request,
    *,
    host: str,
    port: int,
    connections: int,
    token_file: Path | None,
    **terms: Any,
) -> None:
    """Serve a classifier until SIGTERM or Ctrl-C; accepted requests are answered first.

    Port 0 takes a free one. The address is printed once connections are accepted there. Requests
    are answered on ``terms``, those of `Terms`.

    Raises:
        RrcmError: The classifier cannot be served, a limit is not valid, or the address is not
            available.
    """
    tokens = () if token_file is None else bearer.read(token_file)
    on = Terms(workers=drawing.workers(), tokens=tokens, **terms)
    classifier, name = _classifier(request.answering()), request.source.name
    app = application.app(classifier, name=name, terms=on)
    with listen(host, port) as listener:
        if not tokens:
            _warn(listener)
        print(
            f"{name} at sigma = {classifier.sigma:g}: http://{_address(listener)}/ takes pictures"
            f"{'' if tokens else ', /docs says how programs send them'}",
            flush=True,
        )
        run(app, listener, connections=connections, grace=int(on.seconds) + GRACE)


def run(app: ASGIApp, listener: socket.socket, *, connections: int, grace: int) -> None:
    """Serve ``app`` until a signal, and at most ``grace`` seconds longer.

    A request over more than ``connections`` connections is answered 503.
    """
    config = uvicorn.Config(
        app,
        http="h11",  # httptools has no limit of a header
        h11_max_incomplete_event_size=HEADER,
        limit_concurrency=connections + 1,  # uvicorn's is the first number that is refused
        backlog=BACKLOG,
        ws="none",
        log_config=None,
        server_header=False,
        timeout_graceful_shutdown=grace,
    )
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO)
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)  # no lines of its own start
    for ending in (signal.SIGTERM, signal.SIGINT):  # uvicorn raises it again after its shutdown
        signal.signal(ending, lambda *_: sys.exit())
    asyncio.run(_patient(uvicorn.Server(config), listener))


async def _patient(server: uvicorn.Server, listener: socket.socket) -> None:
    """Serve, with one line in the log where asyncio has a traceback for each connection it refuses.

    It asks for a connection `BACKLOG` times a second while there are no file descriptors.
    """
    loop, said = asyncio.get_running_loop(), -math.inf

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        nonlocal said
        error = context.get("exception")
        if not isinstance(error, OSError) or error.errno not in EXHAUSTED:
            loop.default_exception_handler(context)
        elif loop.time() - said > REMIND:
            said = loop.time()
            LOG.warning("%s: new connections wait until others close (`ulimit -n`)", error.strerror)

    loop.set_exception_handler(handle)
    await server.serve(sockets=[listener])


def _classifier(request: Request) -> Smoothed:
    """Open the classifier, check and compile it, so that no client waits for that."""
    smoothed = request.source.classifier(request.sample)
    header = smoothed.definition()
    for line in reach.beyond(header, header.stopping.get("radii", [])):
        note(line)
    x = torch.rand(smoothed.draws.batch_size, *smoothed.shape)
    drawing.is_batch_invariant(smoothed.backend, x)
    smoothed.answer(np.zeros(smoothed.shape, dtype=np.uint8))
    return smoothed


def _warn(listener: socket.socket) -> None:
    """Warn if other machines may connect and no token is required."""
    address = listener.getsockname()[0]
    if not ipaddress.ip_address(address.partition("%")[0]).is_loopback:
        note(
            f"--host {address}: whoever reaches this port has answers computed and reads what is "
            "served; --token-file asks them for a token, a proxy or firewall keeps them out",
            kind="warning",
        )


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
