"""Reads DVC's graph: the stages, their order, and which are out of date.

Nothing here runs a stage or waits for one: a plan can be made while stages run.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import chain
from pathlib import Path
from typing import Any

from dvc.repo.reproduce import get_active_graph, plan_repro
from dvc.stage import PipelineStage

from pipeline import checked
from pipeline.runtime import code, with_dvc
from pipeline.workflow import careful_dvc, lockfile
from pipeline.workflow.changes import Changes, find, overlap
from rrcm.core.errors import StageError
from rrcm.core.files import write_text
from rrcm.core.registry import suggest


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """A stage of a plan.

    ``upstream`` are the nodes of the same plan that must run first. ``devices`` is the number of
    GPUs that it takes; 0: all of a host's. ``inputs`` are the outputs of other stages and of .dvc
    files, or parts of them, that it reads: no code, no parameters. ``reason``: why DVC would run or
    restore it now, regardless of stages upstream; empty if it would not. ``forced``: it is to run
    even if nothing changed. ``lacks``: the data of a .dvc file that it reads and that are not here,
    and the command that makes them; empty if there are none.
    """

    name: str
    upstream: tuple[str, ...]
    devices: int
    inputs: tuple[str, ...]
    reason: str
    forced: bool
    lacks: str = ""


def load(
    targets: Sequence[str] = (),
    *,
    force: Sequence[str] = (),
    here: bool = True,
    allow_missing: bool = False,
) -> list[Node]:
    """The stages that make ``targets``, and those upstream, in the order of `dvc repro`.

    Args:
        targets: Stages (``certify@tiny-rrcm-s050-e050``), groups (``certify``), patterns
            (``certify@tiny-*``) or paths of outputs; none: all stages.
        force: Stages, groups, patterns or outputs to run even if up to date.
        here: Whether to check the data of this workspace. If not, a stage is unchanged if its entry
            in dvc.lock has the current command, code and parameters, and the hashes of its inputs
            that dvc.lock has for them as outputs.
        allow_missing: As in DVC: data, or parts of it, that are not here count as in dvc.lock.

    Raises:
        ConfigError: params.yaml is not valid.
        StageError: dvc.yaml or dvc.lock is not valid, or a target or pattern matches no stage.
    """
    checked.load()
    with opened() as (graph, order):
        forced = {stage for word in force for stage in meant(word, order)}
        wanted = [stage for word in targets for stage in meant(word, order)] or order
        needed = {*plan_repro(graph, [*wanted, *forced])}
        changes = Changes(graph, here=here, allow_missing=allow_missing)
        above = upstream(graph, order)
        return [
            Node(
                name=stage.addressing,
                upstream=tuple(one.addressing for one in above[stage]),
                devices=_devices(stage, changes.values),
                inputs=tuple(
                    max(dep.def_path, out.def_path, key=len)  # the inner one
                    for dep in stage.deps
                    for out in changes.sources(dep)
                ),
                reason=changes.in_stage(stage),
                forced=stage in forced,
                lacks=_lacks(stage, changes) if here and not allow_missing else "",
            )
            for stage in order
            if stage in needed
        ]


def refreshed() -> None:
    """Have DVC write what the code means, if the code has changed since it last did.

    Raises:
        StageError: DVC failed, or the code is no valid Python.
    """
    if not code.STAGE_FILE.exists():
        return
    with with_dvc.opened() as repo:
        (stage,) = repo.stage.collect(code.STAGE)
        parts = [*stage.deps, *stage.outs]
        changed = any(not one.exists or one.get_hash() != one.hash_info for one in parts)
    if changed:
        with careful_dvc.repro([code.STAGE]) as process:
            output = process.stdout.read()
        if process.returncode != 0:
            raise StageError(f"{code.STAGE}: {' '.join(output.decode().split())}")


@contextmanager
def opened(folder: str = ".") -> Iterator[tuple[Any, list[PipelineStage]]]:
    """DVC's graph, including data tracked by .dvc files, and its stages in `dvc repro`'s order.

    Without the stage of `code`, which `refreshed` runs: it has no part in what others compute.

    Raises:
        StageError: As `with_dvc.opened`.
    """
    try:
        with with_dvc.opened(folder) as repo:
            graph = get_active_graph(repo.index.graph)
            order = plan_repro(graph, repo.index.stages)
            others = [stage for stage in order if stage.addressing != code.STAGE]
            yield graph, [stage for stage in others if not stage.is_data_source]
    except StageError as error:
        if str(lockfile.LOCKFILE) in str(error):
            lockfile.read()  # raises an error with the way out
        raise


def declared(params: str) -> dict[str, tuple[str, ...]]:
    """The stages that dvc.yaml has with the text ``params`` as params.yaml, in order.

    Each with those directly upstream. DVC reads both in a temporary folder, and no data.

    Raises:
        StageError: DVC cannot read dvc.yaml.
    """
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy("dvc.yaml", folder)
        write_text(Path(folder, "params.yaml"), params)
        write_text(Path(folder, ".dvc/config"), "[core]\n    no_scm = True\n")
        with opened(folder) as (graph, order):
            above = upstream(graph, order)
            return {stage.name: tuple(one.name for one in above[stage]) for stage in order}


def upstream(
    graph: Any, order: Sequence[PipelineStage]
) -> dict[PipelineStage, list[PipelineStage]]:
    """The stages directly upstream of each, in order."""
    place = {stage: number for number, stage in enumerate(order)}
    return {s: sorted(place.keys() & graph.successors(s), key=place.__getitem__) for s in order}


def meant(word: str, stages: Sequence[PipelineStage]) -> list[PipelineStage]:
    """The stages that a target of the command line matches."""
    path = os.path.normpath(word)
    matches = (
        [s for s in stages if s.addressing == word]
        or [s for s in stages if s.addressing.startswith(f"{word}@")]
        or [s for s in stages if fnmatchcase(s.addressing, word)]
        or [s for s in stages if any(overlap(path, out.def_path) for out in s.outs)]
    )
    if not matches and os.path.exists(f"{path}.dvc"):
        raise StageError(f"{word}: no stage makes it; {path}.dvc tracks it, and `dvc pull` gets it")
    if not matches:
        groups = {stage.addressing.partition("@")[0] for stage in stages}
        known = [*groups, *(s.addressing for s in stages)]
        known += [out.def_path for s in stages for out in s.outs]
        raise StageError(
            f"{word}: dvc.yaml has no such stage, group or output; `dvc stage list` shows them."
            f"{suggest(word, known)}"
        )
    return matches


def _lacks(stage: PipelineStage, changes: Changes) -> str:
    for out in chain.from_iterable(map(changes.sources, stage.deps)):
        if out.stage.is_data_source and not out.exists:
            name = str(find(changes.values, "data.name", "NAME")).replace("_", "-")
            return f"{out.def_path} is not here; `rrcm data {name}` makes it"
    return ""


def _devices(stage: PipelineStage, values: Mapping[str, Any]) -> int:
    """``meta.devices`` of dvc.yaml: a number, or the dotted path of a parameter with one."""
    asked = (stage.meta or {}).get("devices", 1)
    devices = find(values, asked) if isinstance(asked, str) else asked
    if type(devices) is not int or devices < 0:
        raise StageError(
            f"dvc.yaml: stage {stage.addressing}: meta.devices: {asked}: must be how many it "
            f"takes, or the path of a parameter that says so, got {devices!r}"
        )
    return devices


def tidy() -> None:
    """Sort the stages of dvc.lock as `dvc repro` would write them, one after the other.

    Entries of stages that dvc.yaml no longer has come last, in their old order.

    Raises:
        StageError: dvc.yaml or dvc.lock cannot be read.
    """
    with opened() as (_, order):
        names = [stage.addressing for stage in order]
    with lockfile.edited() as stages:
        before = dict(stages)
        stages.clear()
        stages |= {name: before[name] for name in names if name in before} | before
