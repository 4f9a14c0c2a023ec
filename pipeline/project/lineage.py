"""Traces by dvc.lock how files were made.

A record is used only for files with its hashes, and traced back only while each stage read what the
stage before it last wrote: DVC records the hashes of both.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.runtime import without_dvc
from pipeline.workflow import lockfile
from rrcm.config.sections import PARAMS


@dataclass(frozen=True, kw_only=True, slots=True)
class Lineage:
    """How a file was made.

    ``params`` are sections of params.yaml by dotted name, as its stage and those upstream read
    them; of two records of a section, the one nearest to the file. ``older`` are pairs of a stage
    and one of its inputs that another stage has remade since: dvc.lock no longer records how the
    version that was read had been made.
    """

    params: dict[str, Any]
    older: tuple[tuple[str, str], ...]


class Lock:
    """The stages of dvc.lock, read once; none without the file."""

    def __init__(self) -> None:
        """Read it.

        Raises:
            StageError: It is not YAML.
        """
        self.stages = lockfile.read()
        self.outputs = {
            out["path"]: (stage, out.get("md5", ""))
            for stage, entry in self.stages.items()
            for out in entry.get("outs", [])
        }

    def lineage(self, path: Path) -> Lineage | None:
        """Return how the file ``path`` was made; None if no record has its bytes."""
        stage, recorded = self.outputs.get(path.as_posix(), ("", ""))
        if not stage or recorded != without_dvc.md5(path):
            return None
        params: dict[str, Any] = {}
        older, queue = [], [stage]
        for name in queue:  # grows in the loop: nearest stages come first
            params = self.params(name) | params
            for dependency in self.stages[name].get("deps", []):
                digest, makers = self._last_written(dependency["path"])
                if makers and digest != dependency.get("md5", ""):
                    older.append((name, dependency["path"]))
                else:
                    queue += [maker for maker in makers if maker not in queue]
        return Lineage(params=params, older=tuple(older))

    def params(self, stage: str) -> dict[str, Any]:
        """Return the sections of params.yaml that a stage read when it last ran, if it did."""
        return dict(self.stages.get(stage, {}).get("params", {}).get(str(PARAMS), {}))

    def read(self, stage: str, path: Path) -> str:
        """Return the hash of an input as a stage read it; empty if it is not recorded."""
        inputs = self.stages.get(stage, {}).get("deps", [])
        hashes = (one.get("md5", "") for one in inputs if one["path"] == path.as_posix())
        return next(hashes, "")

    def _last_written(self, path: str) -> tuple[str, list[str]]:
        """Return the hash of a path as stages last wrote it, and these stages, if there are any."""
        if path in self.outputs:
            stage, digest = self.outputs[path]
            return digest, [stage]
        inside = {
            p[len(path) + 1 :]: o for p, o in self.outputs.items() if p.startswith(f"{path}/")
        }
        files = {name: digest for name, (_, digest) in inside.items()}
        return without_dvc.tree(files), list({stage: None for stage, _ in inside.values()})
