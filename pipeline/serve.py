"""``rrcm serve``: certified answers over HTTP, in this process, until a signal ends it."""

import logging
import re
import signal
import socket
from pathlib import Path
from types import FrameType

import numpy as np
import torch
import uvicorn

from pipeline import sampling, sources
from pipeline.requests import Request, Trained
from rrcm import voters
from rrcm.errors import ConfigError
from rrcm.serving import application
from rrcm.serving.endpoints import Limits
from rrcm.smoothed import Smoothed

UNITS = {"": 1, "k": 2**10, "M": 2**20}
GRACE = 5  # seconds that a connection may take to close, once all is answered


class Server(uvicorn.Server):
    """Says so when it is ready."""

    ready = ""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn's."""
        await super().startup(sockets)
        print(self.ready, flush=True)


def serve(
    request: Request,
    *,
    host: str,
    port: int,
    timeout: float,
    queue: int,
    max_bytes: str,
    reproducible: bool,
) -> None:
    """Serve a classifier until SIGTERM or Ctrl-C; what was let in before is answered then.

    Port 0 takes a free one. The address is printed when pictures may come.

    Raises:
        RrcmError: The classifier cannot be served, a limit makes no sense, or the address cannot
            be had.
    """
    limits = Limits(workers=sampling.workers(), bytes=size(max_bytes), queue=queue, seconds=timeout)
    classifier, name = _classifier(request.answering()), _name(request)
    app = application.app(classifier, name=name, limits=limits, reproducible=reproducible)
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO)
    with _listening(host, port) as listener:
        server = Server(
            uvicorn.Config(
                app,
                http="h11",
                ws="none",
                log_config=None,
                log_level="warning",
                access_log=False,  # the application has its own
                server_header=False,
                timeout_graceful_shutdown=int(timeout) + GRACE,
            )
        )
        server.ready = (
            f"{name} at sigma = {classifier.sigma:g}: http://{_address(listener)}/certify takes "
            "pictures, /docs says how"
        )
        for ending in (signal.SIGTERM, signal.SIGINT):
            signal.signal(ending, _end)  # which uvicorn raises once more, after its own shutdown
        server.run(sockets=[listener])


def _classifier(request: Request) -> Smoothed:
    """Tried, and compiled, so that no client waits for that."""
    found = sources.classifier(request)
    backend, size = found.backend, found.draws.batch_size
    if not voters.rows_are_alone(backend, torch.rand(size, *found.shape)):
        sources.note(
            f"{backend.provider} rounds a row by its place in a batch, so a seed may give other "
            "votes where two scores nearly tie"
        )
    found.certify(np.zeros(found.shape, dtype=np.uint8))
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


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def size(text: str) -> int:
    """``500k`` or ``10M`` in bytes.

    Raises:
        ConfigError: It is neither, nor a plain number.
    """
    found = re.fullmatch(r"(\d+)([kM]?)", text)
    if not found:
        raise ConfigError(f"--max-bytes: expected a size such as 500k or 10M, got {text!r}")
    return int(found[1]) * UNITS[found[2]]
