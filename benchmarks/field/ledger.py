"""From logs to rows of the ledger: audited, recomputed, and brought to one alpha."""

import dataclasses
import gzip
import io
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.field.paths import ALPHA, DRAWS, Facts, facts
from rrcm.analysis.estimation import statistics
from rrcm.auditing import audit, infer, written
from rrcm.auditing.attainable_radii import AttainableRadii
from rrcm.auditing.audit import Audit
from rrcm.auditing.findings import NOTE, Stated
from rrcm.auditing.ladder import around, rung
from rrcm.auditing.written import ROUNDINGS, SLIP
from rrcm.certification import tables
from rrcm.certification.votes.counts import ABSTAIN
from rrcm.core.errors import DataError
from rrcm.core.files import atomic

RADII = [0.25 * step for step in range(17)]
KINDS = ("", "_low", "_high")  # as the log has it; the ends at `ALPHA`
NUMBERS = [f"r{r:g}{kind}" for kind in KINDS for r in RADII]  # images that are certified
HARMLESS = ("radii were rounded to the nearest: ", "the header is not ")  # beginnings of warnings
CLEAN, PART, OTHER, FAULTY, UNCHECKED = "clean", "a part", "other n or α", "faulty", "unchecked"


def measure(base: Path, *, jobs: int) -> pd.DataFrame:
    """A row for each log below a folder; first refuses a path that no pattern matches."""
    files = sorted(path.relative_to(base).as_posix() for path in base.rglob("*") if path.is_file())
    if not files:
        raise DataError(f"{base}: there are no files below it")
    said = {file: facts(file) for file in files}
    with ProcessPoolExecutor(jobs) as pool:
        rows = pool.map(partial(row, base), said, said.values(), chunksize=8)
        return pd.DataFrame([*rows])


def row(base: Path, file: str, said: Facts) -> dict[str, Any]:
    """The row of one log: what its path says, what its radii tell, what they certify."""
    path, images = base / file, said.size or None
    values = said.values if said.values > 1 else None
    table = tables.scan(path)
    stated = Stated(n=said.n, alpha=said.alpha, sigma=said.sigma, images=images, values=values)
    found = audit.of_table(path, table, stated)
    origin = next(iter(found.inferred), None)
    result: dict[str, Any] = {"file": file} | dataclasses.asdict(said) | {"images": len(table)}
    result |= {"n": None, "alpha": None, "rounding": "", "told": False} | verdict(found, said)
    kinds = {"": table}
    if origin and None not in (origin.n, origin.alpha, origin.sigma):
        known = AttainableRadii(
            n=origin.n, alpha=origin.alpha, sigma=origin.sigma, rounding=origin.rounding
        )
        result |= {"n": known.n, "alpha": known.alpha, "rounding": known.rounding}
        result["told"] = all(one.text != infer.AGREE for one in found.findings)
        kinds |= dict(zip(KINDS[1:], restated(table, known, ALPHA), strict=True))
    for kind, radii in kinds.items():
        result[f"acr{kind}"] = round(statistics.average_certified_radius(radii), 5)
        for r in RADII:
            result[f"r{r:g}{kind}"] = int(statistics.certified(radii, r).sum())
    return result


def verdict(found: Audit, said: Facts) -> dict[str, str]:
    """The kind of an audit's verdict, and what it found beside rounding and notes."""
    told = [
        one for one in found.findings if one.level != NOTE and not one.text.startswith(HARMLESS)
    ]
    texts = [str(one).partition(": ")[2] for one in told]
    if (said.n, said.alpha) != (DRAWS, ALPHA):
        texts.append(f"n = {said.n:,}, alpha = {said.alpha:g}")
    if found.trusted is None:
        kind = UNCHECKED
    elif not all(one.of_stated for one in told):
        kind = FAULTY
    elif all("unfinished" in text for text in texts):
        kind = PART if texts else CLEAN
    else:
        kind = OTHER
    return {"verdict": kind, "found": "; ".join(texts)}


def merged(path: Path, new: pd.DataFrame) -> pd.DataFrame:
    """The ledger with ``new`` rows, which replace those of the same files."""
    old = read(path) if path.exists() else new[:0]
    rows = pd.concat([old[~old["file"].isin(new["file"])], new], ignore_index=True)
    return rows.sort_values("file", ignore_index=True)


def write(table: pd.DataFrame, path: Path) -> None:
    """Write a compressed table; the same rows give the same bytes."""
    text = table.to_csv(index=False, float_format="%.10g", lineterminator="\n")
    with atomic(path) as whole:
        whole.write_bytes(gzip.compress(text.encode(), mtime=0))


def read(path: Path) -> pd.DataFrame:
    """A table of `write`."""
    kinds = {name: "Int64" for name in (*NUMBERS, "n")}
    text = dict.fromkeys(("constants", "run", "found", "order"), str)
    table = pd.read_csv(io.BytesIO(gzip.decompress(path.read_bytes())), dtype=kinds | text)
    return table.fillna({name: "" for name in text if name in table})


def least(base: Path, rows: list[dict[str, Any]]) -> list[pd.DataFrame]:
    """The tables of some rows at `ALPHA`, with the least radii that their votes allow."""
    names = ("n", "alpha", "sigma", "rounding")
    origins = [AttainableRadii(**{name: one[name] for name in names}) for one in rows]
    files = [tables.read(base / one["file"]) for one in rows]
    return [restated(*pair, ALPHA)[0] for pair in zip(files, origins, strict=True)]


def restated(
    table: pd.DataFrame, origin: AttainableRadii, alpha: float
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The table at level ``alpha``, with the least and the largest radii that its votes allow.

    A written radius leaves an interval of exact ones, these an interval of votes for the class, by
    Clopper–Pearson at the alpha of the table (eq. 11), and votes have a radius at ``alpha``. Who
    abstains still does: all of them, unless ``alpha`` is the larger of the two.
    """
    rows = ((table["predict"] != ABSTAIN) & (table["radius"] > 0)).to_numpy()
    r = table["radius"].to_numpy()[rows]
    unit = written.units(r)
    below = r + ROUNDINGS[origin.rounding] * unit
    least = _most_hits(below - SLIP, origin) + 1
    ends = []
    for votes in (least, np.maximum(_most_hits(below + unit + SLIP, origin), least)):
        radii = np.zeros(len(table))
        radii[rows] = origin.sigma * rung(np.minimum(votes, origin.n), origin.n, alpha)
        answers = {"predict": table["predict"].where(radii >= 0, ABSTAIN)}
        answers["correct"] = table["correct"].where(radii >= 0, 0)
        ends.append(table.assign(radius=radii.clip(0), **answers))
    return ends[0], ends[1]


def _most_hits(radii: np.ndarray, origin: AttainableRadii) -> np.ndarray:
    """The most votes of which the radius is at most each of ``radii``."""
    z = np.maximum(radii, 0) / origin.sigma
    return around(z, np.zeros_like(z), origin.n, origin.alpha)[0]
