"""How fast devices compute: as published, as measured here, or as stages that ran here did."""

import json
import os
import platform
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pipeline.planning.work import STATED, Planned, Work
from pipeline.runtime import throughput
from rrcm.core.errors import ConfigError
from rrcm.core.files import read_bytes
from rrcm.core.registry import suggest
from rrcm.core.schema import read_yaml

PROVENANCE = Path("provenance")
TRIAL = 4e9  # operations of a trial, about; a network with more per image is tried with one image
TRIES, SECONDS = 4, 1.5  # of a trial, at least: other work on the machine comes and goes
MOST = 1024  # GPUs
GROUPS = {"train": ("pretrain", "train", "denoise"), "vote": ("sample", "represent", "generate")}


@dataclass(frozen=True, kw_only=True, slots=True)
class Rate:
    """Operations per second of one device, and how that is known."""

    value: float
    how: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpus:
    """GPUs by name: their number, published or measured peaks in operations/s, memory in bytes.

    ``launch`` are seconds in which one kernel is started: a small network waits for it.
    """

    name: str
    count: int
    peaks: Mapping[str, float]
    bytes: float
    source: str
    utilisation: Mapping[str, float]
    launch: float

    def rate(self, work: Work) -> Rate:
        """The peak in the stage's precision, times the stated utilisation."""
        precision = "fp32" if work.precision == "fp32" else "bf16"
        share = self.utilisation["training" if work.timed[0] == "train" else "sampling"]
        peak = self.peaks[precision]
        return Rate(
            value=share * peak,
            how=f"{peak / 1e12:.4g} TFLOP/s {precision} ({self.source}) x {share:g} (assumed)",
        )


@dataclass(kw_only=True)
class Processor:
    """The processor at hand; ``records`` are speeds of stages that ran on such a machine."""

    planned: Planned
    records: Mapping[tuple[str, str], Rate]
    name: str = "this processor"
    count: int = 1
    bytes: float = field(default_factory=lambda: float(_memory()))
    _trials: dict[tuple[str, str], Rate] = field(default_factory=dict)

    def rate(self, work: Work) -> Rate:
        """The speed of recorded stages of this kind and network, else of a trial of the network."""
        if work.timed in self.records:
            return self.records[work.timed]
        if work.timed not in self._trials:
            kind, name = work.timed
            self._trials[work.timed] = trial(
                self.planned.networks.builders[name],
                self.planned.networks.size,
                kind=kind,
                most=work.batch,
            )
        return self._trials[work.timed]


def named(text: str) -> Gpus:
    """GPUs such as ``h100:8``, with the peaks of stated.yaml.

    Raises:
        ConfigError: The GPU is not there, or the number is none.
    """
    name, _, number = text.partition(":")
    stated = read_yaml(STATED)
    known = stated["gpus"]
    if name not in known:
        raise ConfigError(
            f"--gpu {text}: no rates of {name!r} are known, only of {', '.join(known)}."
            f"{suggest(name, [*known])}"
        )
    count = number if ":" in text else "1"
    if not (count.isdecimal() and 0 < int(count) <= MOST):
        raise ConfigError(f"--gpu {text}: a name and a number up to {MOST}, as in h100:8")
    entry = known[name]
    return Gpus(
        name=name,
        count=int(count),
        peaks={key: 1e12 * entry[key] for key in ("bf16", "fp32")},
        bytes=1e9 * entry["memory"],
        source=entry["source"],
        utilisation=stated["utilisation"],
        launch=stated["launch"],
    )


def at_hand(planned: Planned) -> Gpus | Processor:
    """This machine's GPUs, whose peak is measured; without any, its processor."""
    if not torch.cuda.is_available():
        return Processor(planned=planned, records=recorded(planned, records()))
    stated = read_yaml(STATED)
    return Gpus(
        name=torch.cuda.get_device_name(),
        count=torch.cuda.device_count(),
        peaks={precision: throughput.peak(precision, "cuda") for precision in ("bf16", "fp32")},
        bytes=float(torch.cuda.get_device_properties(0).total_memory),
        source="measured here: the best of four matrix products",
        utilisation=stated["utilisation"],
        launch=stated["launch"],
    )


