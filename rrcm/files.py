"""Files that are whole or absent, and their digests."""

import errno
import hashlib
import json
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rrcm.errors import printable

if TYPE_CHECKING:  # pandas takes long to load, and few who write files have tables
    import pandas as pd


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside ``path``; rename it into place only if the block succeeds.

    Guarantee: whatever happens, including a crash, ``path`` holds either its old bytes or all of
    its new ones.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield part
        with part.open("rb") as file:
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write ``text`` as UTF-8 with LF line ends, atomically."""
    with atomic(path) as part:
        part.write_text(text, encoding="utf-8", newline="\n")


def write_json(path: Path, value: object) -> None:
    """Write ``value`` as indented JSON, atomically; the same value gives the same bytes."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def write_csv(table: "pd.DataFrame", path: Path, *, digits: str) -> None:
    """Write a table as CSV, atomically; the same table, the same bytes.

    Text in it may be anybody's: see `cell`. ``digits`` is the format of its floats.
    """
    shown = table.map(lambda value: cell(value) if isinstance(value, str) else value)
    with atomic(path) as part:
        shown.to_csv(part, index=False, float_format=digits, lineterminator="\n")


def cell(text: str) -> str:
    """``text`` as a cell of a table that no spreadsheet runs and no terminal obeys.

    What begins as a formula does gets an apostrophe in front, and so does what begins with one;
    backslashes are doubled, and what cannot be seen is said as Python does. `uncell` undoes it.
    """
    text = printable(text.replace("\\", "\\\\"))
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "'")) else text


def uncell(text: str) -> str:
    """The text of which `cell` made this one."""
    text = text.removeprefix("'")
    said = r"\\(\\|[nrt]|x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8})"
    return re.sub(said, lambda found: _character(found[1]), text)


def _character(said: str) -> str:
    simple = {"\\": "\\", "n": "\n", "r": "\r", "t": "\t"}
    return simple[said] if said in simple else chr(int(said[1:], 16))


def regular(path: Path) -> Path:
    """``path``, if it is a file of bytes: to read a FIFO may take for ever, and devices do not end.

    Raises:
        OSError: It is something else, or not there.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return path


def sha256(path: Path) -> str:
    """Hex SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
