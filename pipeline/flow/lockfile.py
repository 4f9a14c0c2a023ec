"""dvc.lock, read and written whole, though DVC itself writes it in place and bit by bit."""

import fcntl
import io
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any, TypeVar

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from pipeline.flow import slots
from rrcm.errors import StageError, one_line

LOCKFILE = Path("dvc.lock")
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
            f"{LOCKFILE}: {one_line(error)}; `git checkout {LOCKFILE}` has the last one committed"
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
