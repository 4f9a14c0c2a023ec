"""Reads and writes the tab-separated certificate tables of Cohen et al. (2019), arXiv:1902.02918.

Columns are idx, label, predict, radius, correct, time; most published results have this form. The
reader also accepts what others make of it: no header or no `idx`, as rRCM's reference
implementation writes them, commas or semicolons, True and False, whole numbers as 3.0, a negative
radius of an abstention, and radii of a norm that their name has, such as `linf_radius`.
"""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from rrcm.certification import certify
from rrcm.certification.certify import DIGITS, DOWN, NORMS, printed
from rrcm.certification.votes.counts import ABSTAIN
from rrcm.core.errors import DataError
from rrcm.core.files import write_text

COLUMNS = ("idx", "label", "predict", "radius", "correct", "time")
NEEDED = ("label", "predict", "radius", "correct")
OURS = {"stop", "norm", "top"}  # of tables by `certify`
_WHOLE = re.compile(r"[+-]?[0-9]{1,15}")  # integers that float64 represents exactly
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?", re.IGNORECASE)
_POINT = re.compile(r"\.0*$")
_TRUTH = {"true": 1, "false": 0}
_NORM = re.compile(rf"({'|'.join(NORMS)})_radius")
_NONE = re.compile(r"[+-]?(?:nan|inf|infinity)", re.IGNORECASE)


def parsed(raw: bytes, path: Path) -> pd.DataFrame:
    """A table as written: cells are parsed, but their values are not checked.

    ``attrs["header"]`` are the names in the first line, or None if that is a row;
    ``attrs["numbered"]`` is true if the file has no ``idx``, and rows are numbered from 0;
    ``attrs["norm"]`` is there if radii are of another norm than l2. Other columns are left out, and
    the radius of an abstention is 0 if it was negative.

    Raises:
        DataError: It is no such table; names line and column. ``path`` is for messages.
    """
    lines = _lines(raw, path)
    between = separator(lines[0])
    first = cells(lines[0], between)
    header = None if _NUMBER.fullmatch(first[0]) else tuple(first)
    names = header or (COLUMNS if len(first) == len(COLUMNS) else COLUMNS[1:])
    if odd := sorted(OURS & {*names}):
        raise DataError(
            f"{path}:1: column {odd[0]!r} is one of a table of rrcm, which has commas or tabs and "
            f"all of {' '.join(certify.COLUMNS)}; in another program's, rename it"
        )
    norm = None if "radius" in names else next(filter(None, map(_NORM.fullmatch, names)), None)
    if norm:
        names = tuple("radius" if name == norm[0] else name for name in names)
    if missing := [name for name in NEEDED if name not in names]:
        raise DataError(
            f"{path}:1: no column {missing[0]!r}; it has to have {' '.join(COLUMNS)}, separated by "
            "tabs or commas"
        )
    if twice := [name for name in COLUMNS if names.count(name) > 1]:
        raise DataError(f"{path}:1: column {twice[0]!r} comes twice")
    columns: dict[str, list[Any]] = {name: [] for name in COLUMNS if name in names}
    for number, text in enumerate(lines[1:] if header else lines, start=2 if header else 1):
        row = cells(text, between)
        if len(row) != len(names):
            raise DataError(f"{path}:{number}: {len(row)} columns, expected {len(names)}")
        for name, cell in zip(names, row, strict=True):
            if name in columns:
                columns[name].append(_value(cell, name, where=f"{path}:{number}"))
    kinds = {"radius": np.float64, "time": object}
    table = pd.DataFrame(
        {
            name: np.array(column, dtype=kinds.get(name, np.int64))
            for name, column in columns.items()
        }
    )
    none = (table["predict"] == ABSTAIN) & (table["radius"] < 0)
    table["radius"] = table["radius"].mask(none, 0.0)
    if "idx" not in columns:
        table.insert(0, "idx", np.arange(len(table)))
    table.attrs = {"header": header, "numbered": "idx" not in columns}
    table.attrs |= {"norm": norm[1]} if norm and norm[1] != "l2" else {}
    return table


def separator(line: str) -> str | None:
    """What separates the cells of a line; None is any white space."""
    return next((one for one in "\t,;" if one in line), None)


def cells(line: str, between: str | None) -> list[str]:
    """The cells of a line, without padding and quotes."""
    return [cell.strip(" ").strip('"') for cell in line.split(between)]


def line(table: pd.DataFrame, row: int) -> int:
    """The line number in the file of a row of `parsed`, from 1."""
    return row + (1 if table.attrs.get("header", COLUMNS) is None else 2)


def write(table: pd.DataFrame, path: Path) -> None:
    """Write certificates, atomically; the same table gives the same bytes.

    Radii have six decimals and are rounded down. ``time`` is empty if the table has none.
    """
    times = table["time"] if "time" in table else [""] * len(table)
    kept = (table[name] for name in COLUMNS[:-1])
    rows = [
        f"{idx}\t{label}\t{predict}\t{printed(radius, DOWN, places=DIGITS)}\t{correct}\t{time}\n"
        for idx, label, predict, radius, correct, time in zip(*kept, times, strict=True)
    ]
    write_text(path, "\t".join(COLUMNS) + "\n" + "".join(rows))


def _lines(raw: bytes, path: Path) -> list[str]:
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not a table, byte {error.start} is not UTF-8") from None
    lines = text.replace("\r\n", "\n").replace("\r", "\n").rstrip("\n").split("\n")
    if not lines[0].strip():
        raise DataError(f"{path}:1: the first line is empty")
    return lines


def _value(cell: str, name: str, *, where: str) -> int | float | str:
    if name == "time":
        if cell.isprintable():
            return cell
    elif name == "radius":
        if _NUMBER.fullmatch(cell) or _NONE.fullmatch(cell):
            return float(cell)
    elif _WHOLE.fullmatch(whole := _POINT.sub("", cell)):
        return int(whole)
    elif name == "correct" and cell.lower() in _TRUTH:
        return _TRUTH[cell.lower()]
    wanted = {"time": "text", "radius": "a number"}.get(name, "a whole number")
    shown = cell if len(cell) <= 30 else f"{cell[:30]}…"
    raise DataError(f"{where}: {name} is {shown!r}, expected {wanted}")
