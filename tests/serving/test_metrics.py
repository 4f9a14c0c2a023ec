"""The metrics of a server are the counts and times of what it answered."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import builders
import httpx
import numpy as np
import torch
from linear_smoothed import FEW, classifier
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.serving import png
from rrcm.certification.smoothed import Smoothed
from rrcm.serving import application
from rrcm.serving.endpoints import Limits

PICTURE = png(np.array([[200, 40], [90, 160]], dtype=np.uint8))
Samples = dict[tuple[str, ...], float]


class Counting(builders.Linear):
    """Counts rows by itself, and takes its time."""

    rows = 0

    def scores(self, x: torch.Tensor) -> torch.Tensor:
        type(self).rows += len(x)
        time.sleep(0.001)
        return super().scores(x)


def samples(text: str) -> Samples:
    """(name, values of labels) -> value."""
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def ask(what: Callable[..., Awaitable[Any]], *smoothed: Smoothed, **limits: Any) -> Any:
    """What a conversation with several servers in one process gives."""

    async def main() -> Any:
        async with AsyncExitStack() as stack:
            clients = []
            for one in smoothed:
                app = application.app(one, name="linear", limits=Limits(workers=1, **limits))
                await stack.enter_async_context(app.router.lifespan_context(app))
                transport = httpx.ASGITransport(app, raise_app_exceptions=False)
                clients.append(httpx.AsyncClient(transport=transport, base_url="http://a.test"))
                await stack.enter_async_context(clients[-1])
            return await what(*clients)

    return asyncio.run(main())


async def read(found: httpx.AsyncClient) -> Samples:
    response = await found.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=")
    return samples(response.text)


def test_metrics_are_the_sums_of_the_answers():
    async def talk(found: httpx.AsyncClient) -> tuple[list[dict[str, Any]], Samples]:
        replies = [(await found.post("/certify", content=PICTURE)).json() for _ in range(5)]
        await found.post("/certify", content=b"no picture")
        await found.get("/certified/by/nobody")
        await found.get("/else")
        return replies, await read(found)

    Counting.rows = 0
    replies, got = ask(talk, classifier(Counting, sigma=2.0))

    assert got["rrcm_requests_total", "/certify", "200"] == 5
    assert got["rrcm_requests_total", "/certify", "422"] == 1
    assert got["rrcm_requests_total", "other", "404"] == 2
    assert got["rrcm_images_total",] == 5
    assert got["rrcm_abstentions_total",] == sum(reply["abstained"] for reply in replies)
    assert got["rrcm_draws_total",] == sum(reply["draws"] for reply in replies) > 0
    assert got["rrcm_batch_rows_total",] == Counting.rows >= got["rrcm_draws_total",]
    assert Counting.rows % FEW.batch_size == 0
    assert got["rrcm_drawing_seconds_count",] == 5
    assert got["rrcm_queue_seconds_count",] == 6, "one waited and was then no picture"
    drawing = got["rrcm_drawing_seconds_sum",]
    assert Counting.rows / FEW.batch_size * 0.001 <= drawing
    assert drawing <= sum(reply["seconds"] for reply in replies)
    (build,) = [key for key in got if key[0] == "rrcm_build_info"]
    assert {"linear", "0" * 64, "2"} <= {*build} and got[build] == 1


def test_the_queue_is_what_it_is_when_it_is_asked():
    async def talk(found: httpx.AsyncClient) -> tuple[Samples, Samples]:
        inside = [asyncio.create_task(found.post("/certify", content=PICTURE)) for _ in range(3)]
        await asyncio.sleep(0.1)
        busy = await read(found)
        assert [one.status_code for one in await asyncio.gather(*inside)] == [200] * 3
        return busy, await read(found)

    class Slow(builders.Linear):
        def scores(self, x: torch.Tensor) -> torch.Tensor:
            time.sleep(0.03)
            return super().scores(x)

    busy, free = ask(talk, classifier(Slow))
    gauges = ("queue_length", "computing", "held_bytes", "queue_places")

    assert [busy[f"rrcm_{gauge}",] for gauge in gauges] == [2, 1, 3 * len(PICTURE), 64]
    assert [free[f"rrcm_{gauge}",] for gauge in gauges] == [0, 0, 0, 64]
    assert free["rrcm_queue_seconds_sum",] > 0.1, "the second waited for the first"


def test_two_servers_of_a_process_count_for_themselves():
    async def talk(first: httpx.AsyncClient, second: httpx.AsyncClient) -> tuple[Samples, Samples]:
        await first.post("/certify", content=PICTURE)
        return await read(first), await read(second)

    first, second = ask(talk, classifier(), classifier())

    assert first["rrcm_images_total",] == 1 and second["rrcm_images_total",] == 0


def test_prometheus_and_openmetrics_read_them():
    async def talk(found: httpx.AsyncClient) -> httpx.Response:
        accept = {"Accept": "application/openmetrics-text; version=1.0.0"}
        return await found.get("/metrics", headers=accept)

    response = ask(talk, classifier())

    assert response.headers["content-type"].startswith("application/openmetrics-text")
    families = {family.name: family.type for family in open_metrics(response.text)}
    assert families["rrcm_draws"] == "counter" and families["rrcm_build"] == "info"
    assert all(name.startswith("rrcm_") for name in families)
