"""Reads and writes dvc.lock atomically, although DVC itself rewrites it in place.

A DVC process that is started here receives no signals while it writes. A copy of the last complete
file is kept, from which `restore` repairs a file that a killed `dvc repro` left truncated. Entries
lost that way can still be restored from DVC's run cache.
"""

import base64
import json
import re
import subprocess
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any

from dvc.config import Config
from dvc.exceptions import DvcException
from dvc.utils.serialize import dumps_yaml
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from pipeline.workflow import git, processes
from pipeline.workflow.dvc_lock import GUARD, LOCKFILE, MARKERS, UNMERGED, parse, read
from rrcm.core.errors import StageError, one_line
from rrcm.core.files import write_text
from rrcm.core.locks import lock

DVC = "pipeline.workflow.careful_dvc"
KEPT = Path(".rrcm/dvc.lock")  # copy of the last version known to be complete
RESULTS = ("dvc.lock", "metrics")  # what stages write of what git keeps
ASIDE = Path("presets/locks")  # the results of data sets other than that of params.yaml
RUNS = Path(".dvc/cache/runs")  # DVC's run cache: a folder of files for each set of inputs
PATH_LOCKS, PATH_GUARD = Path(".dvc/tmp/rwlock"), Path(".dvc/tmp/rwlock.lock")
ENTRY = re.compile(r"^  \S[^\n]*:\s*$", flags=re.MULTILINE)  # the first line of one
SAVING = 3600.0  # seconds that DVC may take to record the outputs of a stopped stage


@contextmanager
def repro(
    arguments: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    output: int | None = subprocess.PIPE,
    hold: Sequence[int] = (),
) -> Iterator[subprocess.Popen[bytes]]:
    """Run `dvc repro` so that a stop at any moment loses nothing.

    Guarantee: SIGTERM to the process, or our own end, stops the command of the running stage. DVC
    itself, in a session of its own, gets no signal: it records the outputs, or cleans up, and ends.
    It is killed only after SAVING seconds. See `processes.start` for the arguments.
    """
    mend()
    with processes.start(
        [sys.executable, "-m", DVC, "--wait-for-lock", "repro", *arguments],
        # DVC would send its analytics from another process.
        environment={"DVC_NO_ANALYTICS": "1", **(environment or {})},
        output=output,
        spare=SAVING,
        hold=hold,
    ) as process:
        yield process
    if process.returncode == 0:  # otherwise dvc.lock may be incomplete, as on a full disk
        with _guarded() as free:
            if free and LOCKFILE.exists():
                write_text(KEPT, LOCKFILE.read_text(encoding="utf-8"))


def mend() -> None:
    """Remove partial files of a killed DVC, at which the next one would fail.

    These are a truncated file of path locks (its processes are gone, or find their locks free) and,
    unless another DVC is running, truncated entries and empty folders of the run cache.
    """
    if PATH_LOCKS.exists():
        with PATH_GUARD.open("ab") as guard:
            processes.take(guard.fileno(), stop=Event(), why="DVC's path locks")
            try:
                json.loads(PATH_LOCKS.read_text(encoding="utf-8"))
            except ValueError:
                PATH_LOCKS.unlink()
    with _guarded() as free:
        if free:
            for part in RUNS.glob("*/*/.*.tmp"):
                part.unlink()
            for folder in RUNS.glob("*/*"):
                if not any(folder.iterdir()):
                    folder.rmdir()


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
def _guarded(stop: Event | None = None) -> Iterator[bool]:
    """Hold DVC's lock: unless another process does or, with ``stop``, as soon as none does."""
    require_lock()
    GUARD.parent.mkdir(parents=True, exist_ok=True)
    with GUARD.open("ab") as guard:
        if stop is not None:
            processes.take(guard.fileno(), stop=stop, why="the lock of another DVC process")
        yield stop is not None or lock(guard.fileno())


def entries(names: Sequence[str]) -> dict[str, Any]:
    """The entries of those of ``names`` that are in dvc.lock, as plain data.

    Raises:
        StageError: dvc.lock is not YAML.
    """
    known = read().get("stages", {})
    return {name: known[name] for name in names if name in known}


def pack(entries: Mapping[str, Any]) -> str:
    """Entries as short text; what `unpack` returns, DVC writes in exactly the same way.

    JSON would lose which values are the same object, and Prefect accepts no large parameters.
    """
    return base64.b64encode(zlib.compress(dumps_yaml(dict(entries)).encode())).decode()


def unpack(packed: str) -> dict[str, Any]:
    """The inverse of `pack`."""
    return YAML(typ="safe").load(zlib.decompress(base64.b64decode(packed)).decode()) or {}


@contextmanager
def edited(stop: Event | None = None) -> Iterator[dict[str, Any]]:
    """The stages of dvc.lock, to change in place; written back atomically if the block succeeds.

    Nothing is written if nothing changed. Holds DVC's lock, and waits while another process does.

    Raises:
        StageError: dvc.lock is not YAML, or the disk is full.
        Stopped: ``stop`` was set while waiting.
    """
    with _guarded(stop or Event()):
        data = {"schema": "2.0"} | parse()
        stages = data.setdefault("stages", {})
        yield stages
        _put(data)


