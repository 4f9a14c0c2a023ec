"""The graph as DVC has it: which stages there are, in which order, and which are out of date.

Nothing here runs a stage or waits for one: a plan can be made while others run. What is read of
dvc.lock is whole, and what is written to it is written under DVC's lock, whole or not at all.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from copy import deepcopy
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from threading import Event
from typing import Any

from dvc.dependency.param import ParamsDependency
from dvc.exceptions import DvcException
from dvc.output import Output
from dvc.repo import Repo
from dvc.repo.reproduce import get_active_graph, plan_repro
from dvc.stage import PipelineStage
from dvc_data.hashfile.hash_info import HashInfo
from dvc_data.hashfile.tree import Tree

from pipeline import checked
from pipeline.flow import lockfile
from rrcm.config import PARAMS
from rrcm.errors import StageError, one_line
from rrcm.parsing import read_yaml
from rrcm.registry import suggest

ORDER = ("cmd", "deps", "params", "outs")  # of an entry of dvc.lock
FIELDS = ("path", "hash", "md5", "size", "nfiles", "isexec")


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """A stage to be looked at.

    ``upstream`` are nodes of the same plan that come first. ``devices`` are the slots that it
    takes; 0: all of a host's. ``inputs`` are the paths that it reads and that another stage makes
    or a .dvc file tracks: no code, no parameters. ``changed``: DVC would run or restore it now,
    looking at it alone. ``forced``: it is to run even if nothing changed.
    """

    name: str
    upstream: tuple[str, ...]
    devices: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    changed: bool
    forced: bool


def load(
    targets: Sequence[str] = (), *, force: Sequence[str] = (), here: bool = True
) -> list[Node]:
    """The stages that make ``targets``, and those before them, in the order of `dvc repro`.

    Args:
        targets: Stages (``certify@tiny-rrcm-s050-e050``), groups (``certify``), patterns
            (``certify@tiny-*``) or paths of outputs; none: all stages.
        force: The same, of stages that are to run in any case.
        here: Whether data of this workspace count. Without, a stage is unchanged if dvc.lock has
            it with the command, code and parameters of now, made of what its inputs are there.

    Raises:
        ConfigError: params.yaml says something that we do not understand.
        StageError: dvc.yaml or dvc.lock does, or no stage is meant by one of the words.
    """
    checked.load()
    return lockfile.consistent(partial(_load, targets, force=force, here=here))


def _load(targets: Sequence[str], *, force: Sequence[str], here: bool) -> list[Node]:
    try:
        with closing(Repo(".")) as repo:
            return _plan(repo, targets, force=force, here=here)
    except DvcException as error:
        raise StageError(f"dvc.yaml: {one_line(error)}") from None


def _plan(repo: Repo, targets: Sequence[str], *, force: Sequence[str], here: bool) -> list[Node]:
    graph = get_active_graph(repo.index.graph)
    order = [s for s in plan_repro(graph, repo.index.stages) if not s.is_data_source]
    forced = {stage for word in force for stage in _meant(word, order)}
    wanted = [stage for word in targets for stage in _meant(word, order)] or order
    needed = {*plan_repro(graph, [*wanted, *forced])}
    sight = _Sight(
        values=read_yaml(PARAMS) if PARAMS.exists() else {},
        made={out.fs_path: out for stage in graph for out in stage.outs},
        here=here,
    )
    return [
        Node(
            name=stage.addressing,
            upstream=tuple(s.addressing for s in order if graph.has_edge(stage, s)),
            devices=_devices(stage, sight.values),
            inputs=tuple({dep.def_path: None for dep in stage.deps if sight.sources(dep)}),
            outputs=tuple(out.def_path for out in stage.outs),
            changed=sight.changed(stage),
            forced=stage in forced,
        )
        for stage in order
        if stage in needed
    ]


def _meant(word: str, stages: Sequence[PipelineStage]) -> list[PipelineStage]:
    """The stages that a word of the command line means."""
    path = os.path.normpath(word)
    found = (
        [s for s in stages if s.addressing == word]
        or [s for s in stages if s.addressing.startswith(f"{word}@")]
        or [s for s in stages if fnmatchcase(s.addressing, word)]
        or [s for s in stages if any(overlap(path, out.def_path) for out in s.outs)]
    )
    if not found and os.path.exists(f"{path}.dvc"):
        raise StageError(f"{word}: no stage makes it; {path}.dvc tracks it, and `dvc pull` gets it")
    if not found:
        groups = {stage.addressing.partition("@")[0] for stage in stages}
        known = [*groups, *(s.addressing for s in stages)]
        known += [out.def_path for s in stages for out in s.outs]
        raise StageError(
            f"{word}: dvc.yaml has no such stage, group or output; `dvc stage list` shows them."
            f"{suggest(word, known)}"
        )
    return found


def overlap(first: str, second: str) -> bool:
    """Whether two paths are the same, or one is in the other."""
    return f"{first}/".startswith(f"{second}/") or f"{second}/".startswith(f"{first}/")


def _devices(stage: PipelineStage, values: Mapping[str, Any]) -> int:
    """``meta.devices`` of dvc.yaml: a number, or the dotted path of a parameter that is one."""
    said = (stage.meta or {}).get("devices", 1)
    found = _find(values, said) if isinstance(said, str) else said
    if type(found) is not int or found < 0:
        where = f" ({said} in {PARAMS})" if isinstance(said, str) else ""
        raise StageError(
            f"dvc.yaml: stage {stage.addressing}: meta.devices must be how many it takes, or the "
            f"path of a parameter that says so, got {found!r}{where}"
        )
    return found


@dataclass(kw_only=True, slots=True)
class _Sight:
    """What there is to be seen of all stages, looked at once."""

    values: Mapping[str, Any]  # of params.yaml
    made: Mapping[str, Output]  # by path
    here: bool  # whether this workspace has the data; else dvc.lock alone tells of them
    hashes: dict[tuple[str, str], HashInfo | None] = field(default_factory=dict)

    def sources(self, dep: Output) -> list[Output]:
        """The outputs that a dependency is, is in, or contains."""
        if isinstance(dep, ParamsDependency):
            return []
        return [out for path, out in self.made.items() if overlap(dep.fs_path, path)]

    def changed(self, stage: PipelineStage) -> bool:
        """As `dvc status` finds it, without its locks: a stage at work counts as changed."""
        inputs = [] if stage.frozen else stage.deps
        try:
            return (
                stage.changed_stage()
                or stage.is_callback
                or stage.always_changed
                or any(self._input_changed(dep) for dep in inputs)
                or any(self._output_changed(out) for out in stage.outs)
            )
        except OSError:  # files come and go under a stage at work
            return True

    def _input_changed(self, dep: Output) -> bool:
        if isinstance(dep, ParamsDependency) and (dep.def_path != str(PARAMS) or not dep.params):
            return bool(dep.status())
        if isinstance(dep, ParamsDependency):
            known = dep.hash_info.value or {}
            read = {key: _find(self.values, key, dep) for key in dep.params}
            return any(key not in known or known[key] != read[key] for key in read)
        if not self.here and (sources := self.sources(dep)):
            return self._made_anew(dep, sources)
        return dep.hash_info != self._hash(dep)

    def _output_changed(self, out: Output) -> bool:
        """Elsewhere, DVC's cache may have it; what git keeps must be as dvc.lock has it."""
        if self.here:
            return bool(out.status())
        return not out.hash_info or (not out.use_cache and out.exists and bool(out.status()))

    def _made_anew(self, dep: Output, sources: Sequence[Output]) -> bool:
        """Whether dvc.lock has a stage made of another input than it has that input itself."""
        if not dep.hash_info or not all(out.hash_info for out in sources):
            return True
        if [out.fs_path for out in sources] == [dep.fs_path]:
            return dep.hash_info != sources[0].hash_info
        if any(out.hash_info.isdir for out in sources):  # what is in it, only its files can tell
            return dep.exists and dep.hash_info != self._hash(dep)
        return dep.hash_info != _folder(dep, sources)

    def _hash(self, dep: Output) -> HashInfo | None:
        """Of the file or folder; the same code is a dependency of many stages."""
        key = (dep.fs_path, dep.hash_name)
        if key not in self.hashes:
            self.hashes[key] = dep.get_hash() if dep.exists else None
        return self.hashes[key]


