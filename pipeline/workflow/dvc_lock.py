"""Reads dvc.lock consistently, although DVC writes it in place, and traces how results were made.

A record is used only for files with its hashes, and traced back only while each stage read what the
stage before it last wrote: DVC records the hashes of both.
"""

import fcntl
import hashlib
import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from rrcm.config.sections import PARAMS
from rrcm.core.errors import StageError, one_line

LOCKFILE = Path("dvc.lock")
GUARD = Path(".dvc/tmp/lock")  # DVC holds it, by flock, while it writes
MARKERS = re.compile(r"^(<{7}|>{7}|={7}|\|{7})( |$)", flags=re.MULTILINE)  # of a conflict in git
UNMERGED = f"{LOCKFILE}: git could not merge it; `rrcm resolve` puts it together from both sides"
QUIET = 2.0  # seconds; DVC writes its file in about a second, without pauses as long as this
POLL = 0.05

P = ParamSpec("P")
T = TypeVar("T")


def consistent(reader: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function that reads dvc.lock: repeat it until the file stayed as it was."""

    @wraps(reader)
    def repeated(*args: P.args, **kwargs: P.kwargs) -> T:
        while True:
            before = _settled()
            try:
                result = reader(*args, **kwargs)
            except StageError:
                if _stamp() == before:
                    raise
            else:
                if _stamp() == before:
                    return result

    return repeated


@consistent
def read() -> dict[str, Any]:
    """Return the contents of dvc.lock as plain data; nothing if there is no such file.

    Raises:
        StageError: It is not YAML.
    """
    return parse()


def parse() -> dict[str, Any]:
    """Return the contents as they are at this moment; `read` waits while DVC writes them.

    Raises:
        StageError: It is not YAML, or has conflict markers.
    """
    try:
        return YAML(typ="safe").load(LOCKFILE) or {}  # the quick one, as DVC; its floats are plain
    except FileNotFoundError:
        return {}
    except (YAMLError, ValueError) as error:
        if MARKERS.search(LOCKFILE.read_text(encoding="utf-8", errors="replace")):
            raise StageError(UNMERGED) from None
        raise StageError(
            f"{LOCKFILE}: {one_line(error)}; `rrcm resolve` puts it together from what git has"
        ) from None


def _stamp() -> tuple[int, ...]:
    """Return values of the file's status that change with every write."""
    try:
        status = LOCKFILE.stat()
    except FileNotFoundError:
        return ()
    return status.st_ino, status.st_size, status.st_mtime_ns


def _settled() -> tuple[int, ...]:
    """Wait while a DVC process may be writing; return the file's stamp.

    A date in the future is no reason to wait: a process that writes now leaves today's.
    """
    while (stamp := _stamp()) and abs(time.time() - stamp[2] / 1e9) < QUIET and _held():
        time.sleep(POLL)
    return stamp


def _held() -> bool:
    """Return whether a DVC process holds DVC's lock."""
    try:
        with GUARD.open("rb") as guard:
            fcntl.flock(guard, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


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
        self.stages: dict[str, Any] = read().get("stages", {})
        self.outputs = {
            out["path"]: (stage, out.get("md5", ""))
            for stage, entry in self.stages.items()
            for out in entry.get("outs", [])
        }

    def lineage(self, path: Path) -> Lineage | None:
        """Return how the file ``path`` was made; None if no record has its bytes."""
        stage, recorded = self.outputs.get(path.as_posix(), ("", ""))
        if not stage or recorded != md5(path):
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
        return tree(files), list({stage: None for stage, _ in inside.values()})


def md5(path: Path) -> str:
    """Return the hash by which DVC identifies a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "md5").hexdigest()


def tree(files: dict[str, str]) -> str:
    """Return the hash by which DVC identifies a folder, from the hashes of its files."""
    listed = [{"md5": files[name], "relpath": name} for name in sorted(files)]
    return f"{hashlib.md5(json.dumps(listed, sort_keys=True).encode()).hexdigest()}.dir"
