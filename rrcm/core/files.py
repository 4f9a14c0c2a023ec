"""Files that are whole or absent, their digests, and reading those that anybody may have made."""

import gzip
import hashlib
import io
import json
import os
import re
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rrcm.core.errors import CheckpointError, DataError, RrcmError, one_line, printable

if TYPE_CHECKING:  # pandas takes long to load, and few who write files have tables
    import pandas as pd

MOST = 2**30  # bytes of a file that is read as a whole
NAME = 255  # bytes of a name, for every usual file system
KINDS = {  # what would never end, or never begin, if it were read
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside ``path``; rename it into place only if the block succeeds.

    Guarantee: whatever happens, including a crash, ``path`` holds either its old bytes or all of
    its new ones.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    ending = f".{os.getpid()}.part"
    part = path.with_name(f".{_cut(path.name, NAME - 1 - len(ending))}{ending}")
    try:
        with naming(path, part):
            yield part
            with part.open("rb") as file:
                os.fsync(file.fileno())
            part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _cut(name: str, most: int) -> str:
    return os.fsdecode(os.fsencode(name)[:most])


@contextmanager
def naming(path: Path, *parts: Path) -> Iterator[None]:
    """An OSError of the block that names no file, or one of ``parts``, names ``path``."""
    try:
        yield
    except OSError as error:
        own = error.filename in map(str, parts)
        if error.errno is not None and (own or error.filename is None):
            error.filename = str(path)
        raise


def require_place(path: Path) -> None:
    """Make the folder of ``path``, and refuse, before any work, a file that cannot be made there.

    Raises:
        OSError: It cannot, for its name, its folder, or the rights to it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileNotFoundError):
        path.lstat()  # knows names that are too long
    tempfile.TemporaryFile(dir=path.parent).close()


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


def sha256(path: Path) -> str:
    """Hex SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def require_utf8(name: str, refused: type[RrcmError] = DataError) -> None:
    """Refuse a name that no result could be written with: all of them are UTF-8.

    Raises:
        refused: It is not, as the file system has it.
    """
    try:
        name.encode()
    except UnicodeEncodeError:
        raise refused(f"{name!r}: a name that is not UTF-8; rename it") from None


def require_file(
    path: Path, refused: type[RrcmError] = DataError, *, most: int = MOST, hint: str = ""
) -> None:
    """Refuse to read what could hang, never end, or fill the memory.

    Raises:
        refused: ``path`` is missing (``hint`` says more), no regular file, nor a link to one, has
            more than ``most`` bytes, on the disk or not, or a name that is not UTF-8.
    """
    require_utf8(str(path), refused)
    try:
        found = path.stat()
    except FileNotFoundError:
        raise refused(f"{path}: not found{hint}") from None
    except (OSError, ValueError) as error:  # ValueError: no name at all
        raise refused(f"{path}: cannot be read ({_why(error)})") from None
    if not stat.S_ISREG(found.st_mode):
        kind = KINDS.get(stat.S_IFMT(found.st_mode), "something else")
        raise refused(f"{path}: {kind}, not a file")
    if found.st_size > most:
        raise refused(f"{path}: {found.st_size:,} bytes, more than the {most:,} of such a file")


def read_bytes(
    path: Path, refused: type[RrcmError] = DataError, *, most: int = MOST, hint: str = ""
) -> bytes:
    """The bytes of a file that `require_file` accepts.

    Raises:
        refused: It does not, or the file cannot be read.
    """
    require_file(path, refused, most=most, hint=hint)
    try:
        return path.read_bytes()
    except OSError as error:
        raise refused(f"{path}: cannot be read ({_why(error)})") from None


def read_json(path: Path, refused: type[RrcmError] = DataError, *, hint: str = "") -> Any:
    """What a JSON file holds.

    Raises:
        refused: As `read_bytes`, or it is no JSON, or nested too deeply; ends in ``hint``.
    """
    try:
        return json.loads(read_bytes(path, refused, hint=hint))
    except (ValueError, RecursionError) as error:
        raise refused(f"{path}: damaged ({one_line(error)}){hint}") from None


def read_config(folder: Path) -> dict[str, Any]:
    """The ``config.json`` in the ``folder`` of a trained network, whatever its kind.

    Raises:
        CheckpointError: It is missing, or no JSON mapping.
    """
    path = folder / "config.json"
    config = read_json(path, CheckpointError, hint="; make it with `dvc repro`")
    if not isinstance(config, dict):
        raise CheckpointError(f"{path}: damaged (no mapping)")
    return config


def unzipped(raw: bytes, path: Path, *, most: int) -> bytes:
    """The contents of a gzip file, ``raw``, to its end, whose checksum is right.

    Raises:
        DataError: They are more than ``most`` bytes; ``path`` is where the file is from.
        OSError, EOFError, zlib.error: It is damaged.
    """
    with gzip.open(io.BytesIO(raw)) as file:
        whole = file.read(most + 1)
    if len(whole) > most:
        raise DataError(f"{path}: unpacks to more than {most:,} bytes, which may be a trap")
    return whole


def _why(error: Exception) -> str:
    return getattr(error, "strerror", None) or one_line(error)
