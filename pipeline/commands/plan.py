"""``rrcm plan``: what a params.yaml would take, before anything runs."""

import dataclasses
import json
import re
import tempfile
import textwrap
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from pipeline import checked
from pipeline.planning import devices
from pipeline.planning.devices import Gpus, Processor
from pipeline.planning.estimates import Estimate, estimate
from pipeline.planning.work import Planned
from pipeline.project import presets
from pipeline.workflow.plan import declared
from rrcm.config import params
from rrcm.config.params import Params
from rrcm.config.sections import PARAMS
from rrcm.core.errors import StageError
from rrcm.core.files import write_text
from rrcm.core.registry import suggest

WIDTH = 100
NOUNS = {"train": "training", "vote": "inference of"}
NAME, WHAT = 39, 20  # columns of a stage's name, and of its counts
UNITS = ("", "k", "M", "G", "T", "P", "E", "Z", "Y")
TIMES = (("min", 60), ("h", 60), ("days", 24))
SEED = re.compile(r"-seed\d+")
SOON = 120  # of a unit of time: from here on the next one is used


def plan(preset: str | None, *, only: Sequence[str], gpu: str | None, as_json: bool) -> str:
    """Return the estimates of all stages, or of those that ``only`` names and what they need.

    Args:
        preset: Name of a preset; None is the current params.yaml.
        only: Patterns of runs, evaluations or stages; none: all.
        gpu: Devices by name and number, ``h100:8``; None: those of this machine.
        as_json: Return JSON.

    Raises:
        ConfigError: There is no such preset or GPU, or params.yaml is not valid.
        StageError: A pattern matches nothing.
    """
    named = devices.named(gpu) if gpu else None
    text, whole, described = _read(preset)
    stages = declared(text)
    wanted = _needed(stages, only) if only else [*stages]
    planned = Planned(whole)
    on = named or devices.at_hand(planned)
    found = [estimate(planned.stage(name), on) for name in wanted]
    return _json(found, on, described) if as_json else _table(found, on, whole, described)


def _read(preset: str | None) -> tuple[str, Params, str]:
    if preset is None:
        return PARAMS.read_text(encoding="utf-8"), checked.load(), str(PARAMS)
    text, described = presets.found(preset)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "params.yaml")
        write_text(file, text)
        whole = params.load(file)
    checked.check(whole)
    return text, whole, described


def _needed(stages: dict[str, tuple[str, ...]], patterns: Sequence[str]) -> list[str]:
    """The stages whose name, or that of their run or evaluation, matches; and those upstream.

    Raises:
        StageError: A pattern matches nothing.
    """
    wanted: set[str] = set()
    for pattern in patterns:
        found = {
            stage
            for stage in stages
            if fnmatchcase(stage, pattern) or fnmatchcase(stage.partition("@")[2], pattern)
        }
        if not found:
            items = sorted({stage.partition("@")[2] or stage for stage in stages})
            raise StageError(
                f"--only {pattern}: no run, evaluation or stage has such a name; without --only "
                f"all are listed.{suggest(pattern, items)}"
            )
        wanted |= found
    for stage in reversed(stages):  # those upstream come before
        if stage in wanted:
            wanted.update(stages[stage])
    return [stage for stage in stages if stage in wanted]


def _json(found: Iterable[Estimate], on: Gpus | Processor, described: str) -> str:
    rows = []
    for one in found:
        work = dataclasses.asdict(one.work)
        kept = ("name", "operations", "steps", "batch", "images", "draws", "bound", "precision")
        row = {key: work[key] for key in kept}
        row |= {"devices": one.devices, "seconds": one.seconds, "memory_bytes": one.memory}
        row |= {"disk_bytes": one.work.disk, "scratch_bytes": one.work.scratch, "rate": one.how}
        rows.append(row)
    whole = {"params": described, "device": on.name, "devices": on.count, "stages": rows}
    return json.dumps(whole, indent=2)


def _table(found: Sequence[Estimate], on: Gpus | Processor, whole: Params, described: str) -> str:
    groups: dict[str, list[Estimate]] = {}
    for one in found:
        groups.setdefault(one.work.name.partition("@")[0], []).append(one)
    count = f" x {on.count}" if on.count > 1 else ""
    lines = [f"{described}: {len(found)} stages, on {on.name}{count}", ""]
    lines.append(_row("", "", "operations", "time", "memory", "disk"))
    for group, rows in groups.items():
        lines += _group(group, rows)
    total = sum(one.work.operations or 0 for one in found)
    seconds = sum(one.seconds or 0 for one in found)
    bound = any(one.work.bound for one in found)
    disk = sum(one.work.disk or 0 for one in found)
    lines.append(
        _row("all, one after the other", "", scaled(total, "FLOP"), _time(seconds, bound), "",
             scaled(disk, "B"))
    )  # fmt: skip
    return "\n".join([*lines, "", *_how(found, on, whole)])


def _group(group: str, rows: Sequence[Estimate]) -> list[str]:
    if not any(one.work.operations or _unknown(one) for one in rows):
        disk = sum(one.work.disk or 0 for one in rows)
        count = f" ({len(rows)})" if len(rows) > 1 else ""
        what = rows[0].work.what if len(rows) == 1 or not disk else f"each {rows[0].work.what}"
        return [_row(f"{group}{count}", what, "", "", "", scaled(disk, "B") if disk else "")]
    alike: dict[tuple[str, ...], list[str]] = {}  # rows that differ in their seed only
    for one in rows:
        name = one.work.name.partition("@")[2]
        alike.setdefault((SEED.sub("-seed*", name), *_cells(one)), []).append(name)
    lines = [group]
    for (pattern, what, *cells), names in alike.items():
        several = len(names) > 1
        name, count = (pattern, f"{len(names)} x ") if several else (names[0], "")
        lines.append(_row(f"  {name}", f"{count}{what}", *cells))
    return lines


