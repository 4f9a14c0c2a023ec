"""Certified answers over HTTP: a smoothed classifier as an ASGI application.

Guarantee: an answer is that of `Smoothed.certify` for the picture in the request, with a noise seed
that is drawn for the request and cannot be predicted. At most ``workers + queue`` pictures wait or
are computed at a time, each of at most ``bytes`` bytes; with bodies that are still arriving they
take at most ``total`` bytes. Further requests are refused at once.
"""

import logging
import time
from urllib.parse import quote

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rrcm.certification.smoothed import Smoothed
from rrcm.core.errors import ConfigError, RrcmError
from rrcm.serving.endpoints import FORMATS, TYPES, Limits, Service
from rrcm.serving.schemas import Health, Problem, Reply, Served
from rrcm.serving.token import Guard

REASONS = {
    401: "The request has no token, or a wrong one",
    403: "The request has a seed, and this server does not let clients choose it",
    408: "The picture did not arrive in time",
    413: "The body or the picture is too large",
    415: "The content type of the body is not that of a picture",
    422: "No picture, a damaged one, one of a wrong size for the model, or an invalid seed",
    500: "The classifier failed",
    503: "Too many requests or bytes are waiting, or the time was up before the computation began",
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
        smoothed: The classifier; its ``fit`` turns pictures into pixels.
        name: The name of the model in answers.
        limits: Limits of requests.
        reproducible: Whether requests may choose the seed. A client who knows the seed can make a
            picture whose certificate is false, so this is for trusted clients only.
        token: The bearer token of all requests except for ``/health``; None requires no token.

    Raises:
        ConfigError: The stopping rule certifies nothing before its end; requests have a deadline.
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
    api.add_middleware(Log)  # outside of the other middleware
    # Starlette declares handlers of any exception, and calls each with its own.
    api.add_exception_handler(RequestValidationError, _invalid)  # type: ignore[arg-type]
    api.add_exception_handler(RrcmError, _failed)
    api.add_exception_handler(Exception, _failed)  # starlette raises it again, for its traceback
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
    """Logs one line per request: client, method, path, status, seconds and answer.

    Nothing of the picture is logged. Text from a client is quoted, so that it stays on one line.
    """

    def __init__(self, app: ASGIApp) -> None:
        """Wrap ``app``."""
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and log its result."""
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
    """The answer to an invalid parameter, in the form of every other refusal."""
    found = error.errors()[0]
    return JSONResponse({"detail": f"{found['loc'][-1]}: {found['msg']}"}, status_code=422)


def _failed(request: Request, error: Exception) -> JSONResponse:
    """The answer to an internal error; its details are only in the log."""
    LOG.error("%s", error)
    return JSONResponse({"detail": "the classifier failed; the server's log says why"}, 500)
