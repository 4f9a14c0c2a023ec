"""``rrcm plan``: what a params.yaml would take, before anything runs."""

import json
import re
import tempfile
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from pipeline import checked
from pipeline.project import presets
from pipeline.project.planning import devices
from pipeline.project.planning.devices import Gpus
from pipeline.project.planning.work import Planned, Work
from pipeline.workflow.plan import declared
from rrcm.config import params
from rrcm.config.params import Params
from rrcm.config.sections import PARAMS
from rrcm.core.errors import StageError
from rrcm.core.files import write_text
from rrcm.core.registry import suggest

WIDTH = 100
NAME, WHAT = 44, 24  # columns of a stage's name, and of its counts
UNITS = ("", "k", "M", "G", "T", "P", "E", "Z", "Y")
SEED = re.compile(r"-seed\d+")


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """One stage, and its seconds; None where nothing was counted."""

    work: Work
    seconds: float | None


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
    gpus = devices.named(gpu) if gpu else devices.at_hand()
    text, whole, described = _read(preset)
    planned, stages = Planned(whole), declared(text)
    works = [planned.stage(name) for name in (_needed(stages, only) if only else stages)]
    estimates = [Estimate(work=work, seconds=planned.seconds(work, gpus)) for work in works]
    on = "this processor" if gpus is None else f"{gpus.name} x {gpus.count}"
    if as_json:
        rows = [asdict(one.work) | {"seconds": one.seconds} for one in estimates]
        return json.dumps({"params": described, "device": on, "stages": rows}, indent=2)
    head = f"{described}: {len(estimates)} stages, on {on}"
    notes = [part for note in _notes(estimates, gpus, planned) for part in _wrapped(note)]
    return "\n".join([head, "", *_table(estimates), "", *notes])


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


def _table(estimates: Sequence[Estimate]) -> list[str]:
    """A row for each stage, or for those of a group that differ in their seed only."""
    lines = [_row("", "", "operations", "time", "disk")]
    groups: dict[str, dict[tuple[str, ...], list[str]]] = {}
    for one in estimates:
        group, _, name = one.work.name.partition("@")
        pattern = SEED.sub("-seed*", name) if one.work.operations != 0 else "*" if name else ""
        rows = groups.setdefault(group, {})
        rows.setdefault((pattern, *_cells(one)), []).append(name)
    for group, rows in groups.items():
        for (pattern, what, *cells), names in rows.items():
            several = len(names) > 1
            name = pattern if several else names[0]
            count = f"{len(names)} x " if several else ""
            lines.append(_row(f"{group}@{name}" if name else group, f"{count}{what}", *cells))
    seconds = sum(one.seconds or 0 for one in estimates)
    bound = "≤ " if any(one.work.bound for one in estimates) else ""
    operations = scaled(sum(one.work.operations or 0 for one in estimates), "FLOP")
    disk = scaled(sum(one.work.disk for one in estimates), "B")
    return [*lines, _row("all, one after the other", "", operations, bound + brief(seconds), disk)]


def _cells(one: Estimate) -> tuple[str, ...]:
    work = one.work
    operations, seconds = "", ""
    if work.operations is None:
        operations = "not known"
    elif work.operations and one.seconds is not None:
        operations = scaled(work.operations, "FLOP")
        seconds = f"{'≤ ' if work.bound else ''}{brief(one.seconds)}"
    what = work.what.replace(" images", "").replace(" steps", "").replace(" draws", "")
    return what, operations, seconds, scaled(work.disk, "B") if work.disk else ""


def _row(name: str, what: str, *cells: str) -> str:
    if len(name) > NAME:
        name = f"{name[: NAME - 1]}…"
    columns = zip(cells, (10, 10, 9), strict=True)
    return f"{name:{NAME}} {what:{WHAT}}{''.join(f' {c:>{n}}' for c, n in columns)}".rstrip()


def _notes(estimates: Sequence[Estimate], gpus: Gpus | None, planned: Planned) -> list[str]:
    """How the numbers were reached, as paragraphs."""
    notes = [
        "counts: steps x images of a batch; images x most draws of each. A name with * stands for "
        "several stages, and its numbers are of one of them. docs/planning.md has the details."
    ]
    if gpus is None:
        notes.append("time: operations by the speed of each network, timed here for a moment.")
    else:
        share, launch = planned.stated["utilisation"], planned.stated["launch"]
        peaks = {
            precision: f"{peak / 1e12:.4g} TFLOP/s {precision}"
            for precision, peak in gpus.peaks.items()
        }
        notes.append(
            f"time: operations by {share:g} (assumed) x {', '.join(peaks.values())} "
            f"({gpus.source}), but at least {1e6 * launch:g} microseconds (assumed) for each "
            "operator of a training. Loading of images is not in it."
        )
    if any(one.work.bound for one in estimates):
        notes.append("≤: an upper bound: a stopping rule may end an image earlier.")
    if unknown := [one.work.name for one in estimates if one.work.operations is None]:
        notes.append(f"not known: the size of an imported denoiser: {', '.join(unknown)}")
    return notes


def _wrapped(note: str) -> list[str]:
    return textwrap.wrap(note, WIDTH - 2, subsequent_indent="  ")


def brief(seconds: float) -> str:
    """Return a duration with three digits: ``19.5 h``."""
    value, unit = seconds, "s"
    for name, size in (("min", 60), ("h", 60), ("days", 24)):
        if value < 120:  # of a unit; from here on the next one is used
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