def _cells(one: Estimate) -> tuple[str, ...]:
    work = one.work
    return (
        work.what.replace(" images", "").replace(" steps", "").replace(" draws", ""),
        scaled(work.operations, "FLOP") if work.operations else "not known",
        "" if one.seconds is None else _time(one.seconds, work.bound),
        "" if one.memory is None else scaled(one.memory, "B"),
        scaled(work.disk, "B") if work.disk else "",
    )


def _unknown(one: Estimate) -> bool:
    """Return whether a stage takes long, and cannot be counted."""
    group = one.work.name.partition("@")[0]
    return group in ("sample", "generate") and not one.work.operations


def _row(name: str, what: str, *cells: str) -> str:
    if len(name) > NAME:
        name = f"{name[: NAME - 1]}…"
    widths = (10, 10, 8, 8)
    line = f"{name:{NAME}} {what:{WHAT}}" + "".join(
        f" {cell:>{width}}" for cell, width in zip(cells, widths, strict=True)
    )
    return line.rstrip()


OPERATIONS = (
    "operations: those of matrix products and convolutions, two per multiply-add, of one image "
    "through each network, counted by PyTorch; times the forward passes that the method's loss "
    "makes for an image, a backward pass as two, and one more where activations are recomputed; "
    "times images and steps or draws. Not counted: heads of a pre-training, augmentation, noise."
)
MEMORY = (
    "memory: on each device: weights, gradients, moments of the optimizer, moving averages and the "
    "best weights so far, and what a forward pass keeps of an image (counted in float32, half for "
    "bf16) times images; for sampling, weights and the widest operation. Not counted: work space "
    "of libraries, and the block that is being recomputed."
)
DISK = (
    "disk: results once, and once more in DVC's cache where the file system cannot link: shards "
    "as tars, weights and ONNX files in float32, votes at 64 bytes a look."
)


def _how(found: Sequence[Estimate], on: Gpus | Processor, whole: Params) -> list[str]:
    """Return how each number was reached, as paragraphs."""
    said = [
        "counts: training: steps x images of a batch; sampling: images x most draws of each. "
        "A name with * stands for several stages; time, memory and disk are of one of them.",
        OPERATIONS,
        *_speeds(found, on),
    ]
    if any(one.work.bound for one in found):
        draws, rule = whole.sample.n0 + whole.sample.n, whole.sample.stop
        early = f"the stopping rule {rule}" if rule != "none" else "sample.label_aware"
        said.append(
            f"≤: an upper bound, {draws:,} draws of every image; {early} may end an image earlier, "
            "and how early depends on the network."
        )
    scratch = max(one.work.scratch for one in found)
    kept = f" The state of a running training is up to {scaled(scratch, 'B')} more."
    said += [MEMORY, DISK + (kept if scratch else "")]
    if big := [one.work.name for one in found if (one.memory or 0) > on.bytes]:
        said.append(f"does not fit into {scaled(on.bytes, 'B')} of memory: {', '.join(big)}")
    if unknown := [one.work.name for one in found if _unknown(one)]:
        said.append(f"not known: the size of an imported denoiser: {', '.join(unknown)}")
    wrapped = (textwrap.wrap(part, WIDTH - 2, subsequent_indent="  ") for part in said)
    return [line for lines in wrapped for line in lines]


def _speeds(found: Sequence[Estimate], on: Gpus | Processor) -> list[str]:
    """Return where the speeds come from."""
    if isinstance(on, Processor):
        rates = {(one.work.timed, one.how): None for one in found if one.how}
        named = (f"{NOUNS[kind]} {name}, {how}" for (kind, name), how in rates)
        return [f"time: operations by the speed of {'; '.join(named)}."]
    rates = {one.how: None for one in found if one.how}
    said = [
        f"time: operations by {'; and by '.join(rates)}; but at least {1e6 * on.launch:g} "
        "microseconds (assumed) for each operator of a training, which small networks wait for. "
        "Loading of images is not in it."
    ]
    if on.count > 1:
        said.append(
            "Each evaluation is counted on one GPU, one after the other. `rrcm repro --jobs` runs "
            "several at a time, and --shares divides one; benchmarks.makespan simulates it."
        )
    return said


def _time(seconds: float, bound: bool) -> str:
    return f"{'≤ ' if bound else ''}{brief(seconds)}"


def brief(seconds: float) -> str:
    """Return a duration with three digits: ``19.5 h``."""
    value, unit = seconds, "s"
    for name, size in TIMES:
        if value < SOON:
            break
        value, unit = value / size, name
    return f"{_short(value)} {unit}"


def scaled(value: float, unit: str) -> str:
    """Return a number with three digits and a decimal prefix: ``1.53 GB``."""
    power = 0
    while value >= 999.5 and power < len(UNITS) - 1:
        value, power = value / 1000, power + 1
    return f"{_short(value)} {UNITS[power]}{unit}"


def _short(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"
