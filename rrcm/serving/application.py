"""Certified answers over HTTP: a smoothed classifier as an ASGI application.

Guarantee: an answer is that of `Smoothed.answer` for the picture in the request, with a noise seed
that nobody but the server can predict. It is a function of the pixels and of a secret that each
start draws: asking again gives the same noise. At most ``workers + queue`` pictures arrive,
wait or are computed at a time, each of at most ``bytes`` bytes. Further requests are refused at
once.
"""

import logging
from pathlib import Path
from typing import Any

from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import (
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    Response,
    StreamingResponse,
)
from fastapi_offline import FastAPIOffline
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from rrcm.analysis.presentation import embedded
from rrcm.certification.sampling import store
from rrcm.certification.smoothed import Smoothed
from rrcm.core.errors import DataError, RrcmError
from rrcm.core.schema import listed
from rrcm.serving import bearer, stream, upload
from rrcm.serving.endpoints import Service, Terms
from rrcm.serving.schemas import Health, Problem, Reply

REASONS = {
    401: "The request has no token, or a wrong one",
    403: "The request has a seed, and this server does not let clients choose it",
    408: "The picture did not arrive in time",
    413: "The body or the picture is too large",
    422: "No picture, a damaged one, one of a wrong size for the model, or a wrong parameter",
    500: "The classifier failed",
    503: "Too many requests are waiting, or the time was up before the computation began",
}
PAGE = Path(__file__).with_name("page.html.jinja")
LEFT = 499  # status in the log if the client closed its connection
LOG = logging.getLogger(__name__)


def app(smoothed: Smoothed, *, name: str, terms: Terms) -> FastAPI:
    """The application; its threads live from its startup to its shutdown.

    Where tokens are asked for, there is no ``/docs``.

    Args:
        smoothed: The classifier; its ``fit`` turns pictures into pixels.
        name: The name of the model in answers.
        terms: What requests may ask for, and when.

    Raises:
        ConfigError: The stopping rule certifies nothing before its end; requests have a deadline.
    """
    store.require_any_look(smoothed.draws.stop, key="deadline")
    root_path = f"/{terms.root_path.strip('/')}" if terms.root_path else ""
    service = Service(smoothed, name=name, terms=terms)
    about: dict[str, Any] = {
        "title": "rrcm",
        "summary": "Certified answers of a smoothed image classifier.",
        "version": "1",
        "lifespan": service.life,
        "redoc_url": None,
        "dependencies": [Depends(_only_known_parameters)],
    }
    if terms.tokens:
        api = FastAPI(openapi_url=None, **about)
    else:  # its page of documentation asks no other server for anything
        api = FastAPIOffline(swagger_ui_parameters={"validatorUrl": None}, **about)
    api.add_middleware(_AsMeant, root_path=root_path)
    guarded = [Depends(bearer.guard(terms.tokens))] if terms.tokens else []
    # Starlette declares handlers of any exception, and calls each with its own.
    api.add_exception_handler(RequestValidationError, _invalid)  # type: ignore[arg-type]
    api.add_exception_handler(DataError, lambda _, error: JSONResponse({"detail": str(error)}, 422))
    api.add_exception_handler(ClientDisconnect, lambda *_: Response(status_code=LEFT))
    api.add_exception_handler(RrcmError, _failed)
    api.add_exception_handler(Exception, _failed)  # starlette raises it again, for its traceback
    takes_pictures: dict[str, Any] = {
        "methods": ["POST"],
        "responses": {c: {"model": Problem, "description": why} for c, why in REASONS.items()},
        "openapi_extra": {"requestBody": upload.DESCRIPTION},
        "dependencies": guarded,
    }
    api.add_api_route(
        "/certify",
        service.certify,
        response_model=Reply,
        summary="Classify a picture, or abstain, with a certified radius",
        **takes_pictures,
    )
    api.add_api_route(
        "/watch",
        service.watch,
        response_class=StreamingResponse,
        summary="The same, with the votes as they are drawn",
        **takes_pictures,
    )
    html = embedded.page(PAGE, root=root_path, docs=not terms.tokens)
    page = HTMLResponse(html, headers={"Content-Security-Policy": "frame-ancestors 'none'"})
    api.add_api_route("/", lambda: page, include_in_schema=False)
    api.add_api_route("/health", service.health, response_model=Health, summary="How it is doing")
    api.add_api_route(
        "/model", service.model, summary="What defines an answer", dependencies=guarded
    )
    api.add_api_route(
        "/metrics",
        service.metrics_text,
        response_class=PlainTextResponse,
        summary="What it has done, for Prometheus",
        dependencies=guarded,
    )
    return api


class _AsMeant:
    """Takes HEAD as GET, whose body uvicorn then leaves out, and ``/certify/`` as ``/certify``.

    A proxy may leave ``root_path`` in the paths that it passes on, or take it out.
    """

    def __init__(self, app: ASGIApp, *, root_path: str) -> None:
        self.app, self.root_path = app, root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            method = "GET" if scope["method"] == "HEAD" else scope["method"]
            path = scope["path"].rstrip("/")
            if path in ("", self.root_path):
                path += "/"
            scope = {**scope, "method": method, "path": path, "root_path": self.root_path}
        await self.app(scope, receive, send)


async def _only_known_parameters(request: Request) -> None:
    # Not on a thread of its own: requests would overtake each other on the way to the queue.
    known = [field.alias for field in request.scope["route"].dependant.query_params]
    if unknown := [name for name in request.query_params if name not in known]:
        takes = f"the parameters {listed(known)}" if known else "no parameters"
        raise HTTPException(422, f"{listed(unknown)}: {request.scope['route'].path} takes {takes}")


def _invalid(request: Request, error: RequestValidationError) -> JSONResponse:
    """The answer to an invalid parameter, in the form of every other refusal."""
    first = error.errors()[0]
    return JSONResponse({"detail": f"{first['loc'][-1]}: {first['msg']}"}, status_code=422)


def _failed(request: Request, error: Exception) -> JSONResponse:
    """The answer to an internal error; its details are only in the log."""
    LOG.error("%s", error)
    return JSONResponse({"detail": stream.FAILED}, 500)
