"""What dvc.lock records of a file: the parameters that made it, in all stages that led to it.

A record counts only for the very bytes that it describes, and only as far back as each stage ran on
what the stage before it left: DVC keeps the hashes of both.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.flow import lockfile
from rrcm.config import PARAMS


@dataclass(frozen=True, kw_only=True, slots=True)
class Lineage:
    """How a file was made.

    ``params`` are sections of params.yaml by dotted name, as its stage and those before it read
    them; of two records of a section, the one nearest to the file. ``older`` are pairs of a stage
    and one of its inputs, which another stage has made anew since: what made the input that it
    read, nothing says any more.
    """

    params: dict[str, Any]
    older: tuple[tuple[str, str], ...]


class Lock:
    """The contents of dvc.lock, read once; without the file, no records."""

    def __init__(self) -> None:
        """Read it.

        Raises:
            StageError: It is not YAML.
        """
        self.stages: dict[str, Any] = lockfile.read().get("stages", {})
        self.outputs = {
            out["path"]: (stage, out.get("md5", ""))
            for stage, entry in self.stages.items()
            for out in entry.get("outs", [])
        }

    def lineage(self, path: Path) -> Lineage | None:
        """How the file ``path`` was made; None if no stage is recorded to have made these bytes."""
        stage, recorded = self.outputs.get(path.as_posix(), ("", ""))
        if not stage or recorded != md5(path):
            return None
        params: dict[str, Any] = {}
        older, queue = [], [stage]
        for name in queue:  # which grows: nearest stages come first
            params = self.params(name) | params
            for dependency in self.stages[name].get("deps", []):
                made, makers = self._made(dependency["path"])
                if makers and made != dependency.get("md5", ""):
                    older.append((name, dependency["path"]))
                else:
                    queue += [maker for maker in makers if maker not in queue]
        return Lineage(params=params, older=tuple(older))

    def params(self, stage: str) -> dict[str, Any]:
        """The sections of params.yaml that a stage read when it ran last; none if it never did."""
        return dict(self.stages.get(stage, {}).get("params", {}).get(str(PARAMS), {}))

    def read(self, stage: str, path: Path) -> str:
        """The hash of an input as a stage read it; empty if that is not recorded."""
        inputs = self.stages.get(stage, {}).get("deps", [])
        found = (one.get("md5", "") for one in inputs if one["path"] == path.as_posix())
        return next(found, "")

    def _made(self, path: str) -> tuple[str, list[str]]:
        """The hash of a path as stages left it, and these stages; none of what no stage makes."""
        if path in self.outputs:
            stage, made = self.outputs[path]
            return made, [stage]
        inside = {
            p[len(path) + 1 :]: o for p, o in self.outputs.items() if p.startswith(f"{path}/")
        }
        files = {name: made for name, (_, made) in inside.items()}
        return tree(files), list({stage: None for stage, _ in inside.values()})


def md5(path: Path) -> str:
    """The hash that DVC knows a file by."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "md5").hexdigest()


def tree(files: dict[str, str]) -> str:
    """The hash that DVC knows a folder by, of the hashes of its files."""
    listed = [{"md5": files[name], "relpath": name} for name in sorted(files)]
    return f"{hashlib.md5(json.dumps(listed, sort_keys=True).encode()).hexdigest()}.dir"
