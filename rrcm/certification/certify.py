"""Computes a table of certificates from votes, one row per image, in seconds on a CPU."""

import dataclasses
import io
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd

from rrcm.certification.votes.counts import ABSTAIN, NOTHING, Certified, Rule, require_enough
from rrcm.certification.votes.records import END, Header, Row
from rrcm.config.certification import require_law
from rrcm.core import registry
from rrcm.core.errors import DataError, one_line
from rrcm.core.files import read_bytes, uncell, write_csv
from rrcm.core.labels import NO_CLASS, UNKNOWN

DIGITS = 6  # decimals of a written radius: a millionth of the pixel range
DOWN, UP = ROUND_FLOOR, ROUND_CEILING  # how lower and upper bounds are printed
EXACT = 15  # significant digits that float64 keeps
LEAST = -4  # power of ten below which numbers are written with an exponent
COLUMNS = {
    "idx": int,
    "label": int,
    "predict": int,
    "radius": float,
    "correct": int,
    "n_A": int,
    "n": int,
    "p_A": float,
    "stop": str,
}
KINDS = COLUMNS | {"clean": int, "attacked": float, "attacked_to": int, "norm": str, "top": int}
NORMS = ("l1", "l2", "linf")  # of radii; l2 where a table has no such column
ALIKE = {"split": "images", "norm": "radii", "top": "radii"}  # what all rows have the same of
OPTIONAL = {"attacked", "name"}  # empty where no attack succeeded, and for abstentions
WHOLE = 2**53  # whole numbers below it are exact in float64


def certify(
    header: Header, rows: list[Row], *, certificates: list[str], alpha: float | None = None
) -> pd.DataFrame:
    """One row per image in the order of the votes; columns are ``COLUMNS`` and further ones.

    The first of ``certificates`` fills ``predict``, ``radius`` and the columns that follow from
    them. Each other one adds ``predict_<name>`` and ``radius_<name>`` at its own ``alpha``, that of
    ``header`` by default, so the better of two columns holds at twice alpha. ``stop`` is the reason
    to stop, ``split`` the split of images from shards. An image of unknown ``label`` is never
    ``correct``.

    ``predict`` is -1 for abstention; ``radius`` and ``p_A`` are rounded **down** (`floor`), so a
    written radius never exceeds the certified one.
    """
    rule, level = require(header, certificates=certificates, alpha=alpha)
    components = {name: registry.load("certificates", name) for name in certificates}
    norm = getattr(components[certificates[0]], "NORM", "l2")
    table = []
    for row in rows:
        answers = {
            name: certified(row, header, rule, certificate=component, alpha=level)
            for name, component in components.items()
        }
        (_, got), *others = answers.items()
        line = line_of(row, got)
        for name, other in others:
            line |= {f"predict_{name}": other.label, f"radius_{name}": floor(other.radius)}
        line |= {"split": header.split} if header.split else {}
        table.append(line | ({"norm": norm} if norm != "l2" else {}))
    return pd.DataFrame(table, columns=[*table[0]] if table else [*COLUMNS])


def line_of(row: Row, got: Certified) -> dict[str, Any]:
    """The `COLUMNS` of an image."""
    return {
        "idx": row.idx,
        "label": row.label,
        "predict": got.label,
        "radius": floor(got.radius),
        "correct": int(got.label == row.label != UNKNOWN),
        "n_A": got.n_A,
        "n": got.n,
        "p_A": floor(got.p_A),
        "stop": row.stop,
    }


def require(
    header: Header, *, certificates: list[str], alpha: float | None = None
) -> tuple[Rule, float]:
    """The rule of ``header``, and ``alpha``, or its own, minus the error of the noise sampler.

    Raises:
        CertificateError: No outcome of so many draws certifies anything.
    """
    rule, level = header.rule(), header.alpha_left(header.alpha if alpha is None else alpha)
    for name in certificates:
        require_law(name, header.noise)
        require_enough(registry.load("certificates", name), rule, alpha=level)
    return rule, level


