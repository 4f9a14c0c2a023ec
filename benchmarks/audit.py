"""Detection rates and false alarms of `rrcm audit`, on simulated tables.

``python -m benchmarks.audit`` simulates tables of certificates like real ones: many images with
nearly unanimous votes, others spread out, a quarter wrong or abstaining. Each is audited clean and
once with each fault, without stating n, alpha and sigma except in the last row. Then it counts how
often n, alpha and sigma are inferred from tables with three significant digits, as published.
"""

import argparse
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
from scipy.special import ndtri

from rrcm.auditing.audit import Audit, audit
from rrcm.auditing.findings import ERROR, NOTE
from rrcm.certification import certify, tsv
from rrcm.certification.votes.bounds import beta_quantile

DRAWS, ALPHAS, SIGMAS = (100, 1_000, 10_000, 100_000), (0.001, 0.01), (0.12, 0.25, 0.5, 1.0)
IMAGES = (100, 500)
SIGNIFICANT = 0  # stands for three significant digits, rounded to nearest as by {:.3}
FORMATS = {
    "csv": 6,
    "tsv": 6,
    "tsv, 4 decimals": 4,
    "tsv, 3 decimals": 3,
    "tsv, 3 digits": SIGNIFICANT,
}
NEAREST = "radii were rounded to the nearest"  # true of all tables of significant digits
AT_CEILING = 5  # tables with fewer images with unanimous votes are not counted
PUBLISHED = (100, 200, 500, 1_000)  # images of a published table
KNOWN = {"nothing stated": (), "sigma stated": ("sigma",)}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=200, help="clean tables of each format")
    options.add_argument("--faulty", type=int, default=30, help="rounds that plant faults, too")
    options.add_argument("--published", type=int, default=200, help="tables of 3 digits to read")
    options.add_argument("--seed", type=int, default=0)
    arguments = options.parse_args()
    with ProcessPoolExecutor() as pool:
        jobs = [
            pool.submit(measure, (arguments.seed, turn), faulty=turn < arguments.faulty)
            for turn in range(arguments.rounds)
        ]
        read = [pool.submit(tell, (arguments.seed, turn, 1)) for turn in range(arguments.published)]
        found, told = [job.result() for job in jobs], [job.result() for job in read]
    print("| fault | " + " | ".join(FORMATS) + " |\n| --- |" + " ---: |" * len(FORMATS))
    for fault in FAULTS:
        counts = {
            kind: [one[kind][fault] for one in found if fault in one[kind]] for kind in FORMATS
        }
        cells = (f"{sum(alarms)}/{len(alarms)}" for alarms in counts.values())
        print(f"| {fault} | " + " | ".join(cells) + " |")
    print("\n| 3 digits | " + " | ".join(KNOWN) + " |\n| --- |" + " ---: |" * len(KNOWN))
    for outcome in OUTCOMES:
        cells = (f"{sum(outcome in one[known] for one in told)}/{len(told)}" for known in KNOWN)
        print(f"| {outcome} | " + " | ".join(cells) + " |")


OUTCOMES = (
    "(n, alpha, sigma) is the first inferred",
    "it is among others, not the first",
    "only others are inferred: wrong",
    "nothing is inferred",
    "several are inferred",
    "an error, or a warning but of rounding",
)


def tell(seed: tuple[int, int, int]) -> dict[str, set[str]]:
    """Stated values -> the outcome for one table, one of ``OUTCOMES``."""
    rng = np.random.default_rng(seed)
    unanimous = 0
    while unanimous < AT_CEILING:
        n, alpha, sigma, images = (rng.choice(some) for some in (DRAWS, ALPHAS, SIGMAS, PUBLISHED))
        table = published(rng, n=n, alpha=alpha, sigma=sigma, images=images)
        unanimous = (table["n_A"] == n).sum()
    truth, result = (n, alpha, sigma), {}
    with TemporaryDirectory() as folder:
        path = Path(folder) / "table.tsv"
        write_published(table, path)
        for known, names in KNOWN.items():
            found = audit(path, **dict.fromkeys(names, float(sigma)))
            inferred = [(one.n, one.alpha, one.sigma) for one in found.inferred]
            right = truth in inferred
            happened = {
                OUTCOMES[0]: right and inferred[0] == truth,
                OUTCOMES[1]: right and inferred[0] != truth,
                OUTCOMES[2]: bool(inferred) and not right,
                OUTCOMES[3]: not inferred,
                OUTCOMES[4]: len(inferred) > 1,
                OUTCOMES[5]: bad(found),
            }
            result[known] = {outcome for outcome, holds in happened.items() if holds}
    return result


