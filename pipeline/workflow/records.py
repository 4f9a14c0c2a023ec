"""Compares a stage's inputs in dvc.lock with the current ones, and renews entries of dvc.lock.

No stage is run for either, and files that are only in DVC's cache or remote are not fetched.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dvc.dependency import Dependency
from dvc.dependency.param import ParamsDependency
from dvc.repo.reproduce import plan_repro
from dvc.stage import PipelineStage
from dvc.stage.serialize import to_single_stage_lockfile

from pipeline import checked
from pipeline.workflow import dvc_lock
from pipeline.workflow.changes import Changes, Places
from pipeline.workflow.plan import meant, opened, upstream
from rrcm.config.params import modern
from rrcm.core.errors import StageError


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """A stage's recorded inputs and the current ones.

    ``entry`` is its entry of dvc.lock, if there is one; ``before`` and ``now`` are DVC's hashes of
    its files and folders of code; ``added`` are parameters that are new since, in dotted form;
    ``obstacles`` are the reasons, other than code, command and new parameters, why it is not up to
    date.
    """

    name: str
    upstream: tuple[str, ...]
    command: str
    entry: dict[str, Any]
    before: dict[str, str]
    now: dict[str, str]
    added: tuple[str, ...]
    obstacles: tuple[str, ...]


@dvc_lock.consistent
def load(targets: Sequence[str] = ()) -> list[Record]:
    """The stages that make ``targets``, and those upstream, in the order of `dvc repro`.

    Raises:
        ConfigError: params.yaml is not valid.
        StageError: dvc.yaml or dvc.lock is not valid, or a target matches no stage.
    """
    checked.load()
    entries = dvc_lock.parse().get("stages", {})
    with opened() as (graph, order):
        wanted = [stage for word in targets for stage in meant(word, order)] or order
        needed, changes = {*plan_repro(graph, wanted)}, Changes(graph, here=True)
        made = Places((out.def_path, out) for stage in graph for out in stage.outs)
        above = upstream(graph, order)
        return [
            Record(
                name=stage.addressing,
                upstream=tuple(one.addressing for one in above[stage]),
                command=stage.cmd,
                entry=(entry := entries.get(stage.addressing, {})),
                before={
                    row["path"]: row["md5"]
                    for row in entry.get("deps", [])
                    if not made.overlapping(row["path"])
                },
                now={dep.def_path: dep.get_hash().value for dep in _code(stage, changes)},
                added=tuple(_added(stage, entry)),
                obstacles=tuple(_obstacles(stage, changes, entry)),
            )
            for stage in order
            if stage in needed
        ]


def _code(stage: PipelineStage, changes: Changes) -> list[Dependency]:
    """The dependencies that git keeps: no parameters, and no outputs of stages."""
    inputs = [dep for dep in stage.deps if not isinstance(dep, ParamsDependency)]
    code = [dep for dep in inputs if not changes.sources(dep)]
    for dep in code:
        if not dep.exists:
            raise StageError(f"{dep.def_path}: stage {stage.addressing} needs it; it is missing")
    return code


def _obstacles(stage: PipelineStage, changes: Changes, entry: Mapping[str, Any]) -> Iterator[str]:
    """The obstacles of a `Record`."""
    if not entry:
        yield "it has not run yet"
        return
    data = [dep for dep in stage.deps if changes.sources(dep)]
    for dep in data:
        here = dep.exists and all(out.exists for out in changes.sources(dep))
        if changes.in_input(dep) if here else changes.in_lock(dep):
            yield f"{dep.def_path} is not what it ran on"
    for dep, had, has in _parameters(stage, entry):
        differ = {key for key in had.keys() | {*dep.params} if had.get(key) != has.get(key)}
        if keys := {k for k in differ if k not in had or _new(had[k], has.get(k), k) is None}:
            yield f"{dep.def_path} says otherwise: {', '.join(sorted(keys))}"
    recorded = {row["path"] for row in entry.get("outs", [])}
    if paths := recorded ^ {out.def_path for out in stage.outs}:
        yield f"{', '.join(sorted(paths))}: an output before or now, but not both"
    for out in stage.outs:
        if out.exists and out.hash_info and out.changed_checksum():
            yield f"{out.def_path} is not what dvc.lock has; `dvc checkout {out.def_path}`"


def _added(stage: PipelineStage, entry: Mapping[str, Any]) -> Iterator[str]:
    for _, had, has in _parameters(stage, entry):
        for key in had.keys() & has.keys():
            yield from _new(had[key], has[key], key) or ()


def _parameters(
    stage: PipelineStage, entry: Mapping[str, Any]
) -> Iterator[tuple[ParamsDependency, dict[str, Any], dict[str, Any]]]:
    """A stage's files of parameters, with the values that dvc.lock has, and the current ones."""
    for dep in stage.deps:
        if isinstance(dep, ParamsDependency):
            had = modern(entry.get("params", {}).get(dep.def_path, {}))
            yield dep, had, dep.read_params()


def _new(had: Any, has: Any, name: str) -> list[str] | None:
    """Keys of mappings in ``has`` that ``had`` lacks, dotted; None if anything else differs."""
    if not (isinstance(had, dict) and isinstance(has, dict)):
        return [] if had == has else None
    if had.keys() - has.keys():
        return None
    added = [f"{name}.{key}" for key in has if key not in had]
    for key, value in had.items():
        if (inner := _new(value, has[key], f"{name}.{key}")) is None:
            return None
        added += inner
    return added


def renewed(names: Sequence[str], *, rewritten: Sequence[str] = ()) -> dict[str, Any]:
    """Entries for dvc.lock, as `dvc commit` would write them, of stages without obstacles.

    The command, the parameters and the hashes of code are the current ones; data and outputs are as
    in dvc.lock, whether they are here or not. Only outputs in ``rewritten`` are hashed and added to
    DVC's cache.
    """
    entries = {}
    with opened() as (graph, order):
        changes = Changes(graph, here=True)
        for stage in order:
            if stage.addressing in names:
                for dep in _code(stage, changes):
                    dep.save()
                for dep in stage.deps:
                    if isinstance(dep, ParamsDependency):
                        dep.save()
                for out in stage.outs:
                    if out.def_path in rewritten:
                        out.save()
                        out.commit()
                entries[stage.addressing] = to_single_stage_lockfile(stage)
    return entries