def certified(
    row: Row, header: Header, rule: Rule, *, certificate: ModuleType, alpha: float
) -> Certified:
    """One certificate of one image; abstention if the second round has no draws, or no class."""
    votes = row.votes(len(header.classes))
    if not votes.draws:
        return NOTHING
    got = certificate.certify(votes, rule, sigma=header.sigma, alpha=alpha)
    if header.classes[votes.c_A] == NO_CLASS:
        return dataclasses.replace(got, label=ABSTAIN, radius=0.0)
    return got


def floor(x: float, digits: int = DIGITS) -> float:
    """``x`` >= 0 rounded down to ``digits`` decimals.

    Guarantee: the result and its decimal form are at most ``x``, by less than two units of the last
    decimal.
    """
    # ndtri has a relative error of about 1e-15; subtract more first. Bounds are rounded already.
    step = Decimal(1).scaleb(-digits)
    return float(Decimal(x * (1 - 1e-12)).quantize(step, rounding=ROUND_FLOOR))


def printed(
    bound: float,
    direction: str,
    *,
    places: int | None = None,
    digits: int = EXACT,
    scale: int = 1,
    sign: str = "",
) -> str:
    """A bound as text: a lower one is rounded `DOWN`, an upper one `UP`, so no text claims more.

    Guarantee: for a lower bound the text is at most ``scale`` times the shortest decimal of
    ``bound``, for an upper one at least; by less than one unit of its last digit.

    Args:
        bound: A finite number.
        direction: `DOWN` or `UP`.
        places: Decimals; by default ``digits`` significant ones, at most `EXACT`.
        digits: Significant digits, if there are no ``places``.
        scale: 100 for percent.
        sign: ``+`` for a sign in front of positive numbers, too.
    """
    exact = Decimal(repr(float(bound))) * scale
    if places is not None:
        rounded = exact.quantize(Decimal(1).scaleb(-places), rounding=direction)
        return f"{rounded + 0:{sign}f}"  # never -0
    rounded = Context(prec=digits, rounding=direction).plus(exact).normalize()
    return f"{float(rounded):{sign}}" if rounded.adjusted() < LEAST else f"{rounded:{sign}f}"


def one_minus(alpha: float, direction: str, *, scale: int = 1) -> str:
    """``1 - alpha`` as text, as by `printed`: `DOWN`, it is below 1 for any ``alpha`` above 0."""
    context = Context(prec=EXACT, rounding=direction)
    rest = context.subtract(Decimal(1), Decimal(repr(float(alpha))))
    return f"{(rest * scale).normalize():f}"


def write(table: pd.DataFrame, path: Path) -> None:
    """Write certificates as CSV, atomically; the same table gives the same bytes.

    ``correct`` is empty where the label is unknown.
    """
    correct = table["correct"].astype("Int64").where(table["label"] != UNKNOWN)
    write_csv(table.assign(correct=correct), path, digits=f"%.{DIGITS}f")


def read(path: Path) -> pd.DataFrame:
    """Valid certificates from CSV, as by `require_valid`.

    Raises:
        DataError: The file is no such table; names the line and column.
    """
    table = parsed(read_bytes(path), path)
    require_valid(table, path, first=2)
    return table


def swapped(table: pd.DataFrame) -> pd.Series:
    """Of which rows the label is an abstention, as if ``label`` and ``predict`` had been swapped.

    An image without a label has a radius if it has an answer, and other images abstain.
    """
    unknown = table["label"] == UNKNOWN
    as_usual = (table["predict"] == ABSTAIN).any() or (table["radius"][unknown] > 0).any()
    return unknown & (not (as_usual or unknown.all()))


