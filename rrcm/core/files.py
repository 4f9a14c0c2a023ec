"""Atomic writing of files, their digests, and safe reading of untrusted files."""

import gzip
import hashlib
import io
import json
import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rrcm.core import formats
from rrcm.core.errors import CheckpointError, DataError, RrcmError, one_line, printable

if TYPE_CHECKING:  # pandas is slow to import, and few callers write tables
    import pandas as pd

LARGEST = 2**30  # largest file that is read as a whole, in bytes
NAME = 255  # longest file name on all usual file systems, in bytes
KINDS = {  # not regular files: reading them might block or never end
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside ``path``; rename it into place only if the block succeeds.

    The block writes a file there, or a folder of files if nothing has the name ``path``.
    Guarantee: whatever happens, including a crash, ``path`` holds either its old bytes or all of
    its new ones.
    """
    make_folder(path)
    ending = f".{secrets.token_hex(4)}.part"  # others cannot put a link there, as they cannot guess
    name = os.fsdecode(os.fsencode(path.name)[: NAME - 1 - len(ending)])
    part = path.with_name(f".{name}{ending}")
    try:
        with naming(path, part):
            yield part
            for place in (*part.glob("*"), part):
                handle = os.open(place, os.O_RDONLY)
                os.fsync(handle)
                os.close(handle)
            part.replace(path)
    finally:
        if part.is_dir():
            shutil.rmtree(part)
        part.unlink(missing_ok=True)


@contextmanager
def naming(path: Path, *parts: Path) -> Iterator[None]:
    """Make an OSError of the block name ``path`` if it names no file, or one of ``parts``."""
    try:
        yield
    except OSError as error:
        own = error.filename in map(str, parts)
        if error.errno is not None and (own or error.filename is None):
            error.filename = str(path)
        raise


def make_folder(path: Path) -> None:
    """Create the folder that ``path`` lies in, if it is not there.

    Raises:
        DataError: A file has the name of this folder, or of one above it.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise DataError(f"{path}: a file lies where a folder has to be; name a folder") from None


def require_place(path: Path) -> None:
    """Create the folder of ``path``, and check before any work that a file can be created there.

    Raises:
        DataError: ``path`` is a folder, or a file lies where its folder has to be.
        OSError: It cannot, because of its name, its folder, or missing permissions.
    """
    if path.is_dir():
        raise DataError(f"{path}: a folder; name a file")
    make_folder(path)
    with suppress(FileNotFoundError):
        path.lstat()  # raises if the name is too long
    tempfile.TemporaryFile(dir=path.parent).close()


def write_text(path: Path, text: str) -> None:
    """Write ``text`` as UTF-8 with LF line ends, atomically."""
    with atomic(path) as part:
        part.write_text(text, encoding="utf-8", newline="\n")


def write_json(path: Path, value: object) -> None:
    """Write ``value`` as indented JSON, atomically; the same value gives the same bytes."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def write_csv(table: "pd.DataFrame", path: Path, *, digits: str) -> None:
    """Write a table as CSV, atomically; the same table gives the same bytes.

    Text may be untrusted and is escaped by `cell`. ``digits`` is the format of floats.
    """
    shown = table.map(lambda value: cell(value) if isinstance(value, str) else value)
    with atomic(path) as part:
        shown.to_csv(part, index=False, float_format=digits, lineterminator="\n")


def cell(text: str) -> str:
    """Escape ``text`` for a table cell, so that no spreadsheet or terminal executes it.

    Text that begins like a formula or with an apostrophe gets an apostrophe in front; backslashes
    are doubled, and unprintable characters escaped as in Python. `uncell` undoes it.
    """
    text = printable(text.replace("\\", "\\\\"))
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "'")) else text


def uncell(text: str) -> str:
    """Undo `cell`."""
    text = text.removeprefix("'")
    said = r"\\(\\|[nrt]|x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8})"
    return re.sub(said, lambda found: found[0].encode().decode("unicode_escape"), text)


def sha256(path: Path) -> str:
    """Hex SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def require_utf8(name: str, refused: type[RrcmError] = DataError) -> None:
    """Refuse a file name that is not UTF-8, as all results are written in UTF-8.

    Raises:
        refused: The name on the file system is not UTF-8.
    """
    try:
        name.encode()
    except UnicodeEncodeError:
        raise refused(f"{name!r}: a name that is not UTF-8; rename it") from None


def require_file(
    path: Path, refused: type[RrcmError] = DataError, *, most: int = LARGEST, hint: str = ""
) -> None:
    """Refuse a path whose reading could hang, never end, or fill the memory.

    Raises:
        refused: ``path`` is missing (the message ends in ``hint``), is neither a regular file nor a
            link to one, has more than ``most`` bytes (sparse or not), a name that is not UTF-8, or
            is a Git LFS pointer or a web page.
    """
    require_utf8(str(path), refused)
    try:
        found = path.stat()
    except FileNotFoundError:
        raise refused(f"{formats.missing(path)}{hint}") from None
    except (OSError, ValueError) as error:  # ValueError: not a valid path
        raise refused(f"{path}: cannot be read ({_why(error)})") from None
    if not stat.S_ISREG(found.st_mode):
        kind = KINDS.get(stat.S_IFMT(found.st_mode), "something else")
        raise refused(f"{path}: {kind}, not a file")
    if found.st_size > most:
        raise refused(f"{path}: {found.st_size:,} bytes, more than the {most:,} of such a file")
    with suppress(OSError), path.open("rb") as file:
        if (kind := formats.kind(file.read(formats.HEAD))) in formats.STAND_INS:
            raise refused(f"{path}: {formats.WORDS[kind]}")


def read_bytes(
    path: Path, refused: type[RrcmError] = DataError, *, most: int = LARGEST, hint: str = ""
) -> bytes:
    """The bytes of a file that `require_file` accepts.

    Raises:
        refused: `require_file` refuses it, or it cannot be read.
    """
    require_file(path, refused, most=most, hint=hint)
    try:
        return path.read_bytes()
    except OSError as error:
        raise refused(f"{path}: cannot be read ({_why(error)})") from None


def read_json(path: Path, refused: type[RrcmError] = DataError, *, hint: str = "") -> Any:
    """The contents of a JSON file.

    Raises:
        refused: As `read_bytes`, or it is not JSON, or nested too deeply; ends in ``hint``.
    """
    try:
        return json.loads(read_bytes(path, refused, hint=hint))
    except (ValueError, RecursionError) as error:
        raise refused(f"{path}: damaged ({one_line(error)}){hint}") from None


def read_config(folder: Path) -> dict[str, Any]:
    """The ``config.json`` in the ``folder`` of a trained network of any kind.

    Raises:
        CheckpointError: It is missing, or not a JSON mapping.
    """
    path = folder / "config.json"
    config = read_json(path, CheckpointError, hint="; make it with `rrcm repro`")
    if not isinstance(config, dict):
        raise CheckpointError(f"{path}: damaged (no mapping)")
    return config


def unzipped(raw: bytes, path: Path, *, most: int) -> bytes:
    """Decompress a whole gzip file, given as bytes ``raw``, and verify its checksum.

    Raises:
        DataError: The contents are more than ``most`` bytes; names ``path``, the file's origin.
        OSError, EOFError, zlib.error: The file is damaged.
    """
    with gzip.open(io.BytesIO(raw)) as file:
        whole = file.read(most + 1)
    if len(whole) > most:
        raise DataError(f"{path}: unpacks to more than {most:,} bytes, which may be a trap")
    return whole


def _why(error: Exception) -> str:
    return getattr(error, "strerror", None) or one_line(error)