def replace(stages: Mapping[str, Any]) -> None:
    """Make these the stages of dvc.lock, whatever the file was, atomically. See `edited`."""
    with _guarded(Event()):
        _put({"schema": "2.0", "stages": dict(stages)})


def _put(data: Mapping[str, Any]) -> None:
    """Write dvc.lock if it changes; the caller holds DVC's lock."""
    before = LOCKFILE.read_bytes() if LOCKFILE.exists() else b""
    if data["stages"] and (after := dumps_yaml(data)).encode() != before:
        try:
            _write(after)
        except OSError as error:
            raise StageError(f"{LOCKFILE}: {error.strerror}; it is as it was") from None


def adopt(
    entries: Mapping[str, Any],
    *,
    over: Mapping[str, Any] | None = None,
    stop: Event | None = None,
) -> None:
    """Write entries to dvc.lock atomically, under DVC's lock; others stay. See `edited`.

    Raises:
        StageError: ``over`` has the entries to be replaced, and one has changed in the meantime.
    """
    with edited(stop) as stages:
        for name, entry in (over or {}).items():
            if stages.get(name) != entry:
                raise StageError(f"{name}: ran meanwhile; run the same command again")
        stages.update(entries)


def switch(data: str) -> str:
    """Let dvc.lock have the results of the data set ``data``; return whose it had, if another's.

    Stages of different data sets have the same names. So those of the others are kept, one file for
    each data set, in presets/locks/; a kill at any moment loses none of them.

    Raises:
        StageError: dvc.lock is not YAML.
    """
    with _guarded(Event()):
        contents = parse()
        before = data_set(contents)
        if before == data or (not before and contents.get("stages")):
            return ""
        if before:
            write_text(ASIDE / f"{before}.lock", LOCKFILE.read_text(encoding="utf-8"))
        kept = ASIDE / f"{data}.lock"
        if kept.exists():
            _write(kept.read_text(encoding="utf-8"))
            kept.unlink()
        else:
            for file in (KEPT, LOCKFILE):
                file.unlink(missing_ok=True)
        return before


def data_set(lock: Mapping[str, Any]) -> str:
    """The data set whose results the contents of a dvc.lock are; empty if there are none."""
    shard = lock.get("stages", {}).get("shard", {})
    return str(shard.get("params", {}).get("params.yaml", {}).get("data", {}).get("name", ""))


def restore() -> str:
    """Repair a dvc.lock that a killed DVC truncated; return a message, or an empty text.

    A truncated file is a prefix of the new one, and often still valid YAML. It is recognized by
    comparison with the last complete file, kept here or committed, and the part after the cut is
    taken from there. A file that is committed as it is counts as complete. While another DVC
    process runs, nothing is done.

    Raises:
        StageError: git could not merge the file, or it was damaged otherwise than by a cut.
    """
    if str(LOCKFILE) in git.unmerged():
        raise StageError(UNMERGED)
    if LOCKFILE.exists() and MARKERS.search(LOCKFILE.read_text("utf-8", errors="replace")):
        raise StageError(UNMERGED)
    with _guarded() as free:
        if not free or not LOCKFILE.exists() or _committed():
            return ""
        text = LOCKFILE.read_text(encoding="utf-8", errors="replace")
        complete = whole(
            KEPT.read_text(encoding="utf-8", errors="replace")
            if KEPT.is_file()
            else git.attempt("show", f"HEAD:./{LOCKFILE}") or ""
        )
        if not _is_cut(text, complete):
            write_text(KEPT, text)
            return ""
        first = _without_last(text)
        left = whole(first)
        if not left and ENTRY.search(first):
            parse()  # its error: what is before a cut can be read
        again = {name: entry for name, entry in complete.items() if name not in left}
        _write(dumps_yaml({"schema": "2.0", "stages": left | again}))
    return (
        f"{LOCKFILE} was cut while DVC wrote it: {len(left)} entries were whole, and "
        f"{len(again)} are again as they were before"
    )


def _committed() -> bool:
    """Whether dvc.lock is in git byte for byte."""
    name = git.attempt("hash-object", "--no-filters", str(LOCKFILE))
    return name is not None and git.attempt("cat-file", "-e", name) is not None


def _is_cut(text: str, complete: dict[str, Any]) -> bool:
    stages = whole(text)
    if not text.endswith("\n") or not stages:
        return True
    names, last = [*complete], [*stages][-1]
    ended = names[: len(stages)] == [*stages] and len(stages) < len(names)
    return ended or _rows(stages[last]) < _rows(complete.get(last))


def _rows(entry: Any) -> int:
    """The number of files that an entry lists."""
    lists = entry.values() if isinstance(entry, dict) else ()
    return sum(len(rows) for rows in lists if isinstance(rows, list))


def _without_last(text: str) -> str:
    """A truncated file without its last entry, which may be incomplete."""
    entries = [*ENTRY.finditer(text)]
    return text[: entries[-1].start()] if entries else ""


def whole(text: str) -> dict[str, Any]:
    """The entries of the text of a dvc.lock; empty if it is not YAML, or has none."""
    try:
        data = YAML(typ="safe").load(text)
    except (YAMLError, ValueError):
        return {}
    stages = data.get("stages") if isinstance(data, dict) else None
    return stages if isinstance(stages, dict) else {}


def _write(text: str) -> None:
    for file in (LOCKFILE, KEPT):
        write_text(file, text)
