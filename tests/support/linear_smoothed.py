"""A smoothed linear classifier of 2 x 2 pixels, a server of it, and picture files to send."""

import asyncio
import dataclasses
import io
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import builders
import httpx
import numpy as np
import torch
from PIL import Image

from rrcm.certification.smoothed import Smoothed
from rrcm.config.certification import Sampling
from rrcm.config.defaults import DRAWS
from rrcm.serving import application
from rrcm.serving.endpoints import Terms

SHAPE = (1, 2, 2)
SAME = ("label", "name", "radius", "p_A", "n_A", "n", "draws", "stop", "alpha")  # as offline
FEW = dataclasses.replace(DRAWS, n=400, batch_size=32)


class Slow(builders.Linear):
    """Takes its time for each batch."""

    def scores(self, x: torch.Tensor, z: torch.Tensor | None = None) -> torch.Tensor:
        time.sleep(0.01)
        return super().scores(x)


def classifier(
    kind: type[builders.Linear] = builders.Linear, draws: Sampling = FEW, sigma: float = 0.5
) -> Smoothed:
    return Smoothed(builders.linear(sigma=sigma, kind=kind), shape=SHAPE, draws=draws)


def encoded(pixels: np.ndarray, kind: str = "PNG", **options: Any) -> bytes:
    """Pixels, uint8 [H, W] or [H, W, C], as a picture file."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind, **options)
    return file.getvalue()


PICTURE = encoded(np.array([[200, 40], [90, 160]], dtype=np.uint8))


@asynccontextmanager
async def client(smoothed: Smoothed, **terms: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a server in this process, of one worker; checks that the server is idle after."""
    app = application.app(smoothed, name="linear", terms=Terms(workers=1, **terms))
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with app.router.lifespan_context(app):
        async with httpx.AsyncClient(transport=transport, base_url="http://a.test") as asking:
            yield asking
            health = (await asking.get("/health")).json()
            assert (health["waiting"], health["computing"]) == (0, 0), "a place was not given back"


def ask(
    talk: Callable[[httpx.AsyncClient], Awaitable[Any]], smoothed: Smoothed, **options: Any
) -> Any:
    """The result of a conversation with a server."""

    async def main() -> Any:
        async with client(smoothed, **options) as asking:
            return await talk(asking)

    return asyncio.run(main())


def post(
    asking: httpx.AsyncClient, content: Any = PICTURE, **more: Any
) -> Awaitable[httpx.Response]:
    return asking.post(
        "/certify", content=content, **({"headers": {"Content-Type": "image/png"}} | more)
    )
