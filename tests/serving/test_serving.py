"""A server of certified answers: what it says is true, and nothing that is sent can hurt it."""

import asyncio
import dataclasses
import re
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any
from unittest import mock

import builders
import httpx
import numpy as np
import pytest
import torch
from builders import refused
from fastapi.openapi.models import OpenAPI
from hypothesis import given, settings
from hypothesis import strategies as st
from linear_smoothed import FEW, PICTURE, SAME, Slow, ask, classifier, encoded, post
from lookalikes import declared
from PIL import Image
from prometheus_client.parser import text_string_to_metric_families

from rrcm.certification.smoothed import Smoothed
from rrcm.certification.stopping import spending
from rrcm.core.errors import BackendError, ConfigError
from rrcm.data.splits.pictures import Fit
from rrcm.serving import application, schemas
from rrcm.serving.endpoints import Terms

PIXELS = np.array([[[200, 40], [90, 160]]], dtype=np.uint8)


class Gated(builders.Linear):
    """Computes nothing before its door is opened; ``asked`` is set once it was to."""

    def __init__(self, w: Any, b: Any, **how: Any) -> None:
        super().__init__(w, b, **how)
        self.asked, self.door = threading.Event(), threading.Event()

    def scores(self, x: torch.Tensor, z: torch.Tensor | None = None) -> torch.Tensor:
        self.asked.set()
        assert self.door.wait(10)
        return super().scores(x)


def line(response: httpx.Response) -> str:
    """What an error says, which is one line of our own."""
    detail = response.json()["detail"]
    assert isinstance(detail, str) and "\n" not in detail
    schemas.Problem.model_validate(response.json())
    return detail


# What is answered.


def test_an_answer_is_the_classifiers():
    """The bytes say what a picture is, whatever their type."""
    headers = {"Content-Type": "text/html"}

    reply = ask(lambda asking: post(asking, headers=headers), classifier()).json()

    want = classifier().answer(PIXELS, seed=int(reply["seed"]))
    assert {key: reply[key] for key in SAME} == {key: getattr(want, key) for key in SAME}
    assert not reply["abstained"] and reply["radius"] > 0
    assert (reply["model"], reply["weights"], reply["sigma"]) == ("linear", "0" * 64, 0.5)
    assert 0 < reply["seconds"] < 30
    known = ask(lambda asking: post(asking, params={"seed": 7}), classifier(), reproducible=True)
    assert known.json()["seed"] == "7"
    abstained = ask(post, classifier(sigma=10.0)).json()  # no class has half of the votes
    assert [abstained[key] for key in ("label", "name", "radius")] == [None, None, 0]


async def metrics(asking: httpx.AsyncClient) -> dict[tuple[str, ...], float]:
    """(name, values of labels) -> value."""
    response = await asking.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=")
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
    }


def test_every_picture_has_noise_of_its_own_and_metrics_are_the_sums_of_the_answers():
    """Asking again for the same pixels chooses nothing; another start has another secret."""
    others = [encoded(PIXELS[0] + np.uint8(i)) for i in range(8)]
    packed = encoded(np.stack([PIXELS[0]] * 3, axis=-1), compress_level=0)  # the same pixels

    async def talk(asking: httpx.AsyncClient) -> tuple[list[dict[str, Any]], Any]:
        answers = [(await post(asking, other)).json() for other in others]
        await post(asking, b"no picture")
        counted = await metrics(asking)
        for content in (others[0], packed):
            again = (await post(asking, content)).json()
            assert {**again, "seconds": 0} == {**answers[0], "seconds": 0}
        return answers, counted

    answers, sums = ask(talk, classifier(sigma=2.0))

    seeds = [int(reply["seed"]) for reply in answers]
    assert ask(post, classifier(sigma=2.0)).json()["seed"] != answers[0]["seed"]
    assert len({*seeds}) == 8 and len({reply["n_A"] for reply in answers}) > 1
    assert max(seeds) > 2**53, "readers of JSON would round them, were they not text"
    assert sums["rrcm_abstentions_total",] == sum(reply["abstained"] for reply in answers)
    assert sums["rrcm_draws_total",] == sum(reply["draws"] for reply in answers) > 0
    assert sums["rrcm_drawing_seconds_count",] == 8
    assert sums["rrcm_queue_seconds_count",] == 9, "one waited and was then no picture"
    assert 0 < sums["rrcm_drawing_seconds_sum",] <= sum(reply["seconds"] for reply in answers)
    (build,) = [key for key in sums if key[0] == "rrcm_build_info"]
    assert {"linear", "0" * 64, "2"} <= {*build}


