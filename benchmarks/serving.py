"""A load test of `rrcm serve`: the correctness of every answer, and the server's memory.

``python -m benchmarks.serving --clients 50 --seconds 60`` starts a server of a trained run in a
process of its own. Each client sends one picture after the other, a tenth of them bad in one of
many ways. Afterwards every answer is recomputed from its seed.

``--idle 1100`` instead opens as many idle connections, and sends requests over others.
"""

import argparse
import asyncio
import io
import os
import random
import resource
import signal
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

import httpx
import numpy as np
import psutil
from PIL import Image
from sklearn.datasets import load_digits

from rrcm.certification import openers
from rrcm.certification.smoothed import Smoothed
from rrcm.config.defaults import DRAWS

BAD = 0.1  # share of bad requests
WARM = 10.0  # seconds after which memory should not grow
STATES = ("at rest", "warm", "at the end", "at rest again")
MODEL, SIGMA = "tiny", 0.5  # of params.yaml
ASKED = 20  # pictures to send beside idle connections
PATIENCE = 120.0  # seconds; timeout of a client
DIGITS = load_digits().images  # [N, 8, 8], 0 .. 16


@dataclass(frozen=True, kw_only=True, slots=True)
class State:
    """Resources of a process: MiB of memory, threads, file descriptors."""

    memory: float
    threads: int
    files: int


@dataclass(kw_only=True)
class Outcome:
    """The answers to a load, and the server's resources."""

    replies: list[tuple[bytes, dict[str, Any]]] = field(default_factory=list)  # picture, answer
    latencies: list[float] = field(default_factory=list)
    refusals: Counter[tuple[str, int, int]] = field(default_factory=Counter)  # kind, want, got
    states: dict[str, State] = field(default_factory=dict)
    memory: list[float] = field(default_factory=list)  # MiB, every second
    seconds: float = 0.0
    wrong: int = 0
    after_deadline: int = 0
    left: int = -1  # processes left after SIGTERM
    code: int | None = None

    @property
    def surprises(self) -> dict[tuple[str, int, int], int]:
        """Bad requests that were not refused as expected, and good ones that were refused."""
        return {key: count for key, count in self.refusals.items() if key[1] != key[2]}


