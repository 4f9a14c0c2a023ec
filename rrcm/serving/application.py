"""Certified answers over HTTP: a smoothed classifier as an ASGI application.

Guarantee: an answer is `Smoothed.certify`'s for the picture that was sent, under noise of a seed
that is drawn for the request and that nobody could foresee. At most ``workers + queue`` pictures
wait or are computed at a time, each at most ``bytes`` long, and all that is there of them and of
others that are being sent is at most ``total`` bytes; whoever comes then is refused at once.
"""

import logging
import time
from urllib.parse import quote

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rrcm.errors import ConfigError, RrcmError
from rrcm.serving.endpoints import FORMATS, TYPES, Limits, Service
from rrcm.serving.replies import Health, Problem, Reply, Served
from rrcm.serving.token import Guard
from rrcm.smoothed import Smoothed

REASONS = {
    401: "A token is asked for, and the request has none or another one",
    403: "A seed was asked for, and this server does not let clients choose it",
    408: "The picture did not arrive in time",
    413: "The body or the picture is too large",
    415: "The body is declared to be something else than a picture",
    422: "No picture, a damaged one, one that the model does not take, or a seed that is none",
    500: "The classifier failed",
    503: "Too many or too much is waiting, or the time was up before the computation began",
}
LOG = logging.getLogger(__name__)


def app(
    smoothed: Smoothed,
    *,
    name: str,
    limits: Limits,
    reproducible: bool = False,
    token: bytes | None = None,
) -> FastAPI:
    """The application; its threads live from its startup to its shutdown.

    Args:
        smoothed: What to serve; its ``fit`` says how pictures become pixels.
        name: What answers call it.
        limits: What it takes.
        reproducible: Whether requests may choose the seed. Who knows the seed can make a picture
            whose certificate is false, so only for clients who are trusted.
        token: What requests must bear, but those about its health; nothing.

    Raises:
        ConfigError: The stopping rule certifies nothing before its end, and requests have one.
    """
    if smoothed.draws.stop not in ("grid", "anytime"):
        raise ConfigError(
            f"rule {smoothed.draws.stop!r} certifies nothing before its end, and an answer may not "
            "take that long; use grid or anytime"
        )
    service = Service(smoothed, name=name, limits=limits, reproducible=reproducible)
    api = FastAPI(
        title="rrcm",
        summary="Certified answers of a smoothed image classifier.",
        version="1",
        lifespan=service.life,
        redoc_url=None,
    )
    if token is not None:
        api.add_middleware(Guard, token=token)
    api.add_middleware(Log)  # around the other
    api.add_exception_handler(RequestValidationError, _invalid)
    api.add_exception_handler(RrcmError, _failed)
    api.add_exception_handler(Exception, _failed)  # which is raised on, for its traceback
    binary = {"schema": {"type": "string", "format": "binary"}}
    api.add_api_route(
        "/certify",
        service.certify,
        methods=["POST"],
        response_model=Reply,
        summary="Classify a picture, or abstain, with a certified radius",
        responses={code: {"model": Problem, "description": why} for code, why in REASONS.items()},
        openapi_extra={
            "requestBody": {
                "required": True,
                "description": f"The bytes of a {' or '.join(FORMATS)} file.",
                "content": dict.fromkeys(TYPES, binary),
            }
        },
    )
    api.add_api_route("/health", service.health, response_model=Health, summary="How it is doing")
    api.add_api_route("/model", service.model, response_model=Served, summary="What is served")
    return api


class Log:
    """A line for each request: who, what, the status, how long, and what was answered.

    Of a picture it has nothing. Whatever a client chose is quoted, so that it takes one line.
    """

    def __init__(self, app: ASGIApp) -> None:
        """Around ``app``."""
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and say what came of it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status = time.monotonic(), 500

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, noted)
        finally:
            client, said = scope.get("client"), scope.get("rrcm.said")
            LOG.info(
                "%s %s %s %d %.3f s%s",
                client[0] if client else "-",
                scope["method"],
                quote(scope["path"]),
                status,
                time.monotonic() - began,
                f" {said}" if said else "",
            )


def _invalid(request: Request, error: RequestValidationError) -> JSONResponse:
    """A parameter that is none, in the form of every other refusal."""
    found = error.errors()[0]
    return JSONResponse({"detail": f"{found['loc'][-1]}: {found['msg']}"}, status_code=422)


def _failed(request: Request, error: Exception) -> JSONResponse:
    """Something of ours is broken: said in full to the operator only."""
    LOG.error("%s", error)
    return JSONResponse({"detail": "the classifier failed; the server's log says why"}, 500)
