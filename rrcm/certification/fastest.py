"""Chooses what draws the votes of a run fastest here: backend, precision and batch size.

``--precision auto`` times each candidate for a moment with the engine that draws the votes, on all
threads or the GPU. Candidates are float32 in each backend, which is one function up to rounding,
and the precisions that the user allows besides: those are other functions, with certificates of
their own. What is slower is never taken. The rates are kept
for each machine, network and request, so that the same command draws the same votes again.
"""

import dataclasses
import hashlib
import itertools
import json
import os
import platform
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import onnxruntime
import torch

from rrcm.certification.sampling import batching, drawing, voting
from rrcm.certification.sampling.batching import Job, Piece
from rrcm.certification.sampling.voting import BoundNoise, trial_normals
from rrcm.config.certification import Eval, Precision, Sampling
from rrcm.core import registry
from rrcm.core.errors import BackendError, CheckpointError, ConfigError, DataError
from rrcm.core.files import read_json, write_json
from rrcm.data.splits.shards import Split
from rrcm.inference.backend import Backend
from rrcm.inference.backends import onnx

KEPT = Path(".rrcm/fastest")
SECONDS = 0.5  # of a turn
TURNS = 2  # of each candidate, in alternation; the better one counts
ROWS = 16  # of the first calls
LONG = 0.25  # seconds of such a call, beyond which larger batches are not tried
ENOUGH = 1.0  # seconds of such a call, beyond which it alone is the measurement
BATCHES = {"cpu": (16, 64, 256), "cuda": (256, 1024, 2048)}
Way = tuple[str, Precision]  # a backend, and how it computes
CLASSES = tuple("0123456789")  # of the images that are timed


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """A way to draw votes, and its noisy images a second."""

    backend: str
    precision: Precision
    batch_size: int
    per_s: float

    def __str__(self) -> str:
        return f"{self.backend} {self.precision}, batch {self.batch_size}: {self.per_s:,.0f}"


def choose(
    evaluation: Eval,
    draws: Sampling,
    shape: tuple[int, int, int],
    *,
    precisions: tuple[str, ...],
    backend: str | None,
    batch_size: int | None,
) -> tuple[Sampling, list[Candidate]]:
    """Return ``draws`` with what is fastest for a run of this folder, and all rates, fastest first.

    Args:
        evaluation: The run, whose weights are here.
        draws: All else about the votes.
        shape: Of its images, [C, H, W]; the rate does not depend on what they show.
        precisions: Those that may be chosen.
        backend: The only one that may be chosen; None for any.
        batch_size: The same of batch sizes.

    Raises:
        ConfigError: Nothing that is allowed can run here; names why.
        BackendError: The exported run is missing or damaged.
    """
    if batch_size is None and torch.cuda.is_available():
        batch_size = draws.batch_size  # compiling for several takes minutes
    path = KEPT / f"{_key(evaluation, precisions, backend, batch_size)}.json"
    candidates = _kept(path)
    if not candidates:
        opened = _opened(evaluation, draws, precisions, backend)
        rates = _measured(opened, random_images(shape), batch_size)
        candidates = sorted(rates, key=lambda one: -one.per_s)
        write_json(path, [asdict(one) for one in candidates])
    fastest = candidates[0]
    draws = dataclasses.replace(
        draws, backend=fastest.backend, precision=fastest.precision, batch_size=fastest.batch_size
    )
    return draws, candidates


def _kept(path: Path) -> list[Candidate]:
    """Return the rates of an earlier call; none if there was none, or its file is damaged."""
    if not path.exists():
        return []
    try:
        return [Candidate(**one) for one in read_json(path)]
    except (DataError, TypeError):
        return []


def _key(evaluation: Eval, *asked: object) -> str:
    """Return the name of the rates of this machine, software, network and request."""
    weights = onnx.about(Path("."), evaluation.run)["weights"]
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    here = [machine(), torch.get_num_threads(), gpu, torch.__version__, onnxruntime.__version__]
    named = json.dumps([here, weights, evaluation.sigma, *asked])
    return hashlib.sha256(named.encode()).hexdigest()[:16]


