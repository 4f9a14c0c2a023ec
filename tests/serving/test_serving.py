"""A server of certified answers: what it says is true, and nothing that is sent can hurt it."""

import asyncio
import dataclasses
import io
import logging
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import builders
import httpx
import numpy as np
import pytest
import torch
from builders import refused
from fastapi.openapi.models import OpenAPI
from helpers import few
from hypothesis import given
from hypothesis import strategies as st
from linear_smoothed import FEW, SHAPE, classifier
from PIL import Image
from workspace import RUN, Workspace

from benchmarks import serving as loads
from benchmarks.serving import bomb, png
from rrcm.certification import certify
from rrcm.certification.certificates import cohen
from rrcm.certification.smoothed import Smoothed
from rrcm.certification.votes.counts import Claim
from rrcm.certification.votes.sequential import look_schedule
from rrcm.cli.commands import serve
from rrcm.config.defaults import STOPPING
from rrcm.core import registry
from rrcm.core.errors import ConfigError
from rrcm.data.splits.pictures import Fit
from rrcm.serving import application, schemas
from rrcm.serving.endpoints import PATIENCE, Limits

PIXELS = np.array([[[200, 40], [90, 160]]], dtype=np.uint8)
PICTURE = png(PIXELS[0])
PNG = {"Content-Type": "image/png"}
MANY = dataclasses.replace(FEW, n=10**6)


