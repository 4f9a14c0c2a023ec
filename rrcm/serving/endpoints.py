"""The endpoints of a server of certified answers, and the terms of requests."""

import asyncio
import dataclasses
import hmac
import secrets
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import numpy as np
from fastapi import FastAPI, HTTPException, Query, Request
from fastapi.responses import Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.requests import ClientDisconnect

from rrcm.certification.smoothed import Smoothed
from rrcm.core.errors import ConfigError
from rrcm.data.splits.pictures import Fit
from rrcm.serving import stream, upload
from rrcm.serving.metrics import Metrics
from rrcm.serving.schemas import Health, Reply

Tokens = Sequence[bytes]
UNITS = "l2 distance between pictures whose pixels are in [0, 1]"
Seed = Annotated[
    int | None,
    Query(ge=0, lt=2**64, description="Of the noise; only where the server lets clients choose."),
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Terms:
    """Terms of requests: ``bytes`` of a body, a ``queue`` of requests beside those in work.

    ``seconds`` after its arrival a waiting request is refused, and one that is being computed is
    answered from the votes so far. ``workers`` requests are computed at a time, on a thread each.
    All requests except for ``/`` and ``/health`` need one of the bearer ``tokens``, if there are
    any. ``reproducible`` lets them choose the seed: a client who knows the seed can make a picture
    whose certificate is false, so this is for trusted clients only. ``root_path`` is where a proxy
    has this server, such as ``/rrcm``.
    """

    workers: int
    bytes: int = 10 * 2**20
    queue: int = 64
    seconds: float = 30.0
    tokens: Tokens = ()
    reproducible: bool = False
    root_path: str = ""

    def __post_init__(self) -> None:
        if self.queue < 0:
            raise ConfigError(f"queue: must be at least 0, got {self.queue}")
        if not 0 < self.seconds < float("inf"):
            raise ConfigError(f"timeout: must be a positive time, got {self.seconds:g} s")


class Service:
    """The endpoints of one smoothed classifier."""

    def __init__(self, smoothed: Smoothed, *, name: str, terms: Terms) -> None:
        """See `rrcm.serving.application.app`."""
        self.smoothed = smoothed
        self.fit = smoothed.fit or Fit(shape=smoothed.shape)
        self.name = name
        self.definition = smoothed.definition()
        self.secret = secrets.token_bytes(32)  # of this process
        self.terms = terms
        self.places = terms.workers + terms.queue
        self.inside = 0  # requests that have a place
        self.computing = 0  # those of them that have a thread
        self.turns = asyncio.Semaphore(terms.workers)  # first in, first out
        self.metrics = Metrics(
            smoothed, name=name, waiting=self.waiting, computing=lambda: self.computing
        )

    @asynccontextmanager
    async def life(self, api: FastAPI) -> AsyncIterator[None]:
        """The lifespan of the application, from startup to shutdown."""
        with ThreadPoolExecutor(self.terms.workers, "rrcm-serving") as self.threads:
            yield

    def waiting(self) -> int:
        """The number of requests whose picture is arriving, or waits for a thread."""
        return self.inside - self.computing

    async def certify(self, request: Request, seed: Seed = None) -> Reply:
        """Certify the picture in the body, with noise of its own: the same for the same pixels."""
        return await self._certified(request, seed)

    async def watch(self, request: Request, seed: Seed = None) -> Response:
        """Certify as `/certify` does, and send events meanwhile (`text/event-stream`).

        `picture`: what the classifier sees, and noisy copies with their classes, as WebP in base64.
        `look`: draws `n`, most votes as pairs of class and number, and the radius certified by
        them; those of all looks hold together. `answer`: that of `/certify`; or `problem`.
        """
        return await stream.response(partial(self._certified, request, seed))

    async def _certified(
        self, request: Request, seed: int | None, tell: stream.Tell | None = None
    ) -> Reply:
        """Read the picture, wait, and certify on a thread, which calls ``tell``."""
        if seed is not None and not self.terms.reproducible:
            raise HTTPException(
                403,
                "seed: who knows the noise beforehand can make a picture whose certificate is "
                "false; the operator may allow it with --reproducible",
            )
        arrival, body = time.monotonic(), b""
        with self._place():
            try:
                async with asyncio.timeout(self.terms.seconds):
                    body = await upload.read(request, most=self.terms.bytes)
                    await self.turns.acquire()
            except TimeoutError:
                raise self._late(has_arrived=bool(body)) from None
            self.computing += 1
            try:
                if await request.is_disconnected():
                    raise ClientDisconnect
                work = partial(self._reply, body, seed, arrival, tell)
                reply = await asyncio.get_running_loop().run_in_executor(self.threads, work)
            finally:
                self.computing -= 1
                self.turns.release()
        self.metrics.answer(reply)
        return reply

    async def health(self) -> Health:
        """The numbers of requests that wait and that are computed."""
        return Health(
            ready=self.inside < self.places, waiting=self.waiting(), computing=self.computing
        )

    async def model(self) -> dict[str, Any]:
        """Everything that defines a certificate except for the picture and the seed."""
        smoothed, draws = self.smoothed, self.smoothed.draws
        used = ("backend", "precision", "noise", "n0", "n", "batch_size", "certificate", "alpha")
        return {name: getattr(draws, name) for name in used} | {
            "model": self.name,
            "weights": smoothed.backend.weights,
            "sigma": smoothed.sigma,
            "units": UNITS,
            "shape": smoothed.shape,
            "pictures": str(self.fit),
            "classes": list(smoothed.backend.classes),
            "provider": smoothed.backend.provider,
            "rule": draws.stop,
            "stopping": self.definition.stopping,
            "reproducible": self.terms.reproducible,
            "max_bytes": self.terms.bytes,
            "timeout": self.terms.seconds,
        }

    async def metrics_text(self) -> Response:
        """The metrics of this server, in the text format of Prometheus."""
        return Response(generate_latest(self.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    @contextmanager
    def _place(self) -> Iterator[None]:
        """Hold one of the places until the block ends, or refuse the request."""
        if self.inside >= self.places:
            raise _busy(f"{self.terms.queue} requests are waiting already")
        self.inside += 1
        try:
            yield
        finally:
            self.inside -= 1

    def _reply(
        self, body: bytes, seed: int | None, arrival: float, tell: stream.Tell | None
    ) -> Reply:
        """Decode and certify, on a thread."""
        self.metrics.waited.observe(time.monotonic() - arrival)
        image, size = upload.pixels(body, self.fit)
        left = arrival + self.terms.seconds - time.monotonic()
        if left <= 0:
            raise self._late(has_arrived=True)
        seed = self._seed(image) if seed is None else seed
        watch = stream.watch(self.smoothed, image, seed, tell) if tell else None
        with self.metrics.drawing.time():
            answer = self.smoothed.answer(image, seed=seed, budget=left, watch=watch)
        certified = dataclasses.asdict(answer) | {"seed": str(answer.seed)}
        if answer.abstained:
            certified |= {"label": None, "name": None}
        return Reply(
            **certified,
            abstained=answer.abstained,
            sigma=self.smoothed.sigma,
            resized_from=None if size == self.fit.shape[:0:-1] else size,
            seconds=round(time.monotonic() - arrival, 6),
            model=self.name,
            weights=self.smoothed.backend.weights,
        )

    def _seed(self, image: np.ndarray) -> int:
        """The seed of a picture, which only this server can compute, and which is always the same.

        So who asks again for the same pixels has the same noise, and cannot choose an answer.
        """
        digest = hmac.digest(self.secret, np.ascontiguousarray(image).tobytes(), "sha256")
        return int.from_bytes(digest[:8], "big")

    def _late(self, *, has_arrived: bool) -> HTTPException:
        within = f"within {self.terms.seconds:g} s"
        if has_arrived:
            return _busy(f"no thread was free {within}")
        return HTTPException(408, f"the picture did not arrive {within}")


def _busy(why: str) -> HTTPException:
    return HTTPException(503, f"{why}; come back later", headers={"Retry-After": "1"})
