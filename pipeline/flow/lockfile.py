"""dvc.lock, read and written whole, though DVC itself writes it in place and bit by bit.

No signal reaches a DVC that is started here while it writes. A copy of the last whole file is kept,
so that what a plain `dvc repro` leaves cut when it is killed can be put together again: `restore`.
What is not in it then, DVC's cache of runs knows.
"""

import base64
import io
import json
import os
import re
import subprocess
import sys
import zlib
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from pipeline.flow import git, locks, processes
from rrcm.cli.dvc_lock import GUARD, LOCKFILE, parse, read
from rrcm.core.errors import StageError
from rrcm.core.files import write_text
from rrcm.core.locks import lock

KEPT = Path(".rrcm/dvc.lock")  # as it last was when it was whole for certain
RUNS = Path(".dvc/cache/runs")  # of DVC, by what they ran on: a folder for each, of files
PATH_LOCKS, PATH_GUARD = Path(".dvc/tmp/rwlock"), Path(".dvc/tmp/rwlock.lock")
SAVING = 3600.0  # seconds that DVC may take, once its stage was stopped, to record what it made


@contextmanager
def repro(
    arguments: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    output: int | None = subprocess.PIPE,
    hold: Sequence[int] = (),
) -> Iterator[subprocess.Popen[bytes]]:
    """Run `dvc repro`, so that a stop at any moment loses nothing.

    Guarantee: SIGTERM to the process, or our own end, stops the command of the stage at work. DVC
    itself, in a session of its own, gets no signal: it records what the stage made, or cleans up,
    and ends. Only after SAVING seconds is it killed. See `processes.start` for the rest.
    """
    mend()
    quiet = {"DVC_NO_ANALYTICS": "1"}  # which it would run as a process of its own
    own = {"PATH": processes.path(), "PYTHONUNBUFFERED": "1", **quiet, **(environment or {})}
    with processes.start(
        [sys.executable, "-m", "dvc", "--wait-for-lock", "repro", *arguments],
        environment=os.environ | own,
        output=output,
        spare=SAVING,
        hold=hold,
    ) as process:
        yield process
    if process.returncode == 0:  # else the disk may have been full while DVC wrote
        with _guarded() as free:
            if free and LOCKFILE.exists():
                write_text(KEPT, LOCKFILE.read_text(encoding="utf-8"))


def mend() -> None:
    """Remove what a killed DVC left half written, and the next one would fail over.

    Half a file of path locks: the processes in it are gone, or find their locks free. And, unless
    another DVC is at work, half a run in its cache of runs, or a folder for one that has none.
    """
    _mend_path_locks()
    if RUNS.exists():
        with _guarded() as free:
            if free:
                _mend_runs()


def _mend_runs() -> None:
    for part in RUNS.glob("*/*/.*.tmp"):
        part.unlink()
    for folder in RUNS.glob("*/*"):
        if not any(folder.iterdir()):
            folder.rmdir()


def _mend_path_locks() -> None:
    if PATH_LOCKS.exists():
        with PATH_GUARD.open("ab") as guard:
            locks.take(guard.fileno(), stop=Event(), why="DVC's path locks")
            try:
                json.loads(PATH_LOCKS.read_text(encoding="utf-8"))
            except ValueError:
                PATH_LOCKS.unlink()


@contextmanager
def _guarded() -> Iterator[bool]:
    """Hold DVC's lock, unless another process does."""
    GUARD.parent.mkdir(parents=True, exist_ok=True)
    with GUARD.open("ab") as guard:
        yield lock(guard.fileno())


def entries(names: Sequence[str]) -> dict[str, Any]:
    """The entries of those of the stages that it has, as plain data.

    Raises:
        StageError: It is not YAML.
    """
    known = read().get("stages", {})
    return {name: known[name] for name in names if name in known}


def pack(entries: Mapping[str, Any]) -> str:
    """Entries as short text, from which `unpack` makes what DVC writes in the very same way.

    JSON would lose which values are one and the same, and Prefect takes no large parameters.
    """
    return base64.b64encode(zlib.compress(_text(entries).encode())).decode()


def unpack(packed: str) -> dict[str, Any]:
    """The reverse of `pack`."""
    return YAML(typ="safe").load(zlib.decompress(base64.b64decode(packed)).decode()) or {}


