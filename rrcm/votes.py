"""Votes on disk: what noisy draws of each image were classified as. Radii are derived from them.

The first line of a votes file says all that defines the votes; every other line is one image. Equal
headers mean equal votes for an image, but for the rounding of another processor. Lines are appended
and synced image by image, so that a crash costs at most one image.
"""

import dataclasses
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from operator import index  # int(), but of whole numbers only
from pathlib import Path
from typing import Any

import numpy as np

from rrcm.errors import ConfigError, VotesError
from rrcm.parsing import parse

FORMAT = "rrcm-votes-1"
NOISE = "philox4x32-10, box-muller, fp32"


@dataclass(frozen=True, kw_only=True, slots=True)
class Header:
    """All that defines the votes, in the order in which it is written.

    ``weights`` is the SHA-256 of the weights, ``provider`` the kernels that ran them;
    ``batch_size`` is part of it because kernels may round differently in another batch shape.
    """

    format: str
    noise: str
    run: str
    weights: str
    sigma: float
    n0: int
    n: int
    seed: int
    backend: str
    provider: str
    precision: str
    batch_size: int
    subset: str
    classes: list[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """Votes of one image: class -> count, of ``n0`` selection and ``n`` estimation draws."""

    idx: int
    label: int
    n0: dict[int, int]
    n: dict[int, int]

    def counts(self, classes: int) -> tuple[np.ndarray, np.ndarray]:
        """Selection and estimation counts, int64 [K] each."""
        dense = np.zeros((2, classes), dtype=np.int64)
        for counts, votes in zip(dense, (self.n0, self.n), strict=True):
            counts[list(votes)] = list(votes.values())
        return dense[0], dense[1]


def sparse(counts: np.ndarray) -> dict[int, int]:
    """Counts [K] as class -> count, without the classes that got none."""
    return {int(c): int(counts[c]) for c in np.flatnonzero(counts)}


def read(path: Path) -> tuple[Header, list[Row]]:
    """A finished votes file.

    Raises:
        VotesError: It is missing, unfinished or damaged; names the line.
    """
    header, rows, torn = _scan(path)
    if torn:
        raise VotesError(f"{path}: the last line is torn; sampling has not finished")
    return header, rows


def append(path: Path, header: Header, rows: Iterable[Row]) -> Iterator[Row]:
    """Append ``rows`` to ``path``, each on the disk before the next is asked for.

    Use `resume` first: it says which images are there already.
    """
    with path.open("a", encoding="utf-8", newline="\n") as file:
        if file.tell() == 0:
            _write(file, dataclasses.asdict(header))
        for row in rows:
            _write(file, dataclasses.asdict(row))
            yield row


def resume(path: Path, header: Header) -> set[int]:
    """Images that ``path`` already has; its torn last line, if a crash left one, is cut off.

    Raises:
        VotesError: The file was made by another classifier or with other settings.
    """
    if not path.exists():
        return set()
    end = path.read_bytes().rfind(b"\n") + 1
    os.truncate(path, end)
    if end == 0:
        return set()
    found, rows, _ = _scan(path)
    for name in Header.__slots__:
        was, now = getattr(found, name), getattr(header, name)
        if was != now:
            raise VotesError(
                f"{path}: holds votes of another classifier or setting: {name} was {was!r}, is "
                f"{now!r}; move the file away to sample again"
            )
    return {row.idx for row in rows}


def _write(file: Any, value: dict[str, Any]) -> None:
    file.write(json.dumps(value, separators=(",", ":"), allow_nan=False) + "\n")
    file.flush()
    os.fsync(file.fileno())


def _scan(path: Path) -> tuple[Header, list[Row], bool]:
    if not path.exists():
        raise VotesError(f"{path}: not found")
    text = path.read_bytes().decode(errors="replace")
    lines = text.splitlines()
    torn = not text.endswith("\n")
    try:
        header = parse(json.loads(lines[0]), Header, where="header")
    except (IndexError, json.JSONDecodeError, ConfigError) as error:
        raise VotesError(f"{path}:1: not the header of a votes file ({error})") from None
    rows, seen = [], set()
    for number, line in enumerate(lines[1 : len(lines) - torn], start=2):
        row = _row(line, header, where=f"{path}:{number}")
        if row.idx in seen:
            raise VotesError(f"{path}:{number}: image {row.idx} comes twice")
        seen.add(row.idx)
        rows.append(row)
    return header, rows, torn


def _row(line: str, header: Header, *, where: str) -> Row:
    try:
        value = json.loads(line)
        n0, n = ({int(c): index(v) for c, v in value[key].items()} for key in ("n0", "n"))
        row = Row(idx=index(value["idx"]), label=index(value["label"]), n0=n0, n=n)
    except (json.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError):
        raise VotesError(f"{where}: not a line of votes: {line[:60]!r}") from None
    last = len(header.classes) - 1
    if not 0 <= row.label <= last:
        raise VotesError(f"{where}: label {row.label} is outside 0..{last}")
    for votes, draws, key in ((n0, header.n0, "n0"), (n, header.n, "n")):
        if (fewest := min(votes.values(), default=0)) < 0:
            raise VotesError(f"{where}: {key} has {fewest} votes for a class")
        if sum(votes.values()) != draws:
            raise VotesError(f"{where}: {key} has {sum(votes.values())} votes, expected {draws}")
        if not all(0 <= c <= last for c in votes):
            raise VotesError(f"{where}: {key} votes for a class outside 0..{last}")
    return row
