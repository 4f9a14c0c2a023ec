"""The endpoints of a server of certified answers, and the limits of requests."""

import asyncio
import dataclasses
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from typing import Annotated

import numpy as np
from fastapi import FastAPI, HTTPException, Query, Request
from fastapi.responses import Response
from PIL import Image
from starlette.requests import ClientDisconnect

from rrcm.certification.smoothed import Smoothed
from rrcm.certification.votes.counts import ABSTAIN
from rrcm.core.errors import ConfigError, DataError
from rrcm.data import picture_files
from rrcm.data.splits import pictures
from rrcm.data.splits.pictures import Fit
from rrcm.serving import upload
from rrcm.serving.metrics import Metrics
from rrcm.serving.queue import BodyMemory, ClientGone, DeadlinePassed, Full, WorkQueue
from rrcm.serving.schemas import Health, Reply, Served

FORMATS = ("PNG", "JPEG")
TYPES = ("image/png", "image/jpeg", "application/octet-stream")
UNITS = "l2 distance between pictures whose pixels are in [0, 1]"
LEFT = 499  # status in the log if the client closed its connection
NAME = "the picture"  # in errors
PATIENCE = 4  # times the longest body, after which a client is cut off without an answer

Seed = Annotated[
    int | None,
    Query(ge=0, lt=2**64, description="Of the noise; only where the server lets clients choose."),
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Limits of requests: ``bytes`` of a body, ``pixels`` of a picture, a ``queue`` of requests.

    The bodies of all requests, complete or still arriving, take at most ``total`` bytes.
    ``seconds`` after its arrival a waiting request is refused, and one that is being computed is
    answered from the votes so far. ``workers`` requests are computed at a time, on a thread each.
    """

    workers: int
    bytes: int = 10 * 2**20
    total: int = 100 * 2**20
    pixels: int = 2**24
    queue: int = 64
    seconds: float = 30.0

    def __post_init__(self) -> None:
        for name, least in (("workers", 1), ("bytes", 1), ("pixels", 1), ("queue", 0)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name}: must be at least {least}, got {getattr(self, name)}")
        if self.total < self.bytes:
            raise ConfigError(
                f"max-total: must be at least max-bytes, {self.bytes:,}, got {self.total:,}"
            )
        if not 0 < self.seconds < float("inf"):
            raise ConfigError(f"timeout: must be a positive time, got {self.seconds:g} s")


class Service:
    """The endpoints of one smoothed classifier."""

    def __init__(
        self, smoothed: Smoothed, *, name: str, limits: Limits, reproducible: bool
    ) -> None:
        """See `rrcm.serving.application.app`."""
        self.fit = smoothed.fit or Fit(shape=smoothed.shape)
        self.name = name
        self.limits = limits
        self.reproducible = reproducible
        self.answered = 0
        self.line = WorkQueue(workers=limits.workers, queue=limits.queue)
        self.held = BodyMemory(limits.total)
        self.metrics = Metrics(smoothed, name=name, line=self.line, held=self.held)
        self.smoothed = dataclasses.replace(
            smoothed,
            backend=self.metrics.counted(smoothed.backend),
            max_value=pictures.MAX_VALUE,
        )

    @asynccontextmanager
    async def life(self, api: FastAPI) -> AsyncIterator[None]:
        """The lifespan of the application, from startup to shutdown."""
        yield
        self.line.close()

    async def certify(self, request: Request, seed: Seed = None) -> Reply:
        """Certify the picture in the body, with a noise seed of its own."""
        arrival = time.monotonic()
        until = arrival + self.limits.seconds
        self._refuse_early(request, seed)
        try:
            separator = _separator(request)
            self.line.check()
            with self.held.account() as take:
                body = await self._body(request, until, take)
                with self.line.place():  # only now: a slow sender takes no place
                    times = {"arrival": arrival, "placed": time.monotonic()}
                    reply = await self.line.run(
                        partial(self._reply, body, separator, seed, **times),
                        until=until,
                        gone=_gone(request),
                    )
        except Full as full:
            raise HTTPException(
                503,
                f"{full}; come back later",
                headers={"Retry-After": str(full.seconds), "Connection": "close"},
            ) from None
        except DeadlinePassed:
            raise HTTPException(
                503,
                f"no thread was free within {self.limits.seconds:g} s; come back later",
                headers={"Retry-After": "1"},
            ) from None
        except DataError as error:
            raise HTTPException(422, str(error)) from None
        except (ClientGone, ClientDisconnect):
            # FastAPI sends a response as it is, and documents the declared type.
            return Response(status_code=LEFT)  # type: ignore[return-value]
        self.answered += 1
        self.metrics.answer(reply)
        request.scope["rrcm.said"] = (
            f"{reply.name if reply.label is not None else 'abstained'}, radius {reply.radius}, "
            f"n {reply.n}, stop {reply.stop}, seed {reply.seed}"
        )
        return reply

    async def health(self) -> Health:
        """The numbers of requests that wait, are computed, and were answered."""
        line = self.line
        return Health(
            ready=line.inside < line.places,
            waiting=line.waiting(),
            computing=line.working,
            answered=self.answered,
            held=self.held.bytes,
        )

    async def model(self) -> Served:
        """Everything that defines a certificate except for the picture and the seed."""
        smoothed, draws, limits = self.smoothed, self.smoothed.draws, self.limits
        return Served(
            model=self.name,
            weights=smoothed.backend.weights,
            sigma=smoothed.sigma,
            units=UNITS,
            shape=smoothed.shape,
            pictures=str(self.fit),
            classes=list(smoothed.backend.classes),
            backend=draws.backend,
            precision=draws.precision,
            provider=smoothed.backend.provider,
            noise=draws.noise,
            n0=draws.n0,
            n=draws.n,
            batch_size=draws.batch_size,
            rule=draws.stop,
            stopping=smoothed.stopping,
            certificate=draws.certificate,
            alpha=draws.alpha,
            reproducible=self.reproducible,
            max_bytes=limits.bytes,
            max_total=limits.total,
            max_pixels=limits.pixels,
            timeout=limits.seconds,
            queue=limits.queue,
            workers=limits.workers,
        )

    async def metrics_text(self, request: Request) -> Response:
        """The metrics of this server, in the text format of Prometheus or OpenMetrics."""
        text, kind = self.metrics.text(request.headers.get("accept", ""))
        return Response(text, headers={"Content-Type": kind})

    def _refuse_early(self, request: Request, seed: int | None) -> None:
        """Refuse a request by its header alone."""
        kind = _kind(request)
        if kind not in (*TYPES, upload.TYPE):
            raise HTTPException(
                415,
                f"Content-Type {kind!r}: send the bytes of the picture alone, as "
                f"{', '.join(TYPES[:-1])} or {TYPES[-1]}, or a form, as {upload.TYPE}",
            )
        if seed is not None and not self.reproducible:
            raise HTTPException(
                403,
                "seed: who knows the noise beforehand can make a picture whose certificate is "
                "false; the operator may allow it with --reproducible",
            )

    async def _body(self, request: Request, until: float, take: Callable[[int], None]) -> bytes:
        """The body; one that is too long is discarded as it arrives.

        Each part is counted before it is kept; where it does not fit, `Full` is raised.
        """
        most, body, length = self.limits.bytes, bytearray(), 0
        too_long = HTTPException(
            413, f"the body is longer than {most:,} bytes", headers={"Connection": "close"}
        )
        declared = request.headers.get("content-length", "")
        if declared.isdecimal() and int(declared) > most and "expect" in request.headers:
            raise too_long  # the client has not sent the body yet, and will not
        try:
            async with asyncio.timeout(until - time.monotonic()):
                async for chunk in request.stream():
                    length += len(chunk)
                    if length <= most:
                        take(len(chunk))
                        body += chunk
                    elif length > PATIENCE * most:
                        raise too_long
                    else:
                        body.clear()
        except TimeoutError:
            raise HTTPException(
                408,
                f"the picture did not arrive within {self.limits.seconds:g} s",
                headers={"Connection": "close"},
            ) from None
        if length > most:
            raise too_long
        if not body:
            raise HTTPException(422, "an empty body; send the bytes of a picture")
        return bytes(body)

    def _reply(
        self, body: bytes, separator: bytes, seed: int | None, *, arrival: float, placed: float
    ) -> Reply:
        """Decode and certify, on a thread of the queue; a form has a ``separator``."""
        self.metrics.waited.observe(time.monotonic() - placed)
        image = self._pixels(upload.picture(body, separator) if separator else body)
        left = arrival + self.limits.seconds - time.monotonic()
        if left <= 0:
            raise DeadlinePassed
        seed = secrets.randbits(64) if seed is None else seed
        with self.metrics.drawing.time():
            got = self.smoothed.answer(image, seed=seed, budget=left)
        abstained = got.label == ABSTAIN
        return Reply(
            abstained=abstained,
            label=None if abstained else got.label,
            name=None if abstained else got.name,
            radius=got.radius,
            p_A=got.p_A,
            n_A=got.n_A,
            n=got.n,
            draws=got.draws,
            stop=got.stop,
            sigma=self.smoothed.sigma,
            alpha=got.alpha,
            seed=str(got.seed),
            seconds=round(time.monotonic() - arrival, 6),
            model=self.name,
            weights=self.smoothed.backend.weights,
        )

    def _pixels(self, body: bytes) -> np.ndarray:
        """The picture as pixels for the classifier; too large ones are refused before decoding."""
        try:
            with Image.open(BytesIO(body), formats=FORMATS) as picture:  # reads its head alone
                self._refuse_size(picture)
        except (Image.DecompressionBombError, Image.DecompressionBombWarning):
            raise self._too_large() from None
        except pictures.BROKEN:
            raise DataError(f"{NAME}: not a {' or '.join(FORMATS)} file") from None
        return picture_files.read(BytesIO(body), self.fit, name=NAME)

    def _refuse_size(self, picture: Image.Image) -> None:
        """Refuse a picture that has too many pixels, now or once it is scaled, or another size."""
        (wide, high), (_, height, width) = picture.size, self.fit.shape
        if wide * high > self.limits.pixels:
            raise self._too_large()
        if self.fit.resize == "exact" and {wide, high} != {width, height}:  # nor turned
            pictures.fitted(picture, self.fit, name=NAME)  # raises the error
        if self.fit.resize == "crop":  # a line of few pixels is scaled to very many
            scale = max(width / wide, height / high, width / high, height / wide) / self.fit.ratio
            if wide * high * scale**2 > self.limits.pixels:
                raise self._too_large(" once it is scaled")

    def _too_large(self, scaled: str = "") -> HTTPException:
        return HTTPException(413, f"{NAME}: more than {self.limits.pixels:,} pixels{scaled}")


def _kind(request: Request) -> str:
    return request.headers.get("content-type", TYPES[-1]).partition(";")[0].strip().lower()


def _separator(request: Request) -> bytes:
    """What separates the parts of a form; nothing where the body is the picture itself."""
    is_form = _kind(request) == upload.TYPE
    return upload.boundary(request.headers["content-type"]) if is_form else b""


async def _gone(request: Request) -> None:
    """Wait until the client closes its connection; the body must have been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