class Slow(builders.Linear):
    """Takes its time for each batch."""

    def scores(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(0.005)
        return super().scores(x)


class Gated(builders.Linear):
    """Computes nothing before its door is opened; ``asked`` is set once it was to."""

    def __init__(self, w: Any, b: Any, **how: Any) -> None:
        super().__init__(w, b, **how)
        self.asked, self.door = threading.Event(), threading.Event()

    def scores(self, x: torch.Tensor) -> torch.Tensor:
        self.asked.set()
        assert self.door.wait(10)
        return super().scores(x)


class Nan(builders.Linear):
    """Its scores are none."""

    def scores(self, x: torch.Tensor) -> torch.Tensor:
        return super().scores(x) * torch.nan


class Bug(builders.Linear):
    """It raises what nobody foresaw."""

    def scores(self, x: torch.Tensor) -> torch.Tensor:
        raise ArithmeticError("not an errand")


@asynccontextmanager
async def client(
    smoothed: Smoothed, *, reproducible: bool = False, **limits: Any
) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a server in this process, of one worker; checks that the server is idle after."""
    app = application.app(
        smoothed, name="linear", limits=Limits(workers=1, **limits), reproducible=reproducible
    )
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with app.router.lifespan_context(app):
        async with httpx.AsyncClient(transport=transport, base_url="http://a.test") as found:
            yield found
            health = (await found.get("/health")).json()
            left = (health["waiting"], health["computing"], health["held"])
            assert left == (0, 0, 0), "a place or its bytes were not given back"


def ask(
    what: Callable[[httpx.AsyncClient], Awaitable[Any]], smoothed: Smoothed, **options: Any
) -> Any:
    """What a conversation with a server gives."""

    async def main() -> Any:
        async with client(smoothed, **options) as found:
            return await what(found)

    return asyncio.run(main())


def post(
    found: httpx.AsyncClient, content: Any = PICTURE, **more: Any
) -> Awaitable[httpx.Response]:
    return found.post("/certify", content=content, **({"headers": PNG} | more))


async def times(count: int, found: httpx.AsyncClient, **more: Any) -> list[dict[str, Any]]:
    return [(await post(found, **more)).json() for _ in range(count)]


def line(response: httpx.Response) -> str:
    """What an error says, which is one line of our own."""
    detail = response.json()["detail"]
    assert isinstance(detail, str) and "\n" not in detail
    schemas.Problem.model_validate(response.json())
    return detail


# What is answered.


@pytest.mark.parametrize("kind", ["image/png", "image/jpeg", "application/octet-stream", None])
def test_an_answer_is_the_classifiers(kind: str | None):
    """The bytes say what a picture is, whatever its type is said to be."""
    headers = {} if kind is None else {"Content-Type": kind}

    (reply,) = ask(lambda found: times(1, found, headers=headers), classifier())

    want = classifier().answer(PIXELS, seed=int(reply["seed"]))
    same = ("label", "name", "radius", "p_A", "n_A", "n", "draws", "stop", "alpha")
    assert {key: reply[key] for key in same} == {key: getattr(want, key) for key in same}
    assert not reply["abstained"] and reply["radius"] > 0
    assert (reply["model"], reply["weights"], reply["sigma"]) == ("linear", "0" * 64, 0.5)
    assert 0 < reply["seconds"] < 30


def test_a_form_has_the_answer_of_its_picture():
    """The form as a public client writes it; content that looks like an edge of it stays."""

    async def talk(found: httpx.AsyncClient) -> list[dict[str, Any]]:
        sent = {"params": {"seed": 7}}
        forms = [await found.post("/certify", files={"image": PICTURE}, **sent)]
        tail = PICTURE + b"\r\n--edg\r\n--"  # after a PNG file anything may follow
        forms.append(await post(found, **form(("image", tail)), **sent))
        return [one.json() for one in (await post(found, **sent), *forms)]

    answers = ask(talk, classifier(sigma=2.0), reproducible=True)
    for reply in answers:
        reply.pop("seconds")

    assert answers[0] == answers[1] == answers[2] and answers[0]["draws"] > 0


def test_an_abstention_names_no_class():
    undecided = classifier(sigma=10.0)  # no class has half of the votes

    (reply,) = ask(lambda found: times(1, found), undecided)

    assert reply["abstained"]
    assert (reply["label"], reply["name"], reply["radius"]) == (None, None, 0)


def test_every_request_has_noise_of_its_own():
    answers = ask(lambda found: times(8, found), classifier(sigma=2.0))

    seeds = [int(reply["seed"]) for reply in answers]
    assert len({*seeds}) == 8 and len({reply["n_A"] for reply in answers}) > 1
    assert max(seeds) > 2**53, "readers of JSON would round them, were they not text"


def test_a_seed_gives_the_same_answer_where_clients_may_choose():
    async def talk(found: httpx.AsyncClient) -> list[dict[str, Any]]:
        return [
            *await times(2, found, params={"seed": 2**64 - 1}),
            *await times(1, found, params={"seed": 0}),
            *await times(1, found),
        ]

    answers = ask(talk, classifier(sigma=2.0), reproducible=True)
    for reply in answers:
        reply.pop("seconds")

    first, again, other, own = answers
    assert first == again and first["seed"] == str(2**64 - 1) and other["seed"] == "0"
    assert len({first["n_A"], other["n_A"], own["n_A"]}) > 1


def test_the_deadline_gives_an_answer_that_is_sound_for_what_was_drawn():
    """Votes counted again one by one, and the bound of the looks that there were."""
    began = time.monotonic()
    (reply,) = ask(
        lambda found: times(1, found),
        classifier(Slow, dataclasses.replace(MANY, alpha=0.01)),
        seconds=0.5,
    )
    taken = time.monotonic() - began

    n, n0 = reply["n"], FEW.n0
    assert reply["stop"] == "budget" and 0 < n < MANY.n and 0.5 <= taken < 5
    noisy = registry.load("distributions", "gaussian").noisy(
        torch.from_numpy(PIXELS / np.float32(255)).expand(n0 + n, -1, -1, -1),
        0.5,
        seed=int(reply["seed"]),
        images=torch.zeros(n0 + n, dtype=torch.int64),
        draws=torch.arange(n0 + n),
        max_value=255,
    )
    found = builders.linear().scores(noisy).argmax(1)
    chosen = int(found[:n0].bincount().argmax())
    hits = (found[n0:] == chosen).cumsum(0)
    rule = registry.load("stopping", "anytime")
    looks = [(look, int(hits[look - 1])) for look in look_schedule(MANY.n) if look <= n]
    claim = Claim(certificate=cohen, sigma=0.5, alpha=0.01)
    best = rule.Rule(rule.Config(**STOPPING["anytime"]), n=MANY.n, claim=claim)
    assert (reply["label"], reply["n_A"]) == (chosen, int(hits[-1]))
    assert looks[-1][0] == n
    assert reply["p_A"] == certify.floor(1 - best.complement(looks, 0.01))


def test_a_deadline_before_the_first_look_abstains():
    endless = classifier(Slow, dataclasses.replace(MANY, n0=10**6))

    (reply,) = ask(lambda found: times(1, found), endless, seconds=0.2)

    assert reply["abstained"] and reply["stop"] == "budget"
    assert (reply["radius"], reply["p_A"], reply["n_A"], reply["n"]) == (0, 0, 0, 0)


def test_what_is_served_is_said():
    served = ask(lambda found: found.get("/model"), classifier()).json()

    assert served == schemas.Served.model_validate(served).model_dump(mode="json")
    assert served["shape"] == [1, 2, 2] and served["classes"] == ["0", "1", "2"]
    assert (served["sigma"], served["n0"], served["n"], served["rule"]) == (
        0.5,
        100,
        400,
        "anytime",
    )
    assert served["stopping"] == STOPPING["anytime"] and "[0, 1]" in served["units"]
    assert (served["workers"], served["queue"], served["reproducible"]) == (1, 64, False)


# What is refused.


def gif() -> bytes:
    file = io.BytesIO()
    Image.new("L", (2, 2)).save(file, "GIF")
    return file.getvalue()


def form(*parts: tuple[str, bytes], more: bytes = b"") -> dict[str, Any]:
    """Arguments of a request, written out by RFC 7578."""
    body = b"".join(
        b'--edge\r\nContent-Disposition: form-data; name="%s"; filename="a.png"\r\n%s\r\n%s\r\n'
        % (name.encode(), more, content)
        for name, content in parts
    )
    kind = {"Content-Type": "multipart/form-data; boundary=edge"}
    return {"content": body + b"--edge--\r\n", "headers": kind}


LIMIT = 1000
REFUSED = {
    "empty": (422, {"content": b""}, "an empty body"),
    "text": (422, {"content": b"no picture"}, "not a PNG or JPEG file"),
    "another format": (422, {"content": gif()}, "not a PNG or JPEG file"),
    "cut off": (422, {"content": PICTURE[:44]}, "the picture: a damaged picture"),
    "another size": (
        422,
        {"content": png(np.zeros((3, 2), dtype=np.uint8))},
        "2 x 3 pixels, but the model takes 2 x 2",
    ),
    "too many pixels": (
        413,
        {"content": png(np.zeros((50, 41), dtype=np.uint8))},
        "more than 2,000 pixels",
    ),
    "a bomb": (413, {"content": bomb(9_999)}, "more than 2,000 pixels"),
    "a larger bomb": (413, {"content": bomb(100_000)}, "more than 2,000 pixels"),
    "too long": (413, {"content": bytes(LIMIT + 1)}, "longer than 1,000 bytes"),
    "a form of another field": (422, form(("file", PICTURE)), "send one field, 'image'"),
    "a form of two pictures": (
        422,
        form(("image", PICTURE), ("image", PICTURE)),
        "send one field, 'image'",
    ),
    "a form of text": (422, form(("image", b"no picture")), "not a PNG or JPEG file"),
    "a form of nothing": (422, form(("image", b"")), "not a PNG or JPEG file"),
    "a form that is cut off": (
        422,
        form(("image", PICTURE)) | {"content": form(("image", PICTURE))["content"][:-20]},
        "the form: damaged or cut off",
    ),
    "a form that is a picture": (
        422,
        {"headers": {"Content-Type": "multipart/form-data; boundary=x"}},
        "the form: damaged or cut off",
    ),
    "a form without a boundary": (
        422,
        {"headers": {"Content-Type": "multipart/form-data"}},
        "must name a boundary",
    ),
    "a form of many headers": (
        422,
        form(("image", PICTURE), more=b"".join(b"X-%d: 1\r\n" % k for k in range(20))),
        "the form: damaged or cut off",
    ),
    "a form that is too long": (413, form(("image", bytes(LIMIT))), "longer than 1,000 bytes"),
    "a bomb in a form": (413, form(("image", bomb(9_999))), "more than 2,000 pixels"),
    "web page": (415, {"headers": {"Content-Type": "text/html; charset=utf-8"}}, "'text/html'"),
    "seed": (403, {"params": {"seed": 1}}, "--reproducible"),
    "seed of letters": (422, {"params": {"seed": "one"}}, "seed: "),
    "seed too large": (422, {"params": {"seed": 2**64}}, "seed: "),
    "seed below zero": (422, {"params": {"seed": -1}}, "seed: "),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_bad_requests_take_one_line_and_harm_nobody(kind: str):
    status, how, said = REFUSED[kind]

    async def talk(found: httpx.AsyncClient) -> httpx.Response:
        response = await post(found, **how)
        assert (await post(found)).status_code == 200
        return response

    response = ask(talk, classifier(), bytes=LIMIT, pixels=2_000)

    assert response.status_code == status
    assert said in line(response)
    assert status in application.REASONS, "is not documented"


def test_other_places_and_methods_are_not_there():
    async def talk(found: httpx.AsyncClient) -> list[int]:
        wrong = [("GET", "/certify"), ("PUT", "/certify"), ("POST", "/model"), ("GET", "/")]
        return [(await found.request(*what)).status_code for what in wrong]

    assert ask(talk, classifier()) == [405, 405, 405, 404]


@pytest.mark.parametrize("chunks, taken", [(11, 11), (10**6, 10 * PATIENCE + 1)])
def test_a_body_without_a_length_is_counted_as_it_comes(chunks: int, taken: int):
    """A little too much is read to its end, so that the client gets to read why; no more."""
    sent = 0

    async def content() -> AsyncIterator[bytes]:
        nonlocal sent
        for _ in range(chunks):
            sent += 1
            yield bytes(100)

    response = ask(lambda found: post(found, content()), classifier(), bytes=1000)

    assert response.status_code == 413 and "longer than 1,000 bytes" in line(response)
    assert sent == taken


def test_a_client_that_asks_first_need_not_send_what_is_too_long():
    async def content() -> AsyncIterator[bytes]:
        raise AssertionError("asked to go on")
        yield b""

    headers = PNG | {"Content-Length": "1001", "Expect": "100-continue"}
    response = ask(lambda found: post(found, content(), headers=headers), classifier(), bytes=1000)

    assert response.status_code == 413 and response.headers["connection"] == "close"


def test_a_body_that_trickles_in_is_not_waited_for():
    async def content() -> AsyncIterator[bytes]:
        yield PICTURE[:20]
        await asyncio.sleep(20)

    began = time.monotonic()
    response = ask(lambda found: post(found, content()), classifier(), seconds=0.1)

    assert response.status_code == 408 and "did not arrive within 0.1 s" in line(response)
    assert time.monotonic() - began < 10


@pytest.mark.parametrize("kind, why", [(Nan, "NaN scores for image 0"), (Bug, "not an errand")])
def test_a_broken_classifier_is_the_operators_affair(
    kind: type[builders.Linear], why: str, caplog: pytest.LogCaptureFixture
):
    response = ask(post, classifier(kind))

    assert response.status_code == 500
    assert line(response) == "the classifier failed; the server's log says why"
    assert why in caplog.text


@few
@given(st.lists(st.tuples(st.integers(0, len(PICTURE) - 1), st.integers(0, 255)), max_size=6))
def test_damaged_pictures_are_refused_or_answered(changes: list[tuple[int, int]]):
    body = bytearray(PICTURE)
    for place, byte in changes:
        body[place] = byte

    response = ask(lambda found: post(found, bytes(body)), classifier())

    assert response.status_code in (200, 413, 422)


# Who waits.


async def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end
        await asyncio.sleep(0.005)


def test_a_full_line_refuses_at_once_and_serves_all_who_are_in_it():
    gated = classifier(Gated)

    async def talk(found: httpx.AsyncClient) -> list[httpx.Response]:
        inside = [asyncio.create_task(post(found)) for _ in range(3)]
        await until(gated.backend.asked.is_set)
        busy = (await found.get("/health")).json()  # so the loop is not blocked
        began = time.monotonic()
        late = [await post(found) for _ in range(3)]
        assert time.monotonic() - began < 5
        gated.backend.door.set()
        served = await asyncio.gather(*inside)
        free = (await found.get("/health")).json()
        held = 3 * len(PICTURE)
        assert busy == {"ready": False, "waiting": 2, "computing": 1, "answered": 0, "held": held}
        assert free == {"ready": True, "waiting": 0, "computing": 0, "answered": 3, "held": 0}
        assert [reply.status_code for reply in served] == [200] * 3
        return late

    for response in ask(talk, gated, queue=2):
        assert response.status_code == 503
        assert "2 requests are waiting already" in line(response)
        assert int(response.headers["retry-after"]) >= 1


def test_a_deadline_that_passes_in_the_line_is_said():
    gated = classifier(Gated, MANY)

    async def talk(found: httpx.AsyncClient) -> tuple[httpx.Response, httpx.Response]:
        first = asyncio.create_task(post(found))
        await until(gated.backend.asked.is_set)
        began = time.monotonic()
        second = await post(found)
        assert time.monotonic() - began < 3
        gated.backend.door.set()
        return await first, second

    first, second = ask(talk, gated, seconds=0.3)

    assert first.status_code == 200 and first.json()["stop"] == "budget"
    assert second.status_code == 503 and second.headers["retry-after"] == "1"
    assert "no thread was free within 0.3 s" in line(second)


def test_a_deadline_that_passes_while_a_picture_is_read_is_said(monkeypatch):
    monkeypatch.setattr("rrcm.data.picture_files.read", lambda *source, **names: time.sleep(0.2))

    response = ask(post, classifier(), seconds=0.1)

    assert response.status_code == 503 and "within 0.1 s" in line(response)


async def raw(
    app: Any, messages: list[dict[str, Any]], gone: asyncio.Event, path: str = "/certify"
) -> list[dict[str, Any]]:
    """Put a request to an application as a server does; ``gone`` is when the client hangs up."""
    sent: list[dict[str, Any]] = []
    waiting = iter(messages)

    async def receive() -> dict[str, Any]:
        if message := next(waiting, None):
            return message
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {"type": "http", "http_version": "1.1", "method": "POST", "path": path}
    scope |= {"query_string": b"", "headers": [], "client": ("a.test", 1), "root_path": ""}
    await app(scope, receive, send)
    return sent


BODY = {"type": "http.request", "body": PICTURE, "more_body": False}
PART = {"type": "http.request", "body": PICTURE[:20], "more_body": True}


@pytest.mark.parametrize("messages, bars", [([BODY], True), ([PART], False)])
def test_a_client_that_hangs_up_frees_its_place(messages: list[dict[str, Any]], bars: bool):
    """Who is still sending holds the bytes that have come, and keeps nobody out."""
    gated = classifier(Gated)

    async def main() -> None:
        app = application.app(gated, name="linear", limits=Limits(workers=1, queue=1))
        transport = httpx.ASGITransport(app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://a.test") as found,
        ):
            first = asyncio.create_task(post(found))
            await until(gated.backend.asked.is_set)
            gone = asyncio.Event()
            second = asyncio.create_task(raw(app, messages, gone))
            await asyncio.sleep(0.05)
            health = (await found.get("/health")).json()
            assert health["ready"] != bars
            assert health["held"] == len(PICTURE) + len(messages[0]["body"])
            if bars:
                assert (await post(found)).status_code == 503
            gone.set()
            start, *_ = await asyncio.wait_for(second, 10)
            assert start["status"] == 499
            assert (await found.get("/health")).json()["held"] == len(PICTURE)
            third = asyncio.create_task(post(found))
            await asyncio.sleep(0.05)
            gated.backend.door.set()
            assert (await first).status_code == (await third).status_code == 200
            assert (await found.get("/health")).json()["answered"] == 2

    asyncio.run(main())


@pytest.mark.parametrize("declared", [True, False])
def test_the_bodies_of_all_requests_are_counted_together(declared: bool):
    """Whether or not they say how long they are; who is inside is answered all the same."""
    gated = classifier(Gated)

    async def content() -> AsyncIterator[bytes]:
        for _ in range(0, LIMIT, 100):
            yield bytes(100)

    async def talk(found: httpx.AsyncClient) -> tuple[httpx.Response, httpx.Response]:
        inside = asyncio.create_task(post(found))
        await until(gated.backend.asked.is_set)
        late = await post(found, bytes(LIMIT) if declared else content())
        gated.backend.door.set()
        return await inside, late

    first, late = ask(talk, gated, bytes=LIMIT, total=LIMIT)

    assert first.status_code == 200 and late.status_code == 503
    assert "fill 1,000 bytes; come back later" in line(late)
    assert (late.headers["retry-after"], late.headers["connection"]) == ("1", "close")


@pytest.mark.parametrize("size, how", [((9, 8), {}), ((100, 2), {"resize": "crop"})])
def test_a_picture_of_a_wrong_size_is_not_decoded(monkeypatch, size: tuple, how: dict[str, str]):
    """Nor one of few pixels that would be scaled to many."""
    monkeypatch.setattr("rrcm.data.picture_files.read", lambda *source, **names: 1 / 0)
    plain = dataclasses.replace(classifier(), fit=Fit(shape=SHAPE, **how))
    content = png(np.zeros(size[::-1], dtype=np.uint8))

    response = ask(lambda found: post(found, content), plain, pixels=200)

    assert response.status_code == (413 if how else 422)
    assert ("more than 200 pixels once it is scaled" if how else "9 x 8 pixels") in line(response)


def test_no_thread_outlives_the_application():
    before = threading.active_count()

    ask(lambda found: times(3, found), classifier())

    assert threading.active_count() == before


# What is written down.


def test_the_log_has_a_line_for_each_request_and_no_picture(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, "rrcm.serving.application")

    async def main() -> None:
        app = application.app(classifier(), name="linear", limits=Limits(workers=1))
        async with app.router.lifespan_context(app):
            await raw(app, [BODY], asyncio.Event())
            await raw(app, [BODY], asyncio.Event(), path="/\nPOST /certify 200")

    asyncio.run(main())

    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2 and not any("\n" in one for one in said)
    assert "a.test POST /certify 200" in said[0] and "radius 0." in said[0] and "seed " in said[0]
    assert "a.test POST /%0APOST%20/certify%20200 404" in said[1]


def test_openapi_is_valid_and_its_examples_are_answers():
    api = application.app(classifier(), name="linear", limits=Limits(workers=1)).openapi()

    OpenAPI.model_validate(api)
    post = api["paths"]["/certify"]["post"]
    binary = {"type": "string", "format": "binary"}
    assert {k: v["schema"] for k, v in post["requestBody"]["content"].items()} == {
        "image/png": binary,
        "image/jpeg": binary,
        "application/octet-stream": binary,
        "multipart/form-data": {
            "type": "object",
            "required": ["image"],
            "properties": {"image": binary},
            "additionalProperties": False,
        },
    }
    assert {*post["responses"]} == {"200", *map(str, application.REASONS)}
    for name in ("Reply", "Health", "Served", "Problem"):
        schema = api["components"]["schemas"][name]
        (example,) = schema["examples"]
        model = getattr(schemas, name)
        assert model.model_validate(example).model_dump(mode="json") == example
        assert {*schema["properties"]} == {*example} == {*schema["required"]}
        assert name == "Problem" or all(field.description for field in model.model_fields.values())


# What cannot be served.


@pytest.mark.parametrize("rule", ["none", "futile"])
def test_rules_that_certify_only_at_their_end_are_refused(rule: str):
    fixed = classifier(draws=dataclasses.replace(FEW, stop=rule))

    with refused(ConfigError, repr(rule), "use one of anytime, grid, spending"):
        application.app(fixed, name="linear", limits=Limits(workers=1))


@pytest.mark.parametrize(
    "name, value",
    [("workers", 0), ("bytes", 0), ("pixels", 0), ("queue", -1), ("seconds", 0.0)],
)
def test_limits_that_make_no_sense_are_refused(name: str, value: float):
    with refused(ConfigError, "timeout" if name == "seconds" else name, str(value)[:1]):
        Limits(**{"workers": 1} | {name: value})


def test_all_bodies_cannot_be_less_than_one():
    with refused(ConfigError, "max-total: must be at least max-bytes, 1,000, got 999"):
        Limits(workers=1, bytes=1000, total=999)


# A server in a process of its own.

TINY = ("--model", "tiny", "--sigma", "0.5", "--port", "0")


def digit() -> bytes:
    return png(np.round(loads.DIGITS[0] * 255 / 16).astype(np.uint8))


def test_a_real_server_answers_rightly_and_ends_cleanly(finished: Workspace):
    found = asyncio.run(loads.load(finished.path, clients=4, seconds=3, run=RUN))

    assert len(found.replies) > 5 and found.wrong == 0
    assert not found.surprises
    assert (found.code, found.left) == (0, 0)
    assert found.states["at rest again"].files <= found.states["at rest"].files + 1


@pytest.mark.slow
def test_fifty_clients_for_a_minute(finished: Workspace):
    """No wrong answer, every bad request refused as it should be, and nothing that grows."""
    found = asyncio.run(loads.load(finished.path, clients=50, seconds=60, run=RUN))

    print(loads.table(found))
    assert len(found.replies) > 50 and found.wrong == 0
    assert len({reply["seed"] for _, reply in found.replies}) == len(found.replies)
    assert any(reply["radius"] > 0 for _, reply in found.replies)
    assert not found.surprises
    assert len(found.refusals) > 5, "of many kinds there was one"
    rest, warm, again = (found.states[at] for at in ("at rest", "warm", "at rest again"))
    assert again.memory <= warm.memory + 8 and max(found.memory) <= warm.memory + 24  # MiB
    assert again.threads <= rest.threads + 2 and again.files <= rest.files + 1
    assert (found.code, found.left) == (0, 0)


def test_sigterm_finishes_what_was_let_in_and_refuses_the_rest(finished: Workspace):
    async def talk() -> None:
        options = (*TINY, "--n", "1000000000", "--alpha", "0.5", "--timeout", "3")
        async with (
            loads.server(finished.path, *options) as (process, address),
            httpx.AsyncClient(base_url=address, timeout=30) as found,
        ):
            begun = [asyncio.create_task(post(found, digit())) for _ in range(2)]
            await asyncio.sleep(1)
            process.terminate()
            await asyncio.sleep(0.5)
            with pytest.raises(httpx.ConnectError):
                async with httpx.AsyncClient(base_url=address) as late:
                    await late.get("/health")
            assert process.poll() is None
            for response in await asyncio.gather(*begun):
                assert response.status_code == 200 and response.json()["n"] > 0
            assert await asyncio.to_thread(process.wait, 10) == 0

    asyncio.run(talk())


@pytest.mark.parametrize("text, want", [("7", 7), ("500k", 512_000), ("10M", 10_485_760)])
def test_sizes_are_read(text: str, want: int):
    assert serve.size(text, "--max-bytes") == want


@pytest.mark.parametrize("text", ["lots", "", "10 M", "1.5M", "-1", "10G"])
def test_other_sizes_are_refused(text: str):
    with refused(ConfigError, f"--max-bytes: expected a size such as 500k or 10M, got {text!r}"):
        serve.size(text, "--max-bytes")


def test_a_port_that_is_taken_is_named(finished: Workspace):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        output = finished.run("rrcm", "serve", *TINY[:-1], port, fails=True)

    assert f"--port {port}: cannot listen there" in output and len(output.splitlines()) == 1