def png(pixels: np.ndarray) -> bytes:
    """Grey pixels, uint8 [H, W], as a PNG file."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def bomb(side: int = 30_000) -> bytes:
    """A PNG file whose header declares ``side`` squared pixels."""
    pieces = b"\x89PNG\r\n\x1a\n"
    head = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    for kind, content in ((b"IHDR", head), (b"IDAT", zlib.compress(bytes(1000))), (b"IEND", b"")):
        check = zlib.crc32(kind + content)
        pieces += struct.pack(">I", len(content)) + kind + content + struct.pack(">I", check)
    return pieces


def bad(good: bytes) -> dict[str, tuple[int, dict[str, Any]]]:
    """Requests that must be refused: kind -> the expected status, and arguments to send it."""
    large = bytes(11 * 2**20)

    def sent(content: Any, kind: str = "image/png", **more: Any) -> dict[str, Any]:
        return {"content": content, "headers": {"Content-Type": kind}, **more}

    return {
        "empty": (422, sent(b"")),
        "text": (422, sent(b"no picture at all")),
        "cut off": (422, sent(good[: len(good) // 2])),
        "another size": (422, sent(png(np.zeros((9, 8), dtype=np.uint8)))),
        "of a web page": (415, sent(b"<html>", "text/html")),
        "too long": (413, sent(large)),
        "too long, in chunks": (413, sent(lambda: _chunks(large))),
        "a bomb": (413, sent(bomb())),
        "with a seed": (403, sent(good, params={"seed": 1})),
        "no such place": (404, sent(good, url="/certified")),
        "another method": (405, {"method": "GET"}),
    }


async def _chunks(content: bytes) -> AsyncIterator[bytes]:
    for first in range(0, len(content), 2**16):
        yield content[first : first + 2**16]


@asynccontextmanager
async def server(
    folder: Path, *options: str, files: int | None = None, log: IO[str] | None = None
) -> AsyncIterator[tuple[subprocess.Popen, str]]:
    """Run `rrcm serve` in a checkout, and yield it with its address; at the end, kill it if alive.

    Raises:
        RuntimeError: It did not start; the message has its output.
    """
    log = log or tempfile.TemporaryFile("w+")
    process = subprocess.Popen(
        [Path(sys.executable).parent / "rrcm", "serve", "--port", "0", *options],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        start_new_session=True,
    )
    if files is not None:
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (files, files))
    try:
        line = await asyncio.to_thread(process.stdout.readline)
        if "http://" not in line:
            process.wait()
            log.seek(0)
            raise RuntimeError(f"no server: {line}{log.read()}")
        yield process, line[line.index("http://") :].partition("/certify")[0]
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
        log.close()


def state(process: psutil.Process) -> State:
    """The current state of a process."""
    with process.oneshot():
        return State(
            memory=process.memory_info().rss / 2**20,
            threads=process.num_threads(),
            files=process.num_fds(),
        )


async def load(
    folder: Path, *, clients: int, seconds: float, run: str, options: tuple[str, ...] = ()
) -> Outcome:
    """Run ``clients`` against a server of a trained run for ``seconds``; end it by SIGTERM."""
    found = Outcome()
    wanted = ("--model", MODEL, "--sigma", str(SIGMA), *options)
    async with server(folder, *wanted) as (process, address):
        watched = psutil.Process(process.pid)
        async with httpx.AsyncClient(base_url=address, timeout=PATIENCE) as one:
            served = (await one.get("/model")).json()
            for seed in range(2 * served["workers"]):  # starts all of its threads
                await one.post("/certify", **_good(_picture(random.Random(seed))))
        await _until(lambda: not _connected(watched))
        found.states["at rest"] = state(watched)
        began = time.monotonic()
        looking = asyncio.create_task(_watch(watched, found, began))
        await asyncio.gather(
            *(_client(address, found, began + seconds, number) for number in range(clients))
        )
        found.seconds = time.monotonic() - began
        found.states["at the end"] = state(watched)
        looking.cancel()
        await _until(lambda: not _connected(watched))
        found.states["at rest again"] = state(watched)
        family = [watched, *watched.children(recursive=True)]
        process.terminate()
        found.code = await asyncio.to_thread(process.wait, 60)
        found.left = sum(member.is_running() for member in family[1:])
    classifier = offline(folder, run, served)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        right = list(pool.map(lambda pair: agrees(classifier, *pair), found.replies))
    found.wrong = right.count(False)
    found.after_deadline = sum(reply["stop"] == "budget" for _, reply in found.replies)
    return found


async def idle(folder: Path, *, count: int, files: int) -> str:
    """Report how a server with at most ``files`` descriptors answers beside idle connections."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # of this process
    wanted = ("--model", MODEL, "--sigma", str(SIGMA))
    log = tempfile.TemporaryFile("w+")
    async with server(folder, *wanted, files=files, log=log) as (process, address):
        host, _, port = address.removeprefix("http://").partition(":")
        times, codes, waiting = [], Counter(), []
        for _ in range(count):
            waiting.append(await asyncio.open_connection(host, int(port)))
        held = state(psutil.Process(process.pid)).files
        for seed in range(ASKED):
            began = time.monotonic()
            async with httpx.AsyncClient(base_url=address, timeout=PATIENCE) as client:
                reply = await client.post("/certify", **_good(_picture(random.Random(seed))))
            codes[reply.status_code] += 1
            times.append(time.monotonic() - began)
        for _, writer in waiting:
            writer.close()
        process.terminate()
        code = await asyncio.to_thread(process.wait, 60)
        log.seek(0)
        lines = log.read().splitlines()
    return (
        f"{count:,} idle connections, {files:,} descriptors, {held:,} of them open then: "
        f"{codes[200]} of {ASKED} pictures answered, in {np.median(times):.2f} s in the median and "
        f"{max(times):.2f} s at most; {len(lines)} lines in the log, "
        f"{sum('Traceback' in line for line in lines)} tracebacks; exit code {code}"
    )


async def _client(address: str, found: Outcome, until: float, number: int) -> None:
    """Send one request after the other; some are bad, and some hang up."""
    chance = random.Random(number)
    async with httpx.AsyncClient(base_url=address, timeout=PATIENCE) as client:
        while time.monotonic() < until:
            picture = _picture(chance)
            if chance.random() >= BAD:
                began = time.monotonic()
                reply = await client.post("/certify", **_good(picture))
                if reply.status_code == 200:
                    found.latencies.append(time.monotonic() - began)
                    found.replies.append((picture, reply.json()))
                found.refusals["good", 200, reply.status_code] += 1
            elif chance.random() < 0.2:
                await _hang_up(address, picture, cut=chance.random() < 0.5)
                found.refusals["hung up", 0, 0] += 1
            else:
                kind, (want, how) = chance.choice(sorted(bad(picture).items()))
                found.refusals[kind, want, await _refused(client, how)] += 1


def _good(picture: bytes) -> dict[str, Any]:
    return {"content": picture, "headers": {"Content-Type": "image/png"}}


async def _refused(client: httpx.AsyncClient, how: dict[str, Any]) -> int:
    """The status of a bad request; 0 if its answer is not an error message of one line."""
    how = {"method": "POST", "url": "/certify"} | how
    if callable(how.get("content")):
        how["content"] = how["content"]()
    reply = await client.request(**how)
    said = reply.json()["detail"]
    return reply.status_code if isinstance(said, str) and "\n" not in said else 0