@pytest.mark.parametrize("n0", [FEW.n0, 10**6], ids=["draws", "before the first look"])
def test_the_deadline_gives_the_answer_of_what_was_drawn(n0: int):
    near = {"radii": [0.0, 0.28]}  # decided after all 10,000 draws of seed 0
    endless = classifier(Slow, dataclasses.replace(FEW, n=10_000, n0=n0, stopping=near))
    endless.answer(PIXELS, budget=0.3)  # computes the rule's boundaries, as a server's start does
    began = time.monotonic()

    reply = ask(
        lambda asking: post(asking, params={"seed": 0}), endless, seconds=0.5, reproducible=True
    ).json()

    assert reply["stop"] == "budget" and 0.4 < time.monotonic() - began < 5
    assert reply["abstained"] == (n0 > FEW.n0) and reply["abstained"] == (reply["radius"] == 0)
    assert (reply["n"] > 0) != reply["abstained"]


def test_a_picture_of_another_size_says_what_it_was_and_webp_is_one():
    grey = np.full((4, 6), 90, dtype=np.uint8)
    sent = encoded(grey, "WEBP", lossless=True), PICTURE
    scaled = dataclasses.replace(classifier(), fit=Fit(shape=(1, 2, 2), resize="squash", keep=True))

    async def talk(asking: httpx.AsyncClient) -> list[Any]:
        return [(await post(asking, one)).json() for one in sent]

    larger, same = ask(talk, scaled)

    assert larger["resized_from"] == [6, 4] and same["resized_from"] is None
    want = scaled.answer(Image.fromarray(grey), seed=int(larger["seed"]))
    assert (larger["n_A"], larger["radius"]) == (want.n_A, want.radius)


# What is refused.


LIMIT = 1000
FORM = b"--edge\r\nContent-Disposition: form-data; name=image\r\n\r\n" + PICTURE
REFUSED = {
    "empty": (422, {"content": b""}, "an empty body"),
    "another format": (
        422,
        {"content": encoded(PIXELS[0], "GIF")},
        "not a PNG or JPEG or WEBP file",
    ),
    "cut off": (422, {"content": PICTURE[:44]}, "the picture: a damaged picture"),
    "another size": (
        422,
        {"content": encoded(np.zeros((3, 2), dtype=np.uint8))},
        "2 x 3 pixels, but the model takes 2 x 2",
    ),
    "too many pixels": (413, {"content": declared(5_000, 5_000)}, "more than 16,777,216 pixels"),
    "too long": (413, {"content": bytes(LIMIT + 1)}, "longer than 1,000 bytes"),
    "a form": (422, {"content": FORM}, "send its bytes alone"),
    "seed": (403, {"params": {"seed": 1}}, "--reproducible"),
    "seed of letters": (422, {"params": {"seed": "one"}}, "seed: "),
    "seed too large": (422, {"params": {"seed": 2**64}}, "seed: "),
    "unknown parameter": (422, {"params": {"sead": 1}}, "sead: /certify takes the parameters seed"),
}


def test_bad_requests_take_one_line_and_harm_nobody():
    async def talk(asking: httpx.AsyncClient) -> None:
        for status, how, said in REFUSED.values():
            response = await post(asking, **how)
            assert response.status_code == status and status in application.REASONS
            assert said in line(response)
            assert (await post(asking)).status_code == 200

    ask(talk, classifier(), bytes=LIMIT)