def require_valid(table: pd.DataFrame, path: Path, *, first: int) -> None:
    """Refuse a table that `certify` cannot have made.

    Guarantee: there are images, and none comes twice; labels and ``predict`` are -1 or more; radii
    are finite and not negative, 0 for an abstention; ``correct`` is whether ``predict`` is the
    label, if that is known; ``n`` is the same where all draws were made; what an attack found is a
    class, not the label, at a distance; and all images are of one split, all radii of one norm and
    one k of top-k.

    A ``table`` has at least the columns ``idx, label, predict, radius, correct``; the message has
    the file, and the line, which is ``first`` for the first row.

    Raises:
        DataError: The table is not valid; names the line and column.
    """
    if table.empty:
        raise DataError(f"{path}: there are no images in it")
    label, predict, radius = table["label"], table["predict"], table["radius"]
    finds = {
        "label": (label < UNKNOWN) | swapped(table),
        "predict": predict < ABSTAIN,
        "radius": ~(np.isfinite(radius) & (radius >= 0)) | ((predict == ABSTAIN) & (radius > 0)),
        "correct": table["correct"] != ((predict == label) & (label != UNKNOWN)),
        "idx": table["idx"].duplicated(),
    }
    if {"n", "stop"} <= {*table}:
        finds["n"] = (table["stop"] == END) & (table["n"] < table["n"].max())
    if "clean" in table:
        finds["clean"] = table["clean"] < ABSTAIN
    if "attacked" in table:
        apart, to = table["attacked"], table["attacked_to"]
        finds["attacked"] = (apart < 0) | np.isinf(apart)
        finds["attacked_to"] = apart.notna() & ((to == label) | (to < 0))
    for column, what in ALIKE.items():
        if column in table and table[column].nunique() > 1:
            raise DataError(f"{path}: {what} of several values of {column}; a table is of one")
    if "norm" in table:
        finds["norm"] = ~table["norm"].isin(NORMS)
    if "top" in table:
        finds["top"] = table["top"] < 1
    for column, wrong in finds.items():
        if wrong.any():
            row = int(wrong.argmax())
            text = "comes twice" if column == "idx" else "is invalid"
            raise DataError(
                f"{path}:{first + row}: {column} {table[column].iloc[row]} {text}; `rrcm audit` "
                "says what is wrong"
            )


def parsed(raw: bytes, path: Path, *, separator: str = ",") -> pd.DataFrame:
    """The certificates of a CSV: cells are parsed, but their values are not checked.

    Raises:
        DataError: It is no table of certificates; ``path`` is for messages.
    """
    try:
        table = pd.read_csv(io.BytesIO(raw), sep=separator, dtype=str, keep_default_na=False)
    except ValueError as error:  # pandas cannot parse it
        raise DataError(f"{path}: not a table of certificates ({one_line(error)})") from None
    if twice := [name for name in table if f"{name}.1" in table]:  # as pandas names the second
        raise DataError(f"{path}:1: column {twice[0]!r} comes twice")
    if missing := [name for name in COLUMNS if name not in table]:
        raise DataError(f"{path}: not a table of certificates, no column {missing[0]!r}")
    if "attacked" in table and "attacked_to" not in table:
        raise DataError(f"{path}: not a table of an attack, no column 'attacked_to'")
    if not isinstance(table.index, pd.RangeIndex):
        raise DataError(f"{path}:2: not a table of certificates (the line is too long)")
    table = table.fillna("")  # of lines that are too short
    unknown = table["label"] == str(UNKNOWN)
    table["correct"] = table["correct"].mask(unknown & (table["correct"] == ""), "0")
    for name in table:
        table[name] = _column(table[name], path)
    return table


def _column(cells: pd.Series, path: Path) -> pd.Series:
    """The text of ``cells`` as numbers, or as the names that they are."""
    name, kind = str(cells.name), KINDS.get(str(cells.name))
    numbers = pd.to_numeric(cells, errors="coerce")
    empty = (cells == "") & (name not in OPTIONAL)
    wrong = numbers.isna() & (cells != "") & (kind in (int, float))
    if kind is int:
        wrong |= (numbers % 1 != 0) | (numbers.abs() >= WHOLE)
    if (wrong | empty).any():
        row = int((wrong | empty).argmax())
        text = f"{name} is {cells[row][:30]!r}, expected a{' whole' * (kind is int)} number"
        text = f"{name} is empty, or the line is too short" if empty[row] else text
        raise DataError(f"{path}:{row + 2}: not a table of certificates ({text})")
    if kind is None:
        return cells.map(uncell) if numbers.isna().any() else numbers
    return cells if kind is str else numbers.astype(kind)