def published(
    rng: np.random.Generator, *, n: int, alpha: float, sigma: float, images: int
) -> pd.DataFrame:
    """Run `simulate` for a random classifier: good or bad, and more or less certain."""
    return simulate(
        rng,
        n=n,
        alpha=alpha,
        sigma=sigma,
        images=images,
        sure=rng.uniform(0, 0.5),
        doubt=(rng.uniform(-7, -5), rng.uniform(-3, -2)),
        others=(rng.uniform(2, 8), rng.uniform(0.8, 2)),
        wrong=rng.uniform(0.1, 0.4),
    )


def write_published(table: pd.DataFrame, path: Path) -> None:
    """Write a table as the program of Cohen et al. (2019), arXiv:1902.02918, does."""
    lines = ["\t".join(tsv.COLUMNS)]
    for idx, label, predict, radius, correct in zip(
        *(table[name].tolist() for name in tsv.COLUMNS[:5]), strict=True
    ):
        lines.append(f"{idx}\t{label}\t{predict}\t{radius:.3}\t{correct}\t0:00:17.512345")
    path.write_text("\n".join(lines) + "\n")


def measure(seed: tuple[int, int], *, faulty: bool) -> dict[str, dict[str, bool]]:
    """Format -> fault -> whether one table raised an alarm; the fault ``none`` is a clean table."""
    rng = np.random.default_rng(seed)
    n, alpha, sigma, images = (rng.choice(some) for some in (DRAWS, ALPHAS, SIGMAS, IMAGES))
    clean = simulate(rng, n=n, alpha=alpha, sigma=sigma, images=images)
    other = simulate(rng, n=n, alpha=alpha, sigma=2 * sigma, images=images)
    alarms: dict[str, dict[str, bool]] = {kind: {} for kind in FORMATS}
    with TemporaryDirectory() as folder:
        for kind, digits in FORMATS.items():
            pair = rounded(clean, digits), rounded(other, digits)
            for fault, plant in list(FAULTS.items())[: None if faulty else 1]:
                table = plant(*pair, places(pair[0]["radius"].to_numpy(), digits), rng)
                stated = {"alpha": alpha / 2} if fault == "another alpha stated" else {}
                found = audited(table, Path(folder), digits, kind == "csv", stated)
                alarms[kind][fault] = bad(found)
    return alarms


def simulate(
    rng: np.random.Generator,
    *,
    n: int,
    alpha: float,
    sigma: float,
    images: int,
    sure: float = 0.4,
    doubt: tuple[float, float] = (-7, -3),
    others: tuple[float, float] = (6, 1.2),
    wrong: float = 0.25,
) -> pd.DataFrame:
    """Certificates of images, a mixture of certain, doubtful and wrong ones; radii in full.

    ``sure`` and ``wrong`` are shares of images. Certain images have a log10(1 - p) within
    ``doubt``; the p of others has a beta distribution with parameters ``others``.
    """
    certain = 1 - 10.0 ** rng.uniform(*doubt, images)
    p = np.where(rng.random(images) < sure, certain, rng.beta(*others, images))
    wrong = rng.random(images) < wrong
    p = np.where(wrong, rng.uniform(0.2, 0.7, images), p)
    hits = rng.binomial(n, p)
    some = np.maximum(hits, 1)
    q = np.where(hits > 0, beta_quantile(n - some + 1, some, alpha), 1.0)
    radius = np.where(q < 0.5, -sigma * ndtri(q), 0.0)
    label = rng.integers(0, 10, images)
    predict = np.where(q < 0.5, np.where(wrong, (label + 1) % 10, label), -1)
    return pd.DataFrame(
        {
            "idx": 20 * np.arange(images),
            "label": label,
            "predict": predict,
            "radius": radius,
            "exact": radius,
            "correct": (predict == label).astype(int),
            "n_A": hits,
            "n": n,
            "p_A": [certify.floor(1 - x) for x in q],
            "stop": "n",
        }
    )