def test_a_body_without_a_length_is_counted_as_it_comes():
    sent = 0

    async def content() -> AsyncIterator[bytes]:
        nonlocal sent
        while True:
            sent += 100
            yield bytes(100)

    response = ask(lambda asking: post(asking, content()), classifier(), bytes=1000)

    assert response.status_code == 413 and "longer than 1,000 bytes" in line(response)
    assert sent == 1100
    claimed = {"headers": {"Content-Length": "1001"}}  # refused before any of it is read
    response = ask(lambda asking: post(asking, content(), **claimed), classifier(), bytes=1000)
    assert response.status_code == 413 and sent == 1100


@pytest.mark.parametrize("error", [BackendError("NaN scores"), ArithmeticError("a bug")], ids=str)
def test_a_broken_classifier_is_the_operators_affair(
    error: Exception, caplog: pytest.LogCaptureFixture
):
    class Broken(builders.Linear):
        def scores(self, x: torch.Tensor, z: torch.Tensor | None = None) -> torch.Tensor:
            raise error

    response = ask(post, classifier(Broken))

    assert response.status_code == 500
    assert line(response) == "the classifier failed; the server's log says why"
    assert str(error) in caplog.text


# Who waits.


async def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end
        await asyncio.sleep(0.005)


def test_a_full_line_refuses_at_once_and_serves_all_who_are_in_it():
    gated = classifier(Gated)

    async def talk(asking: httpx.AsyncClient) -> list[httpx.Response]:
        inside = [asyncio.create_task(post(asking)) for _ in range(3)]
        await until(gated.backend.asked.is_set)
        busy = (await asking.get("/health")).json()  # so the loop is not blocked
        gauges = await metrics(asking)
        assert (gauges["rrcm_queue_length",], gauges["rrcm_computing",]) == (2, 1)
        began = time.monotonic()
        late = [await post(asking) for _ in range(3)]
        assert time.monotonic() - began < 5
        gated.backend.door.set()
        served = await asyncio.gather(*inside)
        free = (await asking.get("/health")).json()
        assert busy == {"ready": False, "waiting": 2, "computing": 1}
        assert free == {"ready": True, "waiting": 0, "computing": 0}
        assert [reply.status_code for reply in served] == [200] * 3
        return late

    for response in ask(talk, gated, queue=2):
        assert response.status_code == 503
        assert "2 requests are waiting already" in line(response)
        assert int(response.headers["retry-after"]) >= 1


def test_a_deadline_that_passes_in_the_line_is_said():
    gated = classifier(Gated, dataclasses.replace(FEW, n=10_000))

    async def talk(asking: httpx.AsyncClient) -> tuple[httpx.Response, httpx.Response]:
        first = asyncio.create_task(post(asking))
        await until(gated.backend.asked.is_set)
        began = time.monotonic()
        second = await post(asking)
        assert time.monotonic() - began < 3
        gated.backend.door.set()
        return await first, second

    first, second = ask(talk, gated, seconds=0.3)

    assert first.status_code == 200 and first.json()["stop"] == "budget"
    assert second.status_code == 503 and second.headers["retry-after"] == "1"
    assert "no thread was free within 0.3 s" in line(second)


