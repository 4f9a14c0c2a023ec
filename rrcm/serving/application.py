"""Certified answers over HTTP: a smoothed classifier as an ASGI application.

Guarantee: an answer is that of `Smoothed.certify` for the picture in the request, with a noise seed
that is drawn for the request and cannot be predicted. At most ``workers + queue`` pictures wait or
are computed at a time, each of at most ``bytes`` bytes; with bodies that are still arriving they
take at most ``total`` bytes. Further requests are refused at once.
"""

import logging
import time
from collections.abc import Sequence
from urllib.parse import quote

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rrcm.certification.sampling import procedure
from rrcm.certification.smoothed import Smoothed
from rrcm.core.errors import RrcmError
from rrcm.serving import upload
from rrcm.serving.bearer import Guard
from rrcm.serving.endpoints import FORMATS, TYPES, Limits, Service
from rrcm.serving.metrics import Metrics
from rrcm.serving.schemas import Health, Problem, Reply, Served

REASONS = {
    401: "The request has no token, or a wrong one",
    403: "The request has a seed, and this server does not let clients choose it",
    408: "The picture did not arrive in time",
    413: "The body or the picture is too large",
    415: "The content type of the body is not that of a picture or a form",
    422: "No picture, a damaged one, one of a wrong size for the model, a form with other fields "
    "than one image, or an invalid seed",
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
    tokens: Sequence[bytes] = (),
) -> FastAPI:
    """The application; its threads live from its startup to its shutdown.

    Args:
        smoothed: The classifier; its ``fit`` turns pictures into pixels.
        name: The name of the model in answers.
        limits: Limits of requests.
        reproducible: Whether requests may choose the seed. A client who knows the seed can make a
            picture whose certificate is false, so this is for trusted clients only.
        tokens: All requests except for ``/health`` need one of these bearer tokens; none are
            required if there are none.

    Raises:
        ConfigError: The stopping rule certifies nothing before its end; requests have a deadline.
    """
    procedure.require_any_look(smoothed.draws.stop, key="deadline")
    service = Service(smoothed, name=name, limits=limits, reproducible=reproducible)
    api = FastAPI(
        title="rrcm",
        summary="Certified answers of a smoothed image classifier.",
        version="1",
        lifespan=service.life,
        redoc_url=None,
    )
    if tokens:
        api.add_middleware(Guard, tokens=tokens)
    api.add_middleware(Log, metrics=service.metrics)  # outside of the other middleware
    # Starlette declares handlers of any exception, and calls each with its own.
    api.add_exception_handler(RequestValidationError, _invalid)  # type: ignore[arg-type]
    api.add_exception_handler(RrcmError, _failed)
    api.add_exception_handler(Exception, _failed)  # starlette raises it again, for its traceback
    binary = {"schema": {"type": "string", "format": "binary"}}
    form = {
        "type": "object",
        "required": [upload.FIELD],
        "properties": {upload.FIELD: binary["schema"]},
        "additionalProperties": False,
    }
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
                "description": f"The bytes of a {' or '.join(FORMATS)} file, alone or in a form.",
                "content": dict.fromkeys(TYPES, binary) | {upload.TYPE: {"schema": form}},
            }
        },
    )
    api.add_api_route("/health", service.health, response_model=Health, summary="How it is doing")
    api.add_api_route("/model", service.model, response_model=Served, summary="What is served")
    api.add_api_route(
        "/metrics",
        service.metrics_text,
        response_class=PlainTextResponse,
        summary="What it has done, for Prometheus",
    )
    return api


class Log:
    """Logs one line per request: client, method, path, status, seconds and answer; counts it.

    Nothing of the picture is logged. Text from a client is quoted, so that it stays on one line.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        """Wrap ``app``."""
        self.app = app
        self.metrics = metrics

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
            self.metrics.request(scope["path"], status)
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
