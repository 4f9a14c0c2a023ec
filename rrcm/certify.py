"""Certification: votes to a table of certificates, one row per image. Seconds on a CPU."""

from decimal import ROUND_FLOOR, Decimal
from pathlib import Path

import pandas as pd

from rrcm import registry
from rrcm.errors import DataError
from rrcm.files import atomic
from rrcm.votes import Header, Row

DIGITS = 6  # decimals of a written radius: a millionth of the pixel range
COLUMNS = {
    "idx": int,
    "label": int,
    "predict": int,
    "radius": float,
    "correct": int,
    "n_A": int,
    "n": int,
    "p_A": float,
}


def certify(header: Header, rows: list[Row], *, certificate: str, alpha: float) -> pd.DataFrame:
    """One row per image in the order of the votes; columns as in ``COLUMNS``.

    ``predict`` is -1 for abstention; ``radius`` and ``p_A`` are rounded **down** (`floor`), so a
    written radius never exceeds the certified one.
    """
    component = registry.load("certificates", certificate)
    table = []
    for row in rows:
        counts0, counts = row.counts(len(header.classes))
        got = component.certify(counts0, counts, sigma=header.sigma, alpha=alpha)
        table.append(
            {
                "idx": row.idx,
                "label": row.label,
                "predict": got.label,
                "radius": floor(got.radius),
                "correct": int(got.label == row.label),
                "n_A": got.n_A,
                "n": got.n,
                "p_A": floor(got.p_A),
            }
        )
    return pd.DataFrame(table, columns=[*COLUMNS])


def floor(x: float, digits: int = DIGITS) -> float:
    """A number of ``digits`` decimals at or just below ``x`` >= 0.

    Guarantee: ``floor(x) <= x``, and so is the decimal that is written; they are nearer than two
    steps of the last decimal.
    """
    # The special functions behind x err by some 1e-14 of it; step below that first.
    step = Decimal(1).scaleb(-digits)
    return float(Decimal(x * (1 - 1e-12)).quantize(step, rounding=ROUND_FLOOR))


def write(table: pd.DataFrame, path: Path) -> None:
    """Write certificates as CSV, atomically; the same table, the same bytes."""
    with atomic(path) as part:
        table.to_csv(part, index=False, float_format=f"%.{DIGITS}f", lineterminator="\n")


def read(path: Path) -> pd.DataFrame:
    """Certificates from CSV.

    Raises:
        DataError: The file is missing or not a table of certificates.
    """
    try:
        table = pd.read_csv(path, dtype=COLUMNS)
    except FileNotFoundError:
        raise DataError(f"{path}: not found") from None
    except ValueError as error:  # all that pandas raises on what it cannot parse
        reason = " ".join(str(error).split())
        raise DataError(f"{path}: not a table of certificates ({reason})") from None
    if missing := [name for name in COLUMNS if name not in table]:
        raise DataError(f"{path}: not a table of certificates, no column {missing[0]!r}")
    if table.isna().any(axis=None) or not isinstance(table.index, pd.RangeIndex):
        raise DataError(f"{path}: not a table of certificates, a line is too short or too long")
    return table
