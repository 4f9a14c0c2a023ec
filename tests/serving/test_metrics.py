"""The metrics of a server are the counts and times of what it answered."""

import asyncio
from typing import Any

import httpx
from linear_smoothed import Slow, ask, classifier, post
from prometheus_client.parser import text_string_to_metric_families

Samples = dict[tuple[str, ...], float]


async def read(client: httpx.AsyncClient) -> Samples:
    """(name, values of labels) -> value."""
    response = await client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=")
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
    }


def test_metrics_are_the_sums_of_the_answers():
    async def talk(client: httpx.AsyncClient) -> tuple[list[dict[str, Any]], Samples]:
        replies = [(await post(client)).json() for _ in range(5)]
        await post(client, b"no picture")
        await client.get("/certified/by/nobody")
        await client.get("/else")
        return replies, await read(client)

    replies, metrics = ask(talk, classifier(Slow, sigma=2.0))

    assert metrics["rrcm_requests_total", "/certify", "200"] == 5
    assert metrics["rrcm_requests_total", "/certify", "422"] == 1
    assert metrics["rrcm_requests_total", "other", "404"] == 2
    assert metrics["rrcm_abstentions_total",] == sum(reply["abstained"] for reply in replies)
    assert metrics["rrcm_draws_total",] == sum(reply["draws"] for reply in replies) > 0
    assert metrics["rrcm_drawing_seconds_count",] == 5
    assert metrics["rrcm_queue_seconds_count",] == 6, "one waited and was then no picture"
    assert 0 < metrics["rrcm_drawing_seconds_sum",] <= sum(reply["seconds"] for reply in replies)
    (build,) = [key for key in metrics if key[0] == "rrcm_build_info"]
    assert {"linear", "0" * 64, "2"} <= {*build}


def test_gauges_are_read_when_metrics_are():
    async def talk(client: httpx.AsyncClient) -> tuple[Samples, Samples]:
        inside = [asyncio.create_task(post(client)) for _ in range(3)]
        await asyncio.sleep(0.02)
        busy = await read(client)
        assert [one.status_code for one in await asyncio.gather(*inside)] == [200] * 3
        return busy, await read(client)

    busy, free = ask(talk, classifier(Slow))
    gauges = ("queue_length", "computing")

    assert [busy[f"rrcm_{gauge}",] for gauge in gauges] == [2, 1]
    assert [free[f"rrcm_{gauge}",] for gauge in gauges] == [0, 0]
    assert free["rrcm_queue_seconds_sum",] > 0.01, "the second waited for the first"
