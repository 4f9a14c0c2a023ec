"""Reads DVC's graph: the stages, their order, and which are out of date.

Nothing here runs a stage or waits for one: a plan can be made while stages run. A half-written
dvc.lock is never read.
"""

import os
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from dvc.dependency.param import ParamsDependency
from dvc.exceptions import DvcException
from dvc.output import Output
from dvc.repo import Repo
from dvc.repo.reproduce import get_active_graph, plan_repro
from dvc.stage import PipelineStage

from pipeline import checked
from pipeline.workflow import dvc_lock, lockfile
from pipeline.workflow.dvc_lock import tree
from rrcm.config.sections import PARAMS
from rrcm.core.errors import StageError, one_line
from rrcm.core.files import write_text
from rrcm.core.registry import suggest
from rrcm.core.schema import listed, read_yaml

MISSING = "not all here (dvc.lock has it)"  # nothing changed since dvc.lock was written
MOST = 120  # characters of names and paths in a reason


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """A stage of a plan.

    ``upstream`` are the nodes of the same plan that must run first. ``devices`` is the number of
    GPUs that it takes; 0: all of a host's. ``inputs`` are the outputs of other stages and of .dvc
    files, or parts of them, that it reads: no code, no parameters. ``reason``: why DVC would run or
    restore it now, regardless of stages upstream; empty if it would not. ``forced``: it is to run
    even if nothing changed.
    """

    name: str
    upstream: tuple[str, ...]
    devices: int
    inputs: tuple[str, ...]
    reason: str
    forced: bool

    @property
    def changed(self) -> bool:
        """Whether DVC would run or restore it now."""
        return bool(self.reason)


@dvc_lock.consistent
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
        allow_missing: As in DVC: data that is not in this workspace counts as that of dvc.lock.

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
            )
            for stage in order
            if stage in needed
        ]


@contextmanager
def opened(folder: str = ".") -> Iterator[tuple[Any, list[PipelineStage]]]:
    """DVC's graph, including data tracked by .dvc files, and its stages in `dvc repro`'s order.

    Raises:
        StageError: DVC cannot read dvc.yaml or dvc.lock.
    """
    try:
        with closing(Repo(folder)) as repo:
            graph = get_active_graph(repo.index.graph)
            order = plan_repro(graph, repo.index.stages)
            yield graph, [stage for stage in order if not stage.is_data_source]
    except DvcException as error:
        raise StageError(f"dvc.yaml: {one_line(error)}") from None


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


def overlap(first: str, second: str) -> bool:
    """Whether two paths are the same, or one is in the other."""
    return f"{first}/".startswith(f"{second}/") or f"{second}/".startswith(f"{first}/")


def _devices(stage: PipelineStage, values: Mapping[str, Any]) -> int:
    """``meta.devices`` of dvc.yaml: a number, or the dotted path of a parameter with one."""
    declared = (stage.meta or {}).get("devices", 1)
    devices = _find(values, declared) if isinstance(declared, str) else declared
    if type(devices) is not int or devices < 0:
        where = f" ({declared} in {PARAMS})" if isinstance(declared, str) else ""
        raise StageError(
            f"dvc.yaml: stage {stage.addressing}: meta.devices must be how many it takes, or the "
            f"path of a parameter that says so, got {devices!r}{where}"
        )
    return devices


def _find(values: Any, dotted: str, missing: object = None) -> Any:
    """The value at a dotted path."""
    for key in dotted.split("."):
        if not isinstance(values, Mapping) or key not in values:
            return missing
        values = values[key]
    return values


class Places:
    """Outputs by path; those of a path are found without a look at all others."""

    def __init__(self, outputs: Iterable[tuple[str, Output]]) -> None:
        """Index pairs of a path and an output."""
        self._at: dict[str, list[Output]] = defaultdict(list)
        self._under: dict[str, list[Output]] = defaultdict(list)
        for path, out in outputs:
            self._at[path].append(out)
            for folder in _upwards(path):
                self._under[folder].append(out)

    def overlapping(self, path: str) -> list[Output]:
        """The outputs that contain, equal or lie in ``path``; see `overlap`."""
        _, *folders = _upwards(path)
        around = [out for folder in folders for out in self._at.get(folder, ())]
        return [*around, *self._under.get(path, ())]


def _upwards(path: str) -> Iterator[str]:
    """A path, and the folders that it is in."""
    while path:
        yield path
        path = path.rpartition("/")[0]