@settings(deadline=None, max_examples=8)
@given(st.lists(st.sampled_from(["stays", "leaves", "is cancelled"]), max_size=8))
def test_whoever_leaves_the_queue_is_not_computed_and_gives_the_place_back(fates: list[str]):
    """All at once behind a thread that is busy; those who stay are served in their order."""
    gated = classifier(Gated)

    async def send(app: Any, number: int, fate: str = "stays") -> None:
        """A request as a server puts it to the application; its seed is its number."""
        messages = iter([{"type": "http.request", "body": PICTURE, "more_body": False}])

        async def receive() -> dict[str, Any]:
            if message := next(messages, None):
                return message
            if fate != "leaves":
                await asyncio.Event().wait()
            return {"type": "http.disconnect"}

        async def answer(message: dict[str, Any]) -> None:
            pass

        scope = {"type": "http", "http_version": "1.1", "method": "POST", "path": "/certify"}
        scope |= {"query_string": b"seed=%d" % number, "headers": [], "client": ("a.test", 1)}
        await app(scope | {"root_path": ""}, receive, answer)

    async def main() -> None:
        terms = Terms(workers=1, queue=8, reproducible=True)
        app = application.app(gated, name="linear", terms=terms)
        async with app.router.lifespan_context(app):
            first = asyncio.create_task(send(app, 99))
            await until(gated.backend.asked.is_set)
            tasks = [asyncio.create_task(send(app, k, fate)) for k, fate in enumerate(fates)]
            await asyncio.sleep(0.01)
            for task, fate in zip(tasks, fates, strict=True):
                if fate == "is cancelled":
                    task.cancel()
            gated.backend.door.set()
            await asyncio.gather(first, *tasks, return_exceptions=True)
            await send(app, len(fates))

    with mock.patch.object(Smoothed, "answer", autospec=True, side_effect=Smoothed.answer) as asked:
        asyncio.run(main())

    stayed = [k for k, fate in enumerate(fates) if fate == "stays"]
    assert [call.kwargs["seed"] for call in asked.mock_calls] == [99, *stayed, len(fates)]


def test_a_slow_sender_takes_a_place_until_its_time_is_up():
    async def content() -> AsyncIterator[bytes]:
        yield PICTURE[:20]
        await asyncio.sleep(20)

    async def talk(asking: httpx.AsyncClient) -> list[httpx.Response]:
        slow = asyncio.create_task(post(asking, content()))
        await asyncio.sleep(0.05)
        return [await post(asking), await slow, await post(asking)]

    responses = ask(talk, classifier(), queue=0, seconds=0.5)

    assert [response.status_code for response in responses] == [503, 408, 200]
    assert "did not arrive within 0.5 s" in line(responses[1])


# What is served.


def test_what_is_served_is_said_and_documented():
    async def talk(asking: httpx.AsyncClient) -> list[dict[str, Any]]:
        return [(await asking.get(path)).json() for path in ("/model", "/openapi.json")]

    served, api = ask(talk, classifier())

    assert served.keys() >= {
        "weights",
        "pictures",
        "provider",
        "batch_size",
        "certificate",
        "alpha",
    }
    assert served["shape"] == [1, 2, 2] and served["classes"] == ["0", "1", "2"]
    settings = [served[key] for key in ("sigma", "n0", "n", "rule", "reproducible")]
    assert settings == [0.5, 100, 400, "spending", False]
    reached = spending.DEFAULTS | {"radii": [0.0, 0.25, 0.5, 0.75, 1.0]}  # 2.05 sigma
    assert served["stopping"] == reached and "[0, 1]" in served["units"]
    OpenAPI.model_validate(api)
    responses = api["paths"]["/certify"]["post"]["responses"]
    assert {*responses} == {"200", *map(str, application.REASONS)}


def test_pages_need_no_other_server_and_find_their_files_behind_a_proxy():
    async def talk(asking: httpx.AsyncClient) -> list[str]:
        page = await asking.get("/docs")
        loaded = re.findall(r"""(?:src|href|url)[=:] *["']([^"']+)""", page.text)
        assert {(await asking.get(address)).status_code for address in loaded} == {200}
        return loaded

    for root in ("", "/certified"):
        loaded = ask(talk, classifier(), root_path=root)
        assert f"{root}/openapi.json" in loaded and len(loaded) == 4
        assert all(address.startswith(f"{root}/") for address in loaded)


def test_what_cannot_be_served_is_refused():
    fixed = classifier(draws=dataclasses.replace(FEW, stop="none"))
    with refused(ConfigError, "deadline", "'none'"):
        application.app(fixed, name="linear", terms=Terms(workers=1))
    for limit, words in (({"queue": -1}, "queue: must"), ({"seconds": 0.0}, "timeout: must")):
        with refused(ConfigError, words):
            Terms(workers=1, **limit)
