"""Detects what changed since dvc.lock was written, as DVC does, but without its locks."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from dvc.dependency.param import ParamsDependency
from dvc.output import Output
from dvc.stage import PipelineStage

from pipeline.runtime import code
from pipeline.runtime.without_dvc import tree
from pipeline.workflow import git
from rrcm.config.sections import PARAMS
from rrcm.core.errors import StageError
from rrcm.core.schema import listed, read_yaml

MISSING = "not all here (dvc.lock has it)"  # nothing changed since dvc.lock was written
VERSIONS = 50  # of a file that are looked at


def overlap(first: str, second: str) -> bool:
    """Whether two paths are the same, or one is in the other."""
    return f"{first}/".startswith(f"{second}/") or f"{second}/".startswith(f"{first}/")


def find(values: Any, dotted: str, missing: object = None) -> Any:
    """The value at a dotted path."""
    for key in dotted.split("."):
        values = values.get(key, missing) if isinstance(values, Mapping) else missing
    return values


def added(had: Any, has: Any, name: str) -> list[str] | None:
    """Keys of mappings in ``has`` that ``had`` lacks, dotted; None if anything else differs."""
    if not (isinstance(had, dict) and isinstance(has, dict)):
        return [] if had == has else None
    if had.keys() - has.keys():
        return None
    new = [f"{name}.{key}" for key in has if key not in had]
    for key, value in had.items():
        if (inner := added(value, has[key], f"{name}.{key}")) is None:
            return None
        new += inner
    return new


class Changes:
    """Detects changes since dvc.lock was written; reads params.yaml and each code file once."""

    def __init__(self, graph: Any, *, here: bool, allow_missing: bool = False) -> None:
        """``here`` and ``allow_missing`` say how far to look at this workspace; see `plan.load`."""
        self.values: Mapping[str, Any] = read_yaml(PARAMS) if PARAMS.exists() else {}
        self._graph, self._here, self._allow_missing = graph, here, allow_missing
        self._hashes: dict[str, Any] = {}
        self._texts, self._places = cache(code.texts), cache(places)

    def sources(self, dep: Output) -> list[Output]:
        """The outputs, but for what the code means, that equal, contain or lie in a dependency."""
        if isinstance(dep, ParamsDependency):
            return []
        above = [up for up in self._graph.successors(dep.stage) if up.addressing != code.STAGE]
        return [out for up in above for out in up.outs if overlap(out.fs_path, dep.fs_path)]

    def in_stage(self, stage: PipelineStage) -> str:
        """What `dvc status` would find, but without locks; `MISSING` if only files are not here."""
        try:
            reasons = list(dict.fromkeys([*self.but_code(stage), *self._of_code(stage)]))
        except OSError:  # files come and go while a stage runs
            return "its files are changing"
        changed = [one for one in reasons if one != MISSING]
        missing = MISSING in reasons and not self._allow_missing
        return "; ".join(changed) or MISSING * missing

    def but_code(self, stage: PipelineStage, *, but_added: bool = False) -> Iterator[str]:
        """The reasons, other than code, and with ``but_added`` other than new parameters."""
        if not any(one.hash_info for one in (*stage.deps, *stage.outs)):
            yield "has not run"
            return
        if stage.changed_stage():
            yield "its command changed"
        if stage.is_callback or stage.always_changed:
            yield "it always runs"
        for dep in [] if stage.frozen else stage.deps:
            if isinstance(dep, ParamsDependency):
                other, new = self.parameters(dep)
                if keys := other if but_added else other + new:
                    yield f"{dep.def_path} says otherwise: {listed(keys)}"
            elif (sources := self.sources(dep)) and self.in_input(dep):
                changed = all(one.exists for one in (dep, *sources)) or self.in_lock(dep)
                yield f"{dep.def_path} is not what it ran on" if changed else MISSING
        for out in filter(self._in_output, stage.outs):
            if out.hash_info and out.exists and out.changed_checksum():
                yield f"{out.def_path} is not what dvc.lock has"
            else:
                yield MISSING if out.hash_info else f"{out.def_path} was not made yet"

    def code(self, stage: PipelineStage) -> list[Output]:
        """The dependencies that git keeps, what the code means among them, that have changed."""
        inputs = [dep for dep in stage.deps if not isinstance(dep, ParamsDependency)]
        kept = [] if stage.frozen else [dep for dep in inputs if not self.sources(dep)]
        return [dep for dep in kept if self.in_input(dep)]

    def _of_code(self, stage: PipelineStage) -> Iterator[str]:
        if changed := self.code(stage) if any(dep.hash_info for dep in stage.deps) else []:
            places = dict[str, None]()
            for dep in changed:
                now = self._texts(dep.def_path).get(dep.def_path, "")
                places |= dict.fromkeys(self._places(dep.def_path, now, dep.hash_info.value))
            yield f"code changed: {listed([*places])}"

    def parameters(self, dep: Output) -> tuple[list[str], list[str]]:
        """Parameters with other values than the stage ran with, and new keys in the others."""
        if not isinstance(dep, ParamsDependency):
            return [], []
        if dep.def_path != str(PARAMS) or not dep.params:
            return sorted(dep.status().get(dep.def_path, ())), []
        known, other, new = dep.hash_info.value or {}, list[str](), list[str]()
        for key in sorted(dep.params):
            keys = added(known.get(key, dep), find(self.values, key, known), key)
            other += [key] if keys is None else []
            new += keys or []
        return other, new

    def in_input(self, dep: Output) -> bool:
        """Whether a dependency differs from the version that the stage ran on."""
        if isinstance(dep, ParamsDependency):
            return any(self.parameters(dep))
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
        """DVC's hash of a dependency, cached because many stages share it.

        That of what the code means is of the code here, which DVC may not have described yet.
        """
        if (path := dep.def_path) not in self._hashes:
            texts = self._texts(path)
            md5 = {name: hashlib.md5(text.encode()).hexdigest() for name, text in texts.items()}
            if md5:
                inside = {name.removeprefix(f"{path}/"): digest for name, digest in md5.items()}
                self._hashes[path] = type(dep.hash_info)("md5", md5.get(path) or tree(inside))
            else:
                self._hashes[path] = dep.get_hash() if dep.exists else None
        return self._hashes[path]


def places(path: str, text: str, recorded: str) -> list[str]:
    """The files that differ, each with a definition, such as ``rrcm/core/files.py (`MOST`)``.

    Args:
        path: A file below ``code/``. Another dependency is its own place.
        text: What it should have now; empty for another dependency.
        recorded: DVC's hash of it when the stage ran.
    """
    for content in git.versions(path, VERSIONS) if text else ():
        if hashlib.md5(content).hexdigest() == recorded:
            now, then = json.loads(text), json.loads(content)
            changed = [file for file in now | then if now.get(file) != then.get(file)]
            return [_definition(file, then.get(file)) for file in sorted(changed)]
    return [path]


def _definition(file: str, digest: str | None) -> str:
    """A file, with the first of its definitions that differs from the version with ``digest``."""
    if digest is None or not file.endswith(".py") or not Path(file).is_file():
        return file
    now = code.definitions(Path(file).read_bytes())
    for source in git.versions(file, VERSIONS):
        try:
            if code.read(file, source)[0] != digest:
                continue
        except StageError:  # a version that is no Python
            continue
        then = code.definitions(source)
        changed = [name for name in now | then if now.get(name) != then.get(name)]
        return f"{file} (`{changed[0]}`)" if changed else file
    return file