def _folder(dep: Output, files: Iterable[Output]) -> HashInfo:
    """The hash of a folder of these outputs and nothing else."""
    tree = Tree()
    for out in files:
        tree.add(dep.fs.relparts(out.fs_path, dep.fs_path), out.meta, out.hash_info)
    tree.digest()
    return tree.hash_info


def entries(names: Sequence[str]) -> dict[str, Any]:
    """The entries of dvc.lock of those of the stages that it has, as plain data.

    Raises:
        StageError: dvc.lock cannot be read.
    """
    known = lockfile.read().get("stages", {})
    return {name: known[name] for name in names if name in known}


def adopt(entries: Mapping[str, Any], *, stop: Event | None = None) -> None:
    """Put entries into dvc.lock, under DVC's lock and in one piece; others stay as they are.

    Waits for as long as another DVC process holds the lock.

    Raises:
        StageError: dvc.lock cannot be read.
        Stopped: ``stop`` was set while waiting.
    """
    values = read_yaml(PARAMS) if entries else {}
    with lockfile.edited(stop) as data:
        stages = data.setdefault("stages", {})
        for name, entry in entries.items():
            if entry != stages.get(name):
                stages[name] = _as_written(entry, values)


def _as_written(entry: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """An entry as DVC would have written it here: keys in its order, and nodes that are one in
    params.yaml are one in dvc.lock. An entry that went through a database has lost both.
    """
    written = {key: entry[key] for key in ORDER if key in entry} | entry
    for key in ("deps", "outs"):
        if key in entry:
            written[key] = [{k: one[k] for k in FIELDS if k in one} | one for one in entry[key]]
    for file, read in entry.get("params", {}).items():
        if file == str(PARAMS):
            own = deepcopy({key: _find(values, key) for key in sorted(read)})  # nodes of one, too
            written["params"] = entry["params"] | {file: own if own == read else read}
    return written


def _find(values: Any, dotted: str, missing: object = None) -> Any:
    """The value at a dotted path."""
    for key in dotted.split("."):
        if not isinstance(values, Mapping) or key not in values:
            return missing
        values = values[key]
    return values


def tidy() -> None:
    """Bring dvc.lock's stages into the order of `dvc repro`, as if they had run one by one.

    Entries of stages that dvc.yaml no longer has come last, in the order that they had.

    Raises:
        StageError: dvc.yaml or dvc.lock cannot be read.
    """
    try:
        with closing(Repo(".")) as repo:
            order = plan_repro(get_active_graph(repo.index.graph), repo.index.stages)
            names = [stage.addressing for stage in order]
    except DvcException as error:
        raise StageError(f"dvc.yaml: {one_line(error)}") from None
    with lockfile.edited() as data:
        stages = data.get("stages", {})
        data["stages"] = {name: stages[name] for name in names if name in stages} | stages
