"""Traces by dvc.lock how files were made.

A record is used only for files with its hashes, and traced back only while each stage read what the
stage before it last wrote: DVC records the hashes of both.
"""

from pathlib import Path
from typing import Any

from pipeline.runtime import without_dvc
from pipeline.workflow import lockfile
from rrcm.config.sections import PARAMS


class Lock:
    """The stages of dvc.lock, read once by `lockfile.read`; none without the file."""

    def __init__(self) -> None:
        self.stages = lockfile.read()
        self.outputs = {
            path: (stage, md5)
            for stage, entry in self.stages.items()
            for path, md5 in lockfile.hashes(entry).items()
        }

    def lineage(self, path: Path) -> tuple[dict[str, Any], dict[str, str]] | None:
        """Return how the file ``path`` was made; None if no record has its bytes.

        Returns:
            Sections of params.yaml by dotted name, as its stage and those upstream read them; of
            two records of a section, the one nearest to the file. And by stage an input that was
            remade since: dvc.lock no longer records how the version that was read had been made.
        """
        stage, recorded = self.outputs.get(path.as_posix(), ("", ""))
        if not stage or recorded != without_dvc.md5(path):
            return None
        params: dict[str, Any] = {}
        older, queue = dict[str, str](), [stage]
        for name in queue:  # grows in the loop: nearest stages come first
            params = self.params(name) | params
            for read, md5 in lockfile.hashes(self.stages[name], "deps").items():
                digest, makers = self._last_written(read)
                if makers and digest != md5:
                    older.setdefault(name, read)
                else:
                    queue += [maker for maker in makers if maker not in queue]
        return params, older

    def params(self, stage: str) -> dict[str, Any]:
        """Return the sections of params.yaml that a stage read when it last ran, if it did."""
        return dict(self.stages.get(stage, {}).get("params", {}).get(str(PARAMS), {}))

    def read(self, stage: str, path: Path) -> str:
        """Return the hash of an input as a stage read it; empty if it is not recorded."""
        return lockfile.hashes(self.stages.get(stage, {}), "deps").get(path.as_posix(), "")

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
