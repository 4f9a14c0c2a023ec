"""Detects what changed since dvc.lock was written, as DVC does, but without its locks."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from dvc.dependency.param import ParamsDependency
from dvc.output import Output
from dvc.stage import PipelineStage

from pipeline.workflow.dvc_lock import tree
from rrcm.config.sections import PARAMS
from rrcm.core.schema import listed, read_yaml

MISSING = "not all here (dvc.lock has it)"  # nothing changed since dvc.lock was written
MOST = 120  # characters of names and paths in a reason


def overlap(first: str, second: str) -> bool:
    """Whether two paths are the same, or one is in the other."""
    return f"{first}/".startswith(f"{second}/") or f"{second}/".startswith(f"{first}/")


def find(values: Any, dotted: str, missing: object = None) -> Any:
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
        """``here`` and ``allow_missing`` say how far to look at this workspace; see `plan.load`."""
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
        changed = [one for one in reasons if one != MISSING]
        missing = MISSING in reasons and not self._allow_missing
        return "; ".join(changed) or MISSING * missing

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
        read = {key: find(self.values, key, dep) for key in dep.params}
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
