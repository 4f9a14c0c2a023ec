"""dvc.lock, read and written whole, though DVC itself writes it in place and bit by bit.

Whatever we write is kept beside, so that what a plain `dvc repro` leaves cut when it is killed can
be put together again: `restore`. What is not in it then, DVC's cache of runs knows.
"""

import fcntl
import io
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any, TypeVar

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from pipeline.flow import git, slots
from rrcm.errors import StageError, one_line
from rrcm.files import write_text

LOCKFILE = Path("dvc.lock")
KEPT = Path(".rrcm/dvc.lock")  # as it last was when it was whole for certain
GUARD = Path(".dvc/tmp/lock")  # what DVC holds, by flock, while it writes
QUIET = 2.0  # seconds; DVC writes its file in a second or so, and never rests as long within it
POLL = 0.05

T = TypeVar("T")


def read() -> dict[str, Any]:
    """The contents of dvc.lock as plain data; of none, nothing.

    Raises:
        StageError: It is not YAML.
    """
    return consistent(_parse)


def _parse() -> dict[str, Any]:
    try:
        return YAML(typ="safe").load(LOCKFILE) or {}  # the quick one, as DVC; its floats are plain
    except FileNotFoundError:
        return {}
    except (YAMLError, ValueError) as error:
        raise StageError(
            f"{LOCKFILE}: {one_line(error)}; `rrcm repro` puts one together that was cut"
        ) from None


def consistent(reader: Callable[[], T]) -> T:
    """What ``reader`` makes of dvc.lock while nobody writes it; it may be called several times."""
    while True:
        before = _settled()
        try:
            result = reader()
        except StageError:
            if _stamp() == before:
                raise
        else:
            if _stamp() == before:
                return result


def _stamp() -> tuple[int, ...]:
    try:
        found = LOCKFILE.stat()
    except FileNotFoundError:
        return ()
    return found.st_ino, found.st_size, found.st_mtime_ns


def _settled() -> tuple[int, ...]:
    """Wait while a DVC process may be writing, which others than ours do in place."""
    while (stamp := _stamp()) and time.time() - stamp[2] / 1e9 < QUIET and _held():
        time.sleep(POLL)
    return stamp


def _held() -> bool:
    try:
        with GUARD.open("rb") as guard:
            fcntl.flock(guard, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


@contextmanager
def edited(stop: Event | None = None) -> Iterator[dict[str, Any]]:
    """Contents to change in place: written back, whole, if the block succeeds and changed them.

    Holds DVC's lock, and waits for it as long as another process does.

    Raises:
        StageError: It is not YAML, or the disk is full.
        Stopped: ``stop`` was set while waiting.
    """
    GUARD.parent.mkdir(parents=True, exist_ok=True)
    with GUARD.open("ab") as guard:
        while not slots.lock(guard.fileno()):
            if stop is not None and stop.is_set():
                raise slots.Stopped("stopped while another DVC process held its lock")
            time.sleep(POLL)
        before = LOCKFILE.read_text(encoding="utf-8") if LOCKFILE.exists() else ""
        data = {"schema": "2.0"} | _parse()
        yield data
        if (after := _text(data)) != before and "stages" in data:
            try:
                write(after)
            except OSError as error:
                raise StageError(f"{LOCKFILE}: {error.strerror}; it is as it was") from None


def _text(data: dict[str, Any]) -> str:
    """YAML as DVC writes it."""
    yaml, stream = YAML(), io.StringIO()
    yaml.default_flow_style = False
    yaml.dump(data, stream)
    return stream.getvalue()


def restore() -> str:
    """Put together a dvc.lock that a killed DVC has cut; says what was done, or nothing.

    A cut file is the first part of what DVC was writing, often YAML still: it is told by the last
    whole one, kept here or committed. What comes after the cut is as it was there. Files that git
    knows are whole, and while another DVC process is at work nothing is looked at.
    """
    if not LOCKFILE.exists():
        return ""
    GUARD.parent.mkdir(parents=True, exist_ok=True)
    with GUARD.open("ab") as guard:
        if not slots.lock(guard.fileno()) or _committed():
            return ""
        text = LOCKFILE.read_text(encoding="utf-8", errors="replace")
        whole = _kept()
        if not _is_cut(text, whole):
            write_text(KEPT, text)
            return ""
        left = _stages(_without_last(text))
        again = {name: entry for name, entry in whole.items() if name not in left}
        write(_text({"schema": "2.0", "stages": left | again}))
    return (
        f"{LOCKFILE} was cut while DVC wrote it: {len(left)} entries were whole, and "
        f"{len(again)} are again as they were before"
    )


def _committed() -> bool:
    """Whether these very bytes are in git."""
    name = git.attempt("hash-object", "--no-filters", str(LOCKFILE))
    return name is not None and git.attempt("cat-file", "-e", name) is not None


def _kept() -> dict[str, Any]:
    """The entries of the last file that was whole: ours, or the one committed."""
    if KEPT.is_file():
        return _stages(KEPT.read_text(encoding="utf-8", errors="replace"))
    return _stages(git.attempt("show", f"HEAD:./{LOCKFILE}") or "")


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


def write(text: str, to: Path = LOCKFILE) -> None:
    """Replace a file of DVC's: it has its old bytes or all of the new ones, whatever happens."""
    part = GUARD.parent / f"{to.name}.{os.getpid()}.part"  # where git and DVC do not see it
    try:
        with part.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        part.replace(to)
    finally:
        part.unlink(missing_ok=True)
    if to.name == LOCKFILE.name:
        write_text(KEPT, text)