def rounded(table: pd.DataFrame, digits: int) -> pd.DataFrame:
    """The table with radii rounded down to ``digits`` decimals, or as `SIGNIFICANT` defines."""
    if digits == SIGNIFICANT:
        return table.assign(radius=[float(f"{r:.3}") for r in table["radius"]])
    return table.assign(radius=[certify.floor(r, digits) for r in table["radius"]])


def places(radii: np.ndarray, digits: int) -> np.ndarray:
    """The last place of each radius [N]; that of 0 does not matter."""
    if digits != SIGNIFICANT:
        return np.full(len(radii), 10.0**-digits)
    return 10.0 ** (np.floor(np.log10(np.where(radii > 0, radii, 1.0))) - 2)


Fault = Callable[[pd.DataFrame, pd.DataFrame, np.ndarray, np.random.Generator], pd.DataFrame]


def one_up(table, other, unit, rng):
    """Round up the radius of a random certified image."""
    chosen = rng.choice(np.flatnonzero(table["radius"] > 0))
    radius = table["radius"].to_numpy().copy()
    radius[chosen] = np.round(radius[chosen] + unit[chosen], 9)
    return table.assign(radius=radius)


def top_up(table, other, unit, rng):
    """Round up the radius of an image with the largest radius."""
    radius = table["radius"].to_numpy().copy()
    top = radius.argmax()
    radius[top] = np.round(radius[top] + unit[top], 9)
    return table.assign(radius=radius)


def all_up(table, other, unit, rng):
    """Round up all radii."""
    return table.assign(radius=np.round(np.ceil(table["exact"] / unit) * unit, 9))


def mixed(table, other, unit, rng):
    """Take a fifth of the images from a table of twice the sigma."""
    foreign = rng.random(len(table)) < 0.2
    return pd.concat([table[~foreign], other[foreign]]).sort_index()


def twice(table, other, unit, rng):
    """Repeat an image."""
    again = table.iloc[[rng.integers(len(table))]]
    return pd.concat([table, again], ignore_index=True)


def missing(table, other, unit, rng):
    """Leave out three images."""
    gone = rng.choice(np.arange(1, len(table) - 1), 3, replace=False)
    return table.drop(index=gone).reset_index(drop=True)


def contradicted(table, other, unit, rng):
    """Count a wrong answer as correct."""
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


def audited(
    table: pd.DataFrame, folder: Path, digits: int, ours: bool, stated: dict[str, float]
) -> Audit:
    """Write a table to a file of its format, and audit it."""
    path = folder / ("table.csv" if ours else "table.tsv")
    if ours:
        certify.write(table[[*certify.COLUMNS]], path)
    else:
        tsv.write(table, path)
        if digits == SIGNIFICANT:
            write_published(table, path)
        elif digits < 6:  # in the field's format
            text = table.assign(time="", radius=[f"{r:.{digits}f}" for r in table["radius"]])
            text[list(tsv.COLUMNS)].to_csv(path, sep="\t", index=False)
    return audit(path, **stated)


def bad(found: Audit) -> bool:
    """Whether there is an error, or a warning other than the one expected for three digits."""
    return any(
        finding.level == ERROR or (finding.level != NOTE and not finding.text.startswith(NEAREST))
        for finding in found.findings
    )


if __name__ == "__main__":
    main()
