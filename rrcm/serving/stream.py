"""A certification as it happens, as server-sent events: noisy copies, votes and radii.

Guarantee: they are of the draws by which the answer is judged. Drawing stops at the next look of
the rule once the client has left, and keeps its place until then.
"""

import asyncio
import dataclasses
import json
import logging
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import partial
from typing import Any

import numpy as np
from fastapi.responses import StreamingResponse
from starlette.requests import ClientDisconnect

from rrcm.analysis.presentation import embedded, votes
from rrcm.certification.certify import floor
from rrcm.certification.sampling.sampler import Watch
from rrcm.certification.smoothed import Smoothed
from rrcm.certification.votes.counts import ImageVotes
from rrcm.serving.schemas import Reply

ENCODED = partial(embedded.webp, side=512)
HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}  # nginx passes on each event
FAILED = "the classifier failed; the server's log says why"
LOG = logging.getLogger(__name__)

Tell = Callable[[str, dict[str, Any]], None]  # an event and its data


def watch(smoothed: Smoothed, image: np.ndarray, seed: int, tell: Tell) -> Watch:
    """Tell the picture and its first noisy copies with their classes; what tells each look."""
    split, draws = smoothed.split([image]), dataclasses.replace(smoothed.draws, seed=seed)
    header = dataclasses.replace(smoothed, draws=draws).header(split)
    first = {0: votes.COPIES}
    copies = votes.copies(header, split, first, backend=smoothed.backend, encoded=ENCODED)[0]
    tell("picture", {"image": ENCODED(*split.pixels()), "copies": copies})

    def look(drawn: ImageVotes, radius: float) -> None:
        most = votes.most(drawn.counts[-1])
        tell("look", {"n": drawn.draws[-1], "votes": most, "radius": floor(radius)})

    return look


async def response(certified: Callable[[Tell], Coroutine[Any, Any, Reply]]) -> StreamingResponse:
    """What ``certified`` tells, then its reply; an error before the first event is raised."""
    events: asyncio.Queue[bytes] = asyncio.Queue()
    loop, gone = asyncio.get_running_loop(), threading.Event()

    def tell(kind: str, data: dict[str, Any]) -> None:
        if gone.is_set():
            raise ClientDisconnect
        loop.call_soon_threadsafe(events.put_nowait, _event(kind, json.dumps(data)))

    def ended(work: asyncio.Task[Reply]) -> None:
        if not work.cancelled():
            work.exception()  # or asyncio complains where nobody is left to ask for it
        events.put_nowait(b"")

    async def told() -> AsyncIterator[bytes]:
        event = first
        try:
            while event:
                yield event
                event = await events.get()
        finally:
            gone.set()
        if error := work.exception():
            LOG.error("%s", error, exc_info=error)
            yield _event("problem", json.dumps({"detail": FAILED}))
        else:
            yield _event("answer", work.result().model_dump_json())

    work = asyncio.create_task(certified(tell))
    work.add_done_callback(ended)
    try:
        if not (first := await events.get()):
            work.result()  # raises why nothing was told
    except asyncio.CancelledError:
        gone.set()
        work.cancel()
        raise
    return StreamingResponse(told(), media_type="text/event-stream", headers=HEADERS)


def _event(kind: str, data: str) -> bytes:
    return f"event: {kind}\ndata: {data}\n\n".encode()
