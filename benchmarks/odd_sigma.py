"""Detection rates and false alarms of `rrcm audit` where sigma is no short decimal.

``python -m benchmarks.odd_sigma`` simulates tables as `benchmarks.audit` does, with a sigma that is
a level of 255, 1/3 and the like, a short decimal divided by a dataset's standard deviation or by
sqrt(3072), or any real number. Half of them are audited with n, alpha and sigma stated, sigma to
six digits. Some are audited again with each fault of radii, without stating anything.
"""

import argparse
import math
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks.audit import (
    ALPHAS,
    DRAWS,
    FAULTS,
    FORMATS,
    IMAGES,
    audited,
    bad,
    places,
    rounded,
    simulate,
)
from rrcm.auditing.audit import Audit

DECIMALS = (0.1, 0.12, 0.25, 0.5, 0.75, 1.0)
DEVIATIONS = (0.2023, 0.1994, 0.2010, 0.247, 0.2435, 0.2616, 0.229, 0.224, 0.225)
CLOSE = 0.005  # relative difference to a sigma that counts as it; three digits tell no more
RADII = [*FAULTS][1:5]  # faults of radii, which the freedom of sigma might hide


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--clean", type=int, default=10_000, help="clean tables of all formats")
    options.add_argument("--faulty", type=int, default=100, help="tables of each format and fault")
    options.add_argument("--seed", type=int, default=0)
    arguments = options.parse_args()
    faulty = arguments.faulty * len(FORMATS)
    counts: Counter[tuple[str, str]] = Counter()
    with ProcessPoolExecutor() as pool:
        run = partial(outcomes, arguments.seed, faulty=faulty)
        for happened in pool.map(run, range(max(arguments.clean, faulty)), chunksize=20):
            counts.update(happened)
    print("| sigma no short decimal | " + " | ".join(FORMATS) + " |")
    print("| --- |" + " ---: |" * len(FORMATS))
    for row in ("false alarms, nothing stated", "false alarms, all stated", *RIGHT, *RADII):
        cells = (f"{counts[row, kind]}/{counts[f'all {row}', kind]}" for kind in FORMATS)
        print(f"| {row} | " + " | ".join(cells) + " |")


RIGHT = ("inferred right, nothing stated", "inferred wrong, nothing stated")


def odd(rng: np.random.Generator) -> float:
    """A sigma that is no short decimal."""
    kinds = (
        rng.integers(4, 129) / 255,
        1 / rng.choice((3, 6, 7, 9, 11)),
        rng.choice(DECIMALS) / rng.choice(DEVIATIONS),
        rng.integers(1, 60) / math.sqrt(3072),
        math.exp(rng.uniform(math.log(0.05), math.log(2))),
    )
    return float(kinds[rng.integers(len(kinds))])


def outcomes(seed: int, turn: int, *, faulty: int) -> list[tuple[str, str]]:
    """What happened to one table, as (row, format); the rows ``all ...`` count the tables."""
    rng = np.random.default_rng((seed, turn, 2))
    n, alpha, images = (rng.choice(some) for some in (DRAWS, ALPHAS, IMAGES))
    kind, sigma, stated = [*FORMATS][turn % len(FORMATS)], odd(rng), turn // len(FORMATS) % 2
    digits = FORMATS[kind]
    tables = [
        rounded(simulate(rng, n=n, alpha=alpha, sigma=times * sigma, images=images), digits)
        for times in (1, 2)
    ]
    unit, how = places(tables[0]["radius"].to_numpy(), digits), ("nothing", "all")[stated]
    values = {"n": int(n), "alpha": float(alpha), "sigma": float(f"{sigma:.6g}")} if stated else {}
    with TemporaryDirectory() as folder:
        write = partial(audited, folder=Path(folder), digits=digits, ours=kind == "csv")
        clean = write(tables[0], stated=values)
        happened = {f"false alarms, {how} stated": bad(clean)}
        if not stated:
            right = [_is(clean, i, n, alpha, sigma) for i in range(len(clean.inferred))]
            happened |= dict(zip(RIGHT, (any(right), bool(right) and not any(right)), strict=True))
        if turn < faulty:
            for fault in RADII:
                table = FAULTS[fault](tables[0], tables[1], unit, rng)
                happened[fault] = bad(write(table, stated={}))
    every = [(f"all {row}", kind) for row in happened]
    return every + [(row, kind) for row, holds in happened.items() if holds]


def _is(found: Audit, place: int, n: int, alpha: float, sigma: float) -> bool:
    one = found.inferred[place]
    if one.n != n or one.alpha is None or one.sigma is None:
        return False
    return math.isclose(one.alpha, alpha, rel_tol=0.01) and math.isclose(
        one.sigma, sigma, rel_tol=CLOSE
    )


if __name__ == "__main__":
    main()