@contextmanager
def edited(stop: Event | None = None) -> Iterator[dict[str, Any]]:
    """Stages to change in place: written back, whole, if the block succeeds and changed them.

    Holds DVC's lock, and waits for it as long as another process does.

    Raises:
        StageError: It is not YAML, or the disk is full.
        Stopped: ``stop`` was set while waiting.
    """
    GUARD.parent.mkdir(parents=True, exist_ok=True)
    with GUARD.open("ab") as guard:
        locks.take(guard.fileno(), stop=stop or Event(), why="the lock of another DVC process")
        before = LOCKFILE.read_text(encoding="utf-8") if LOCKFILE.exists() else ""
        data = {"schema": "2.0"} | parse()
        stages = data.setdefault("stages", {})
        yield stages
        if stages and (after := _text(data)) != before:
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
    """Put entries in, under DVC's lock and in one piece; others stay as they are. See `edited`.

    Raises:
        StageError: ``over`` has the entries that they replace, and one is another by now.
    """
    with edited(stop) as stages:
        for name, entry in (over or {}).items():
            if stages.get(name) != entry:
                raise StageError(f"{name}: ran meanwhile; run the same command again")
        stages.update(entries)


def _text(data: Mapping[str, Any]) -> str:
    """YAML as DVC writes it."""
    yaml, stream = YAML(), io.StringIO()
    yaml.default_flow_style = False
    yaml.Representer.add_representer(OrderedDict, yaml.Representer.represent_dict)  # as DVC
    yaml.dump(dict(data), stream)
    return stream.getvalue()


def restore() -> str:
    """Put together a dvc.lock that a killed DVC has cut; says what was done, or nothing.

    A cut file is the first part of what DVC was writing, often YAML still: it is told by the last
    whole one, kept here or committed. What comes after the cut is as it was there. Files that git
    knows are whole, and while another DVC process is at work nothing is looked at.
    """
    if not LOCKFILE.exists():
        return ""
    with _guarded() as free:
        if not free or _committed():
            return ""
        text = LOCKFILE.read_text(encoding="utf-8", errors="replace")
        whole = _stages(
            KEPT.read_text(encoding="utf-8", errors="replace")
            if KEPT.is_file()
            else git.attempt("show", f"HEAD:./{LOCKFILE}") or ""
        )
        if not _is_cut(text, whole):
            write_text(KEPT, text)
            return ""
        left = _stages(_without_last(text))
        again = {name: entry for name, entry in whole.items() if name not in left}
        _write(_text({"schema": "2.0", "stages": left | again}))
    return (
        f"{LOCKFILE} was cut while DVC wrote it: {len(left)} entries were whole, and "
        f"{len(again)} are again as they were before"
    )


def _committed() -> bool:
    """Whether these very bytes are in git."""
    name = git.attempt("hash-object", "--no-filters", str(LOCKFILE))
    return name is not None and git.attempt("cat-file", "-e", name) is not None


def _is_cut(text: str, whole: dict[str, Any]) -> bool:
    found = _stages(text)
    if not text.endswith("\n") or not found:
        return True
    names, last = [*whole], [*found][-1]
    ended = names[: len(found)] == [*found] and len(found) < len(names)
    return ended or _rows(found[last]) < _rows(whole.get(last))


def _rows(entry: Any) -> int:
    """How many files an entry tells of."""
    lists = entry.values() if isinstance(entry, dict) else ()
    return sum(len(rows) for rows in lists if isinstance(rows, list))


def _without_last(text: str) -> str:
    """A cut file up to its last entry, of which nobody knows how much there is."""
    entries = [*re.finditer(r"^  \S[^\n]*:\s*$", text, flags=re.MULTILINE)]
    return text[: entries[-1].start()] if entries else ""


def _stages(text: str) -> dict[str, Any]:
    """The entries of a dvc.lock; of what is none, nothing."""
    try:
        data = YAML(typ="safe").load(text)
    except (YAMLError, ValueError):
        return {}
    found = data.get("stages") if isinstance(data, dict) else None
    return found if isinstance(found, dict) else {}


def _write(text: str) -> None:
    for file in (LOCKFILE, KEPT):
        write_text(file, text)