def _opened(
    evaluation: Eval, draws: Sampling, precisions: tuple[str, ...], only: str | None
) -> dict[Way, Backend]:
    """Open what can run here, by names of backend and precision."""
    opened, refused = {}, []
    for name, precision in variants("cuda" if torch.cuda.is_available() else "cpu"):
        if precision not in precisions or only not in (None, name):
            continue
        way = dataclasses.replace(draws, backend=name, precision=precision)
        try:
            opened[name, precision] = drawing.backend(evaluation, way)
        except (BackendError, CheckpointError, DataError) as error:  # weights are elsewhere, say
            refused.append(str(error))
    if not opened:
        why = refused[0] if refused else f"{' and '.join(precisions)}: no backend has it here"
        raise ConfigError(f"--precision auto: {why}")
    return opened


def _measured(opened: dict[Way, Backend], split: Split, batch_size: int | None) -> list[Candidate]:
    """Return the rate of each backend with each batch size."""
    best: dict[tuple[str, Precision, int], float] = {}
    with voting.threads_restored():
        for _, (way, backend) in itertools.product(range(TURNS), opened.items()):
            for size, rate in _rates(backend, split, batch_size).items():
                best[*way, size] = max(round(rate, 1), best.get((*way, size), 0.0))
    return [
        Candidate(backend=name, precision=precision, batch_size=size, per_s=rate)
        for (name, precision, size), rate in best.items()
    ]


def _rates(backend: Backend, split: Split, batch_size: int | None) -> dict[int, float]:
    """Return the noisy images a second by batch size."""
    rows, workers = batch_size or ROWS, drawing.workers()
    sizes: Sequence[int] = (batch_size,) if batch_size else BATCHES["cpu"]
    x, z = voting.batch(split, rows).to(backend.device), trial_normals(backend, rows)
    for _ in range(2):  # on one thread; the first call may compile
        began = time.perf_counter()
        backend.scores(x, z).sum().item()
        seconds = time.perf_counter() - began
    if seconds > ENOUGH:
        return {rows: rows * workers / seconds}
    if seconds > LONG:
        sizes = sizes[:1]
    return {size: engine_rate(backend, split, size, workers, SECONDS) for size in sizes}


def random_images(shape: tuple[int, int, int]) -> Split:
    """Return 64 images of ``shape`` [C, H, W]: the speed does not depend on what they show."""
    images = np.random.default_rng(0).integers(0, 256, (64, *shape), dtype=np.uint8)
    labels = np.zeros(64, dtype=np.int64)
    return Split(idx=np.arange(64), images=images, labels=labels, classes=CLASSES, max_value=255)


def variants(device: str) -> list[Way]:
    """Return the backends, each with the precisions that it offers on a kind of device."""
    modules = {name: registry.load("backends", name) for name in registry.names("backends")}
    return [(name, each) for name, one in modules.items() for each in one.AUTO.get(device, ())]


def engine_rate(
    backend: Backend, split: Split, batch_size: int, workers: int, seconds: float
) -> float:
    """Return noisy images per second of the engine, on as many images as it takes."""
    gaussian = registry.load("distributions", "gaussian")
    count = voting.counter(
        backend,
        split,
        noise=BoundNoise(gaussian, backend.sigma, 0, split.max_value),
        batch_size=batch_size,
    )
    calls: list[tuple[float, int]] = []  # the end of each, and its rows

    def timed(pieces: list[Piece]) -> Sequence[np.ndarray]:
        counts = count(pieces)
        calls.append((time.perf_counter(), sum(piece.size for piece in pieces)))
        return counts

    first = 4 * workers  # compiled, warm, all workers busy
    bounds = tuple(range(0, 100 * batch_size + 1, batch_size))
    jobs = (Job(row=i % len(split.idx), bounds=bounds) for i in itertools.count())
    running = batching.run(jobs, timed, lambda job: True, batch_size=batch_size, workers=workers)
    for _ in running:
        if len(calls) > first and calls[-1][0] - calls[first - 1][0] >= seconds:
            break
    running.close()
    (began, _), *counted = calls[first - 1 :]
    return sum(rows for _, rows in counted) / (counted[-1][0] - began)


def machine() -> str:
    """Return the name of the processor, and how many cores there are."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next(line.partition(":")[2].strip() for line in lines if "model name" in line)
    except (OSError, StopIteration):
        name = platform.processor() or platform.machine()
    return f"{name}, {os.cpu_count()} cores"
