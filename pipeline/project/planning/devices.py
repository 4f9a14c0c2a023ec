"""How fast devices compute: GPUs as published or measured, the processor by a trial."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import nn

from pipeline.runtime import throughput
from rrcm.core.errors import ConfigError
from rrcm.core.registry import suggest
from rrcm.core.schema import read_yaml

STATED = Path(__file__).with_name("stated.yaml")
TRIAL = 4e9  # operations of a trial, about; a network with more per image is tried with one image
TRIES, SECONDS = 4, 1.5  # of a trial, at least: other work on the machine comes and goes
MOST = 1024  # GPUs


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpus:
    """GPUs by name: their number, and the peak of each in operations/s by precision."""

    name: str
    count: int
    peaks: Mapping[str, float]
    source: str


def named(text: str) -> Gpus:
    """GPUs such as ``h100:8``, with the peaks of stated.yaml.

    Raises:
        ConfigError: The GPU is not there, or the number is none.
    """
    name, _, number = text.partition(":")
    known = read_yaml(STATED)["gpus"]
    if name not in known:
        raise ConfigError(
            f"--gpu {text}: no rates of {name!r} are known, only of {', '.join(known)}."
            f"{suggest(name, [*known])}"
        )
    count = number if ":" in text else "1"
    if not (count.isdecimal() and 0 < int(count) <= MOST):
        raise ConfigError(f"--gpu {text}: a name and a number up to {MOST}, as in h100:8")
    peaks = {precision: 1e12 * known[name][precision] for precision in ("bf16", "fp32")}
    return Gpus(name=name, count=int(count), peaks=peaks, source=known[name]["source"])


def at_hand() -> Gpus | None:
    """This machine's GPUs, whose peak is measured; None without any."""
    if not torch.cuda.is_available():
        return None
    return Gpus(
        name=torch.cuda.get_device_name(),
        count=torch.cuda.device_count(),
        peaks={precision: throughput.peak(precision, "cuda") for precision in ("bf16", "fp32")},
        source="measured here: the best of four matrix products",
    )


@cache
def trial(
    build: Callable[[], nn.Module], size: tuple[int, ...], *, training: bool, batch: int
) -> float:
    """Operations/s of a network on this processor, the best of some calls on a few images.

    Tries are in turn on one thread and on all: on a busy machine threads wait for each other, and
    one alone is up to a hundred times faster.
    """
    module, sigma = build(), torch.ones(())
    each = throughput.operations(module, size) * (3 if training else 1)
    rows = int(max(1, min(batch, TRIAL // each)))
    x, fastest = torch.rand(rows, *size), float("inf")
    module.train(training and rows > 1)  # BatchNorm needs several
    threads, tried, end = torch.get_num_threads(), 0, time.perf_counter() + SECONDS
    try:
        while tried < TRIES or time.perf_counter() < end:
            torch.set_num_threads(threads if tried % 2 else 1)
            tried, began = tried + 1, time.perf_counter()
            with torch.set_grad_enabled(training):
                out = module(x, sigma)
            if training:
                out.sum().backward()
            fastest = min(fastest, time.perf_counter() - began)
    finally:
        torch.set_num_threads(threads)
    return rows * each / fastest