class Changes:
    """Detects changes since dvc.lock was written; reads params.yaml and each code file once."""

    def __init__(self, graph: Any, *, here: bool, allow_missing: bool = False) -> None:
        """Compare with this workspace; unless ``here``, compare data within dvc.lock only.

        With ``allow_missing``, do so for data that is not in this workspace.
        """
        self.values: Mapping[str, Any] = read_yaml(PARAMS) if PARAMS.exists() else {}
        self._made = Places((out.fs_path, out) for stage in graph for out in stage.outs)
        self._here, self._allow_missing = here, allow_missing
        self._hashes: dict[str, Any] = {}

    def sources(self, dep: Output) -> list[Output]:
        """The outputs that equal, contain or lie in a dependency."""
        if isinstance(dep, ParamsDependency):
            return []
        return self._made.overlapping(dep.fs_path)

    def in_stage(self, stage: PipelineStage) -> str:
        """What `dvc status` would find, but without locks; `MISSING` if only files are not here."""
        try:
            reasons = list(dict.fromkeys(self._in_stage(stage)))
        except OSError:  # files come and go while a stage runs
            return "its files are changing"
        return "; ".join([one for one in reasons if one != MISSING] or reasons)

    def _in_stage(self, stage: PipelineStage) -> Iterator[str]:
        if not any(one.hash_info for one in (*stage.deps, *stage.outs)):
            yield "has not run"
            return
        if stage.changed_stage():
            yield "its command changed"
        if stage.is_callback or stage.always_changed:
            yield "it always runs"
        code = []
        for dep in filter(self.in_input, [] if stage.frozen else stage.deps):
            if isinstance(dep, ParamsDependency):
                yield f"{dep.def_path} says otherwise: {listed(self._keys(dep), most=MOST)}"
            elif not (sources := self.sources(dep)):
                code.append(dep.def_path)
            elif not all(one.exists for one in (dep, *sources)) and not self.in_lock(dep):
                yield MISSING
            else:
                yield f"{dep.def_path} is not what it ran on"
        if code:
            yield f"code changed: {listed(code, most=MOST)}"
        for out in filter(self._in_output, stage.outs):
            if out.hash_info and out.exists and out.changed_checksum():
                yield f"{out.def_path} is not what dvc.lock has"
            else:
                yield MISSING if out.hash_info else f"{out.def_path} was not made yet"

    def _keys(self, dep: ParamsDependency) -> list[str]:
        """The parameters whose values differ from those that the stage ran with."""
        if dep.def_path != str(PARAMS) or not dep.params:
            return sorted(dep.status().get(dep.def_path, ()))
        known = dep.hash_info.value or {}
        read = {key: _find(self.values, key, dep) for key in dep.params}
        return sorted(key for key in read if key not in known or known[key] != read[key])

    def in_input(self, dep: Output) -> bool:
        """Whether a dependency differs from the version that the stage ran on."""
        if isinstance(dep, ParamsDependency):
            return bool(self._keys(dep))
        if not self._compared(dep) and self.sources(dep):
            return self.in_lock(dep)
        return dep.hash_info != self._hash(dep)

    def in_lock(self, dep: Output) -> bool:
        """Whether dvc.lock has different hashes of an input as an output and as a dependency."""
        sources = self.sources(dep)
        if not dep.hash_info or not all(out.hash_info for out in sources):
            return True
        if [out.fs_path for out in sources] == [dep.fs_path]:
            return dep.hash_info != sources[0].hash_info
        if any(out.hash_info.isdir for out in sources):  # its parts have no hashes in dvc.lock
            return dep.exists and dep.hash_info != self._hash(dep)
        hashes = {out.fs.relpath(out.fs_path, dep.fs_path): out.hash_info.value for out in sources}
        return dep.hash_info.value != tree(hashes)

    def _in_output(self, out: Output) -> bool:
        """Whether an output changed; of those not compared, only what is kept in git can."""
        if self._compared(out):
            return bool(out.status())
        return not out.hash_info or (not out.use_cache and out.exists and bool(out.status()))

    def _compared(self, data: Output) -> bool:
        """Whether the files of this workspace are compared, and not dvc.lock alone."""
        return self._here and (data.exists or not self._allow_missing)

    def _hash(self, dep: Output) -> Any:
        """DVC's hash of a dependency, cached because many stages share the same code."""
        if dep.fs_path not in self._hashes:
            self._hashes[dep.fs_path] = dep.get_hash() if dep.exists else None
        return self._hashes[dep.fs_path]


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
