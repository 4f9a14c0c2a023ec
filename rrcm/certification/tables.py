"""Reads a table of certificates of any origin: of this project, or as the field publishes it."""

import io
import re
import sys
import zlib
from pathlib import Path

import pandas as pd

from rrcm.certification import certify, plausibility, tsv
from rrcm.certification.votes import records
from rrcm.core import formats
from rrcm.core.errors import DataError
from rrcm.core.files import LARGEST, read_bytes, unzipped

STDIN = Path("-")
GZIP = b"\x1f\x8b"
SUFFIXES = (".gz", ".csv", ".tsv")  # what a table's name goes without, in this order


def read(path: Path) -> pd.DataFrame:
    """A valid table of certificates, as by `certify.require_valid`.

    Raises:
        DataError: The file is not such a table; names line and column.
    """
    table = scan(path)
    certify.require_valid(table, path, first=tsv.line(table, 0))
    if table.attrs.get("numbered") and (again := plausibility.begins_anew(table)):
        raise DataError(f"{path}:{tsv.line(table, again)}: the rows from the first on, once more")
    return table


def scan(path: Path) -> pd.DataFrame:
    """A table as written, its values not checked: as by `certify.parsed` if it has all its columns.

    Else it is as by `tsv.parsed`, which says what it may look like. Both may be compressed by gzip;
    `STDIN` is the standard input.

    Raises:
        DataError: The file is not such a table; names line and column.
    """
    raw = sys.stdin.buffer.read() if path == STDIN else read_bytes(path)
    if raw.startswith(GZIP):
        try:
            raw = unzipped(raw, path, most=LARGEST)
        except (OSError, EOFError, zlib.error):
            raise DataError(f"{path}: a damaged gzip file") from None
    if why := formats.told(io.BytesIO(raw), ""):
        raise DataError(f"{path}: {why}")
    first = re.split(rb"[\r\n]", raw, maxsplit=1)[0].decode("utf-8-sig", errors="replace")
    if first.startswith(records.START):
        raise DataError(f"{path}: votes, which are read from a file that ends in .jsonl; unpack it")
    separator = tsv.separator(first)
    if {*certify.COLUMNS} <= {*tsv.cells(first, separator)} and separator is not None:
        return certify.parsed(raw, path, separator=separator)
    return tsv.parsed(raw, path)


def name(path: Path) -> str:
    """The name of a table: that of its file without the usual suffixes."""
    text = "stdin" if path == STDIN else path.name
    for suffix in SUFFIXES:
        text = text.removesuffix(suffix) or text
    return text
