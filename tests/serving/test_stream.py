"""Events of a certification: they are of the draws that the answer is judged by."""

import asyncio
import base64
import dataclasses
import io
import json
import time
from typing import Any

import builders
import numpy as np
import pytest
import torch
from linear_smoothed import FEW, PICTURE, Slow, ask, classifier, post
from PIL import Image

from rrcm.certification.distributions import gaussian
from rrcm.serving import application
from rrcm.serving.endpoints import Terms

NEAR = dataclasses.replace(FEW, n=10_000, stopping={"radii": [0.0, 0.28]})  # 10,000 draws of seed 0


def events(text: str) -> list[tuple[str, Any]]:
    """Kinds and data."""
    lines = [event.split("\n") for event in text.removesuffix("\n\n").split("\n\n")]
    return [(kind.removeprefix("event: "), json.loads(data[6:])) for kind, data in lines]


def watched(asking: Any, content: bytes = PICTURE, **more: Any) -> Any:
    return asking.post("/watch", content=content, **more)


def test_the_last_event_is_the_answer_and_each_look_one_of_its_votes():
    async def talk(asking: Any) -> tuple[Any, ...]:
        seed = {"params": {"seed": 1}}  # another may stop at its first look
        certified = await watched(asking, **seed), await post(asking, **seed)
        return *certified, await asking.get("/metrics")

    warm = classifier()
    warm.answer(np.zeros(warm.shape, np.uint8))  # or the boundaries take of the deadline
    stream, certified, metrics = ask(talk, warm, reproducible=True)

    (first, picture), *looks, (last, answer) = events(stream.text)
    want = certified.json()
    assert (first, last) == ("picture", "answer") and {kind for kind, _ in looks} == {"look"}
    assert answer | {"seconds": 0} == want | {"seconds": 0}
    assert f"rrcm_draws_total {2.0 * want['draws']}" in metrics.text
    told = [look for _, look in looks]
    assert [sum(votes for _, votes in look["votes"]) for look in told] == [l["n"] for l in told]
    assert (told[-1]["n"], told[-1]["radius"]) == (want["n"], want["radius"])
    assert dict(told[-1]["votes"])[want["label"]] == want["n_A"]
    radii = [look["radius"] for look in told]
    assert radii == sorted(radii) and radii[0] < radii[-1], "what is certified stays so"
    draws, zero = torch.arange(8), torch.zeros(8, dtype=torch.int64)
    x = torch.tensor([[[200, 40], [90, 160]]]).float().div(255).expand(8, 1, 2, 2)
    noisy = gaussian.noisy(x, 0.5, seed=int(want["seed"]), images=zero, draws=draws, max_value=255)
    for (image, label), pixels in zip(picture["copies"], noisy, strict=True):
        assert label == builders.linear().scores(pixels[None]).argmax()
        shown = np.asarray(Image.open(io.BytesIO(base64.b64decode(image))).convert("L"))
        np.testing.assert_array_equal(shown, (255 * pixels[0].clamp(0, 1)).round().numpy())


def test_a_refusal_has_its_status_and_a_failure_amid_the_draws_an_event(caplog):
    class Failing(builders.Linear):
        def scores(self, x: torch.Tensor, z: torch.Tensor | None = None) -> torch.Tensor:
            if len(self.batches) > 3:
                raise ArithmeticError("a bug")
            return super().scores(x)

    async def talk(asking: Any) -> list[Any]:
        return [await watched(asking, *how) for how in ((), (b"x",))] + [
            await watched(asking, params={"seed": 1})
        ]

    late, *refused = ask(talk, classifier(Failing))

    assert [one.status_code for one in refused] == [422, 403]
    assert "not a PNG" in refused[0].json()["detail"]
    kind, said = events(late.text)[-1]
    assert late.status_code == 200 and kind == "problem"
    assert said == {"detail": "the classifier failed; the server's log says why"}
    assert "a bug" in caplog.text


@pytest.mark.parametrize("cancelled", [False, True], ids=["leaves", "is cancelled"])
@pytest.mark.parametrize("after", [0, 2], ids=["at once", "amid the draws"])
def test_whoever_leaves_stops_the_drawing_and_gives_the_place_back(after: int, cancelled: bool):
    """Long before 10,000 draws of a slow classifier are made."""
    slow = classifier(Slow, NEAR)
    slow.answer(np.zeros((1, 2, 2), np.uint8), budget=0.1)  # computes the boundaries

    async def main() -> None:
        app = application.app(slow, name="slow", terms=Terms(workers=1, queue=0))
        left, told = asyncio.Event(), 0
        body = iter([{"type": "http.request", "body": PICTURE}])

        async def receive() -> dict[str, Any]:
            if message := next(body, None):
                return message
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            nonlocal told
            told += bool(message.get("body"))
            if told > after:
                left.set()

        scope = {"type": "http", "http_version": "1.1", "method": "POST", "path": "/watch"}
        scope |= {"query_string": b"", "headers": [], "root_path": "", "client": ("a.test", 1)}
        async with app.router.lifespan_context(app):
            health = next(r.endpoint for r in app.routes if r.path == "/health")
            request = asyncio.create_task(app(scope, receive, send))
            if after == 0:
                left.set()
            while not (left.is_set() or request.done()):
                await asyncio.sleep(0.01)
            if cancelled:
                request.cancel()
            began = time.monotonic()
            await asyncio.gather(request, return_exceptions=True)
            while (await health()).computing + (await health()).waiting:
                await asyncio.sleep(0.01)
            assert time.monotonic() - began < 2 and told < 20

    asyncio.run(main())
