"""How often `rrcm audit` finds a planted fault, and how often it raises a false alarm.

``python -m benchmarks.audit`` simulates tables of certificates as real ones look: many images with
nearly all votes, others spread out, a quarter wrong or abstaining. Each is audited clean and once
with each fault. Whoever audits knows nothing of n, alpha and sigma but in the last row.
"""

import argparse
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
from scipy.special import betainccinv, ndtri

from rrcm import certify, tsv
from rrcm.auditing.audit import audit
from rrcm.auditing.findings import NOTE

DRAWS, ALPHAS, SIGMAS = (100, 1_000, 10_000, 100_000), (0.001, 0.01), (0.12, 0.25, 0.5, 1.0)
IMAGES = (100, 500)
FORMATS = {"csv": 6, "tsv": 6, "tsv, 4 decimals": 4, "tsv, 3 decimals": 3}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=200, help="clean tables of each format")
    options.add_argument("--faulty", type=int, default=30, help="rounds that plant faults, too")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--workers", type=int, default=2)
    arguments = options.parse_args()
    with ProcessPoolExecutor(arguments.workers) as pool:
        jobs = [
            pool.submit(measure, (arguments.seed, turn), faulty=turn < arguments.faulty)
            for turn in range(arguments.rounds)
        ]
        found = [job.result() for job in jobs]
    print("| fault | " + " | ".join(FORMATS) + " |\n| --- |" + " ---: |" * len(FORMATS))
    for fault in FAULTS:
        counts = {
            kind: [one[kind][fault] for one in found if fault in one[kind]] for kind in FORMATS
        }
        cells = (f"{sum(alarms)}/{len(alarms)}" for alarms in counts.values())
        print(f"| {fault} | " + " | ".join(cells) + " |")


def measure(seed: tuple[int, int], *, faulty: bool) -> dict[str, dict[str, bool]]:
    """Format -> fault -> whether it raised an alarm, of one table; the fault ``none`` is clean."""
    rng = np.random.default_rng(seed)
    n, alpha, sigma, images = (rng.choice(some) for some in (DRAWS, ALPHAS, SIGMAS, IMAGES))
    clean = simulate(rng, n=n, alpha=alpha, sigma=sigma, images=images)
    other = simulate(rng, n=n, alpha=alpha, sigma=2 * sigma, images=images)
    alarms: dict[str, dict[str, bool]] = {kind: {} for kind in FORMATS}
    with TemporaryDirectory() as folder:
        for kind, digits in FORMATS.items():
            pair = rounded(clean, digits), rounded(other, digits)
            for fault, plant in list(FAULTS.items())[: None if faulty else 1]:
                table = plant(*pair, 10.0**-digits, rng)
                stated = {"alpha": alpha / 2} if fault == "another alpha stated" else {}
                alarms[kind][fault] = alarmed(table, Path(folder), digits, kind == "csv", stated)
    return alarms


def simulate(
    rng: np.random.Generator, *, n: int, alpha: float, sigma: float, images: int
) -> pd.DataFrame:
    """Certificates of images, a mixture of certain, doubtful and wrong ones; radii in full."""
    sure = 1 - 10.0 ** rng.uniform(-7, -3, images)
    p = np.where(rng.random(images) < 0.4, sure, rng.beta(6, 1.2, images))
    wrong = rng.random(images) < 0.25
    p = np.where(wrong, rng.uniform(0.2, 0.7, images), p)
    hits = rng.binomial(n, p)
    some = np.maximum(hits, 1)
    q = np.where(hits > 0, betainccinv(n - some + 1, some, alpha), 1.0)
    radius = np.where(q < 0.5, -sigma * ndtri(q), 0.0)
    label = rng.integers(0, 10, images)
    predict = np.where(q < 0.5, np.where(wrong, (label + 1) % 10, label), -1)
    return pd.DataFrame(
        {
            "idx": 20 * np.arange(images),
            "label": label,
            "predict": predict,
            "radius": radius,
            "correct": (predict == label).astype(int),
            "n_A": hits,
            "n": n,
            "p_A": [certify.floor(1 - x) for x in q],
            "stop": "n",
        }
    )


def rounded(table: pd.DataFrame, digits: int) -> pd.DataFrame:
    """The same with radii of so many decimals, rounded down."""
    return table.assign(radius=[certify.floor(r, digits) for r in table["radius"]])


Fault = Callable[[pd.DataFrame, pd.DataFrame, float, np.random.Generator], pd.DataFrame]


def one_up(table, other, unit, rng):
    """One certified image, chosen by chance, with its radius rounded up."""
    chosen = rng.choice(np.flatnonzero(table["radius"] > 0))
    radius = table["radius"].to_numpy().copy()
    radius[chosen] = np.round(radius[chosen] + unit, 9)
    return table.assign(radius=radius)


def top_up(table, other, unit, rng):
    """The same of an image with the largest radius."""
    radius = table["radius"].to_numpy().copy()
    radius[radius.argmax()] = np.round(radius.max() + unit, 9)
    return table.assign(radius=radius)


def all_up(table, other, unit, rng):
    """All radii rounded up."""
    up = np.round(table["radius"] + unit, 9)
    return table.assign(radius=np.where(table["radius"] > 0, up, 0.0))


def mixed(table, other, unit, rng):
    """A fifth of the images of another sigma, twice as large."""
    foreign = rng.random(len(table)) < 0.2
    return pd.concat([table[~foreign], other[foreign]]).sort_index()


def twice(table, other, unit, rng):
    """An image that comes again."""
    again = table.iloc[[rng.integers(len(table))]]
    return pd.concat([table, again], ignore_index=True)


def missing(table, other, unit, rng):
    """Three images left out."""
    gone = rng.choice(np.arange(1, len(table) - 1), 3, replace=False)
    return table.drop(index=gone).reset_index(drop=True)


def contradicted(table, other, unit, rng):
    """A wrong answer that counts as correct."""
    wrong = np.flatnonzero(table["correct"] == 0)
    correct = table["correct"].to_numpy().copy()
    correct[rng.choice(wrong)] = 1
    return table.assign(correct=correct)


FAULTS: dict[str, Fault] = {
    "none": lambda table, other, unit, rng: table,
    "one radius rounded up": one_up,
    "the largest radius rounded up": top_up,
    "all radii rounded up": all_up,
    "two sigma": mixed,
    "`correct` a running total": lambda table, other, unit, rng: table.assign(
        correct=table["correct"].cumsum()
    ),
    "`correct` of a wrong answer": contradicted,
    "an image twice": twice,
    "three images missing": missing,
    "another alpha stated": lambda table, other, unit, rng: table,
}


def alarmed(
    table: pd.DataFrame, folder: Path, digits: int, ours: bool, stated: dict[str, float]
) -> bool:
    """Whether a written table gets an error or a warning."""
    path = folder / ("table.csv" if ours else "table.tsv")
    if ours:
        certify.write(table, path)
    else:
        tsv.write(table, path)
        if digits < 6:  # as others would write it
            text = table.assign(time="", radius=[f"{r:.{digits}f}" for r in table["radius"]])
            text[list(tsv.COLUMNS)].to_csv(path, sep="\t", index=False)
    return any(finding.level != NOTE for finding in audit(path, **stated).findings)


if __name__ == "__main__":
    main()