def trial(build: Callable[[], nn.Module], size: tuple[int, ...], *, kind: str, most: int) -> Rate:
    """Time a network on a few images, the best of some: forward, and backward to ``train``.

    Tries are in turn on one thread and on all: on a busy machine threads wait for each other, and
    one alone is up to a hundred times faster.
    """
    module, sigma = build(), torch.ones(())
    each = throughput.operations(module, size) * (3 if kind == "train" else 1)
    rows = int(max(1, min(most, TRIAL // each)))
    x, fastest = torch.rand(rows, *size), float("inf")
    module.train(kind == "train" and rows > 1)  # BatchNorm needs several
    threads, best = torch.get_num_threads(), 1
    tried, end = 0, time.perf_counter() + SECONDS
    try:
        while tried < TRIES or time.perf_counter() < end:
            torch.set_num_threads(threads if tried % 2 else 1)
            tried, began = tried + 1, time.perf_counter()
            with torch.set_grad_enabled(kind == "train"):
                out = module(x, sigma)
            if kind == "train":
                out.sum().backward()
            if (taken := time.perf_counter() - began) < fastest:
                fastest, best = taken, torch.get_num_threads()
    finally:
        torch.set_num_threads(threads)
    passes = "forward and backward" if kind == "train" else "forward"
    images = f"{rows} image{'s' * (rows > 1)}"
    return Rate(
        value=rows * each / fastest,
        how=f"{rows * each / fastest / 1e9:.3g} GFLOP/s: {images} {passes}, timed here, "
        f"{best} thread{'s' * (best > 1)}",
    )


def records(folder: Path = PROVENANCE) -> list[dict[str, Any]]:
    """Records of stages that ran in one go on the processor of a machine like this one."""
    found = []
    for path in sorted(folder.glob("*@*.json")):
        record = json.loads(read_bytes(path))
        on_cpu = record.get("device") == "cpu" or record.get("provider") == "CPUExecutionProvider"
        if on_cpu and record.get("machine") == machine() and not record.get("resumed_at"):
            found.append(record)
    return found


def recorded(planned: Planned, found: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], Rate]:
    """Operations per second by kind and network, over all recorded stages that are planned alike.

    A record of a training counts if it took as many steps as are planned; one of a sampling counts
    by the draws that it took.
    """
    sums: dict[tuple[str, str], list[float]] = {}
    for record in found:
        if (measured := operations_of(planned, record)) is None:
            continue
        work, operations = measured
        total = sums.setdefault(work.timed, [0.0, 0.0, 0])
        for k, value in enumerate((operations, record["seconds"], 1)):
            total[k] += value
    return {
        timed: Rate(
            value=operations / seconds,
            how=f"{operations / seconds / 1e9:.3g} GFLOP/s: {count:g} stages of {timed[1]} that "
            f"ran here or on a like machine (provenance/)",
        )
        for timed, (operations, seconds, count) in sums.items()
    }


def operations_of(planned: Planned, record: Mapping[str, Any]) -> tuple[Work, float] | None:
    """The planned work of a recorded stage, and the operations that the record says it took."""
    group, _, item = record["stage"].partition("@")
    sections: dict[str, Mapping[str, Any]] = {
        "pretrain": planned.whole.pretrain, "train": planned.whole.runs,
        "denoise": planned.whole.denoisers, "sample": planned.whole.evals,
    }  # fmt: skip
    if item not in sections.get(group, {}):
        return None
    work = planned.stage(record["stage"])
    if not work.operations:
        return None
    if group == "sample":
        return work, work.operations * record["draws"] / (work.images * work.draws)
    taken = record["gradient_evaluations"]
    return (work, work.operations) if taken == work.gradients else None


def machine() -> str:
    """This machine, as records of stages name it."""
    return f"{platform.machine()}, {os.cpu_count()} cores"


def _memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
