"""Reads and writes dvc.lock, which has the hashes of all results.

Whatever this project starts replaces the file at once: so do the functions here, and `careful_dvc`.
Entries that a plain `dvc repro` loses, if it is killed while it writes, DVC restores from its run
cache.
"""

import base64
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any

from dvc.config import Config
from dvc.exceptions import DvcException
from dvc.schema import COMPILED_LOCKFILE_SCHEMA
from dvc.utils.serialize import dumps_yaml
from dvc.utils.strictyaml import validate
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from pipeline.workflow import git, processes
from rrcm.core.errors import DataError, StageError, one_line
from rrcm.core.files import write_text

LOCKFILE = Path("dvc.lock")
RESULTS = ("dvc.lock", "metrics")  # what stages write of what git keeps
ASIDE = Path("presets/locks")  # the results of data sets other than that of params.yaml
GUARD = Path(".dvc/tmp/lock")  # DVC holds it, by flock, while it writes
UNMERGED = f"{LOCKFILE}: git could not merge it; `rrcm resolve` puts it together from both sides"


def read() -> dict[str, Any]:
    """The stages of dvc.lock as plain data; nothing if there is no such file.

    Raises:
        StageError: It is not as DVC writes it, or git could not merge it; says the way out.
    """
    if str(LOCKFILE) in git.unmerged():
        raise StageError(UNMERGED)
    if not LOCKFILE.exists():
        return {}
    try:
        return parsed(LOCKFILE.read_text(encoding="utf-8", errors="replace"))
    except DataError as error:
        raise StageError(f"{error}; `rrcm resolve` puts it together from what git has") from None


def parsed(text: str) -> dict[str, Any]:
    """The stages that the text of a dvc.lock has.

    Raises:
        DataError: It is not as DVC writes it.
    """
    if not text.endswith("\n"):
        raise DataError(f"{LOCKFILE}: its end is missing")
    try:
        contents = YAML(typ="safe").load(text)  # the quick one, as DVC; its floats are plain
        validate(contents, COMPILED_LOCKFILE_SCHEMA, path=str(LOCKFILE))
    except (YAMLError, ValueError, DvcException) as error:
        raise DataError(f"{LOCKFILE}: {one_line(error)}") from None
    return contents.get("stages", {})


def hashes(entry: Mapping[str, Any], kind: str = "outs") -> dict[str, str]:
    """The hash of each path among the ``outs`` or ``deps`` of an entry, if it has one."""
    return {one["path"]: one.get("md5", "") for one in entry.get(kind, ())}


def require_lock() -> None:
    """Refuse a DVC that locks in another way, and would wait for ever for a file that we made.

    Raises:
        StageError: Its configuration says so, or is not valid.
    """
    try:
        other = Config(str(GUARD.parents[1]))["core"].get("hardlink_lock")
    except DvcException as error:
        raise StageError(one_line(error)) from None
    if other:
        raise StageError(
            "core.hardlink_lock: true in DVC's configuration, but this project uses DVC's usual "
            "lock; `dvc config --unset core.hardlink_lock`, with --local or --global if set there"
        )


@contextmanager
def _guarded(stop: Event | None = None) -> Iterator[None]:
    """Hold DVC's lock, as soon as no other process does."""
    require_lock()
    GUARD.parent.mkdir(parents=True, exist_ok=True)
    with GUARD.open("ab") as guard:
        why = "the lock of another DVC process"
        processes.take(guard.fileno(), stop=stop or Event(), why=why)
        yield


def pack(entries: Mapping[str, Any]) -> str:
    """Entries as short text; what `unpack` returns, DVC writes in exactly the same way.

    JSON would lose which values are the same object, and Prefect accepts no large parameters.
    """
    return base64.b64encode(zlib.compress(dumps_yaml(dict(entries)).encode())).decode()


def unpack(packed: str) -> dict[str, Any]:
    """The inverse of `pack`."""
    return YAML(typ="safe").load(zlib.decompress(base64.b64decode(packed)).decode()) or {}


@contextmanager
def edited(
    stop: Event | None = None, *, anew: Mapping[str, Any] | None = None
) -> Iterator[dict[str, Any]]:
    """The stages of dvc.lock, to change in place; written back atomically if the block succeeds.

    Nothing is written if nothing changed. Holds DVC's lock, and waits while another process does.
    With ``anew``, begins with these stages, whatever the file is.

    Raises:
        StageError: dvc.lock is not YAML, or the disk is full.
        Stopped: ``stop`` was set while waiting.
    """
    with _guarded(stop):
        stages = read() if anew is None else dict(anew)
        yield stages
        before = LOCKFILE.read_bytes() if LOCKFILE.exists() else b""
        after = dumps_yaml({"schema": "2.0", "stages": stages})
        if stages and after.encode() != before:
            try:
                write_text(LOCKFILE, after)
            except OSError as error:
                raise StageError(f"{LOCKFILE}: {error.strerror}; it is as it was") from None


def adopt(
    entries: Mapping[str, Any], *, over: Mapping[str, Any] | None = None, stop: Event | None = None
) -> None:
    """Write entries to dvc.lock atomically, under DVC's lock; others stay. See `edited`.

    Raises:
        StageError: ``over`` has stages as they were read, and one to be replaced has changed since.
    """
    with edited(stop) as stages:
        for name in entries if over is not None else ():
            if stages.get(name) != over.get(name):
                raise StageError(f"{name}: ran meanwhile; run the same command again")
        stages.update(entries)


def switch(data: str) -> str:
    """Let dvc.lock have the results of the data set ``data``; return whose it had, if another's.

    Stages of different data sets have the same names. So those of the others are kept, one file for
    each data set, in presets/locks/; a kill at any moment loses none of them.

    Raises:
        StageError: dvc.lock is not YAML.
    """
    with _guarded():
        stages = read()
        before = data_set(stages)
        if before == data or (stages and not before):
            return ""
        if before:
            write_text(ASIDE / f"{before}.lock", LOCKFILE.read_text(encoding="utf-8"))
        kept = ASIDE / f"{data}.lock"
        if kept.exists():
            write_text(LOCKFILE, kept.read_text(encoding="utf-8"))
            kept.unlink()
        else:
            LOCKFILE.unlink(missing_ok=True)
        return before


def data_set(stages: Mapping[str, Any]) -> str:
    """The data set whose results these stages of a dvc.lock are; empty if there are none."""
    shard = stages.get("shard", {})
    return str(shard.get("params", {}).get("params.yaml", {}).get("data", {}).get("name", ""))