async def _hang_up(address: str, picture: bytes, *, cut: bool) -> None:
    """Send a picture, or half of it, and close the connection."""
    host, _, port = address.removeprefix("http://").partition(":")
    _, writer = await asyncio.open_connection(host, int(port))
    head = f"POST /certify HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(picture)}\r\n\r\n"
    writer.write(head.encode() + (picture[: len(picture) // 2] if cut else picture))
    await writer.drain()
    await asyncio.sleep(0.05)
    writer.close()
    await writer.wait_closed()


def _picture(chance: random.Random) -> bytes:
    """A digit, or a blend of two digits, which is less certain."""
    first, second = (chance.choice(DIGITS) for _ in range(2))
    share = chance.choice((0.0, chance.random()))
    return png(np.round(((1 - share) * first + share * second) * 255 / 16).astype(np.uint8))


async def _watch(process: psutil.Process, found: Outcome, began: float) -> None:
    while True:
        now = state(process)
        found.memory.append(now.memory)
        if "warm" not in found.states and time.monotonic() - began >= WARM:
            found.states["warm"] = now
        await asyncio.sleep(1)


def _connected(process: psutil.Process) -> bool:
    return any(c.status == psutil.CONN_ESTABLISHED for c in process.net_connections("tcp"))


async def _until(condition: Callable[[], bool], seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        await asyncio.sleep(0.1)


def offline(folder: Path, run: str, served: dict[str, Any]) -> Smoothed:
    """The classifier of a server, opened in this process from the server's description."""
    draws = replace(
        DRAWS,
        n0=served["n0"],
        n=served["n"],
        batch_size=served["batch_size"],
        stop=served["rule"],
        certificate=served["certificate"],
        alpha=served["alpha"],
    )
    found = openers.trained(run, sigma=served["sigma"], root=folder, draws=draws)
    assert found.backend.weights == served["weights"]
    assert found.stopping == served["stopping"]
    return found


def agrees(classifier: Smoothed, picture: bytes, reply: dict[str, Any]) -> bool:
    """Whether a served answer is the one that its seed gives.

    An answer cut short by the deadline may only have a smaller radius or abstain: the bound of
    `anytime` is the best of all looks, and the answer used only the first of them.
    """
    with Image.open(io.BytesIO(picture)) as image:
        want = classifier.answer(image, seed=int(reply["seed"]))
    label = -1 if reply["abstained"] else reply["label"]
    if reply["stop"] == "budget":
        fits = label in (-1, want.label) and reply["n_A"] <= reply["n"] <= want.n
        return fits and reply["radius"] <= want.radius and reply["p_A"] <= want.p_A
    same = ("radius", "p_A", "n_A", "n", "draws", "stop", "alpha")
    return label == want.label and all(reply[key] == getattr(want, key) for key in same)


def table(found: Outcome) -> str:
    """The outcome as readable text."""
    times = np.percentile(found.latencies, [50, 90, 99, 100]) if found.latencies else [np.nan] * 4
    lines = [
        f"{len(found.replies):,} answers in {found.seconds:.0f} s, "
        f"{len(found.replies) / found.seconds:.1f} a second, {found.wrong} of them wrong, "
        f"{found.after_deadline} cut short by the deadline",
        "latency, s: "
        + ", ".join(
            f"{name} {value:.2f}"
            for name, value in zip(("median", "90 %", "99 %", "most"), times, strict=True)
        ),
        "",
        f"{'request':22}{'status':>8}{'count':>8}",
    ]
    for (kind, want, got), count in sorted(found.refusals.items(), key=lambda item: item[0][1:]):
        odd = "" if want == got else f"   should have been {want}"
        lines.append(f"{kind:22}{got or '-':>8}{count:>8,}{odd}")
    lines += ["", f"{'the server':22}{'RSS, MiB':>10}{'threads':>9}{'files':>7}"]
    for name in STATES:
        if name in found.states:
            now = found.states[name]
            lines.append(f"{name:22}{now.memory:>10.1f}{now.threads:>9}{now.files:>7}")
    lines.append(f"most, at any second   {max(found.memory):>10.1f}")
    ended = f"after SIGTERM: exit code {found.code}, {found.left} processes left"
    return "\n".join([*lines, ended])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--run", default="tiny-rrcm-s050")
    parser.add_argument("--idle", type=int, help="connections over which nothing comes")
    parser.add_argument("--files", type=int, default=1024, help="descriptors, with --idle")
    asked = parser.parse_args()
    if asked.idle is not None:
        print(asyncio.run(idle(Path("."), count=asked.idle, files=asked.files)))
        return
    found = asyncio.run(
        load(Path("."), clients=asked.clients, seconds=asked.seconds, run=asked.run)
    )
    print(table(found))


if __name__ == "__main__":
    main()
