"""``rrcm plan``: what a params.yaml would take, before anything runs."""

import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from matplotlib.ticker import EngFormatter

from pipeline import checked
from pipeline.project import presets
from pipeline.project.patterns import matching
from pipeline.project.work import Planned, Work
from pipeline.runtime import throughput
from pipeline.workflow.plan import declared
from rrcm.config.sections import PARAMS
from rrcm.core.errors import ConfigError
from rrcm.core.registry import suggest

# Dense rates (without sparsity) as published, in operations/s: bf16 of matrix units that add in
# float32, fp32 without TF32, which sampling here does not use. Sources: the datasheets of A100
# (SXM, 80 GB), H100 and H200 (SXM), and NVIDIA's whitepaper of the Ada architecture.
PEAKS = {
    "a100": {"bf16": 312e12, "fp32": 19.5e12},
    "h100": {"bf16": 989.4e12, "fp32": 66.9e12},
    "h200": {"bf16": 989.4e12, "fp32": 66.9e12},
    "rtx4090": {"bf16": 165.2e12, "fp32": 82.6e12},
}
# Share of the peak that a stage reaches: assumed; pre-training on an H200 reached 0.36 to 0.39.
# Published trainings of large transformers report 0.2 to 0.5 (0.46: Chowdhery et al., 2022,
# arXiv:2204.02311).
UTILISATION = 0.35
MOST = 1024  # GPUs
WIDTH, NAME, WHAT = 100, 44, 24  # columns of a line, of a stage's name, and of its counts
SCALED = EngFormatter("FLOP", places=1)  # such as 1.5 GFLOP
SEED = re.compile(r"-seed\d+")


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """``count`` GPUs or the processor, and the peak of each by precision, in operations/s."""

    name: str
    count: int
    peaks: Mapping[str, float]

    def seconds(self, work: Work) -> float | None:
        """How long a stage takes here alone; None if its operations are unknown."""
        if work.operations is None:
            return None
        peak = self.peaks["fp32" if work.precision == "fp32" else "bf16"]
        return work.operations / (UTILISATION * peak * min(work.devices or self.count, self.count))


def named(text: str) -> Device:
    """GPUs such as ``h100:8``.

    Raises:
        ConfigError: The peak of the GPU is not known, or the number is none.
    """
    name, colon, number = text.partition(":")
    if name not in PEAKS:
        raise ConfigError(
            f"--gpu {text}: no rates of {name!r} are known, only of {', '.join(PEAKS)}."
            f"{suggest(name, [*PEAKS])}"
        )
    count = number if colon else "1"
    if not (count.isdecimal() and 0 < int(count) <= MOST):
        raise ConfigError(f"--gpu {text}: a name and a number up to {MOST}, as in h100:8")
    return Device(name=name, count=int(count), peaks=PEAKS[name])


def at_hand() -> Device:
    """This machine's GPUs, or without any its processor; their peak is measured."""
    gpus = torch.cuda.device_count()
    kind = "cuda" if gpus else "cpu"
    return Device(
        name=torch.cuda.get_device_name() if gpus else "this processor",
        count=gpus or 1,
        peaks={precision: throughput.peak(precision, kind) for precision in ("bf16", "fp32")},
    )


def plan(preset: str | None, *, only: Sequence[str], gpu: str | None) -> str:
    """Return the estimates of all stages, or of those that ``only`` matches and what they need.

    Without ``preset``, of the current params.yaml; without ``gpu``, on this machine.

    Raises:
        ConfigError: There is no such preset or GPU, a pattern matches nothing, or params.yaml is
            not valid.
    """
    device = named(gpu) if gpu else at_hand()
    if preset is None:
        text, params, described = PARAMS.read_text(encoding="utf-8"), checked.load(), str(PARAMS)
    else:
        text, params, described = presets.resolve(preset)
        checked.check(params)
    planned, stages = Planned(params), declared(text)
    names = _needed(stages, only) if only else [*stages]
    works = {name: work for name in names if (work := planned.stage(name))}
    head = f"{described}: {len(names)} stages, on {device.name} x {device.count}"
    notes = [
        textwrap.fill(n, WIDTH, subsequent_indent="  ") for n in _notes([*works.values()], device)
    ]
    return "\n".join([head, "", *_table(works, device), "", *notes])


def _needed(stages: dict[str, tuple[str, ...]], patterns: Sequence[str]) -> list[str]:
    """The stages that match a pattern, and those upstream."""
    wanted = {*matching(stages, patterns, kind="run, evaluation or stage")}
    for stage in reversed(stages):  # those upstream come before
        if stage in wanted:
            wanted.update(stages[stage])
    return [stage for stage in stages if stage in wanted]


def _table(works: Mapping[str, Work], device: Device) -> list[str]:
    """A row for each stage, or for those of a group that differ in their seed only."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for name, work in works.items():
        rows.setdefault((SEED.sub("-seed*", name), *_cells(work, device)), []).append(name)
    lines = [_row("", "", "operations", "time")]
    for (pattern, what, *cells), names in rows.items():
        several = len(names) > 1
        name = pattern if several else names[0]
        lines.append(_row(name, f"{len(names)} x {what}" if several else what, *cells))
    every = works.values()
    seconds = sum(device.seconds(work) or 0 for work in every)
    bound = "≤ " * any(work.bound for work in every)
    operations = SCALED(sum(work.operations or 0 for work in every))
    return [*lines, _row("all, one after the other", "", operations, bound + brief(seconds))]


def _cells(work: Work, device: Device) -> tuple[str, str, str]:
    if (seconds := device.seconds(work)) is None:
        return work.what, "not known", ""
    return work.what, SCALED(work.operations), "≤ " * work.bound + brief(seconds)


def _row(name: str, what: str, operations: str, time: str) -> str:
    name = name if len(name) <= NAME else f"{name[: NAME - 1]}…"
    return f"{name:{NAME}} {what:{WHAT}} {operations:>10} {time:>10}".rstrip()


def _notes(works: Sequence[Work], device: Device) -> list[str]:
    """How the numbers were reached, as paragraphs."""
    peaks = ", ".join(f"{peak / 1e12:.4g} TFLOP/s {name}" for name, peak in device.peaks.items())
    notes = [
        "counts: steps x images of a batch; images x most draws of each. A name with * stands for "
        "several stages, and its numbers are of one of them. Stages that are not listed take "
        "little. docs/planning.md has the details.",
        f"time: operations by {UTILISATION:g} (assumed) x {peaks}. Loading of images and starts "
        "of kernels are not in it.",
    ]
    if any(work.bound for work in works):
        notes.append("≤: an upper bound: a stopping rule may end an image earlier.")
    if any(work.operations is None for work in works):
        notes.append("not known: the size of an imported denoiser; not in the sum.")
    return notes


def brief(seconds: float) -> str:
    """Return a duration with three digits: ``19.5 h``."""
    value, unit = seconds, "s"
    for name, size in (("min", 60), ("h", 60), ("days", 24)):
        if value < 120:  # of a unit; from here on the next one is used
            break
        value, unit = value / size, name
    return f"{value:.3g} {unit}" if value < 1000 else f"{value:,.0f} {unit}"
