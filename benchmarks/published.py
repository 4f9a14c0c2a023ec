"""The field's table: released logs audited, recomputed, and brought to one alpha.

``python -m benchmarks.published --from DIR`` reads the logs that ``presets/field/rows.csv`` names,
from DIR. It writes ``logs.csv`` (a row for each log) and ``pairs.csv`` (paired tests) beside that
file, and docs/published.md from the three and ``page.md``. Without ``--from`` it only renders the
page.
"""

import argparse
import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
import pandas as pd

from rrcm.analysis import published
from rrcm.analysis.estimation import paired, statistics
from rrcm.auditing import attainable_radii, usual, written
from rrcm.auditing.attainable_radii import AttainableRadii
from rrcm.auditing.audit import audit
from rrcm.auditing.ladder import around, rung
from rrcm.certification import tables
from rrcm.certification.votes.counts import ABSTAIN
from rrcm.core.files import write_text

FIELD, PAGE = Path("presets/field"), Path("docs/published.md")
ALPHA = 0.001  # to which all logs are brought
LEVEL = 0.05  # of the paired tests
SHOWN = {  # radii on the page
    "cifar10": (0, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 2),
    "imagenet": (0, 0.5, 1, 1.5, 2, 2.5, 3),
    "imagenet, training images": (0, 0.5, 1, 1.5),
    "mnist": (0, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 1.75),
}
PRESETS = ("cifar10", "imagenet", "mnist")  # of which presets/published has numbers
RADII = sorted({r for shown in SHOWN.values() for r in shown})
NUMBERS = ["acr", *(f"r{r:g}" for r in RADII)]
ROW = ["dataset", "method", "source", "sigma_train", "sigma"]
PAIR = ["dataset", "sigma", "first", "second", "images", "radius"]
PAIR += ["only_first", "only_second", "difference", "p", "p_holm"]
ENTRY = r"(?P<model>\w+)-(?P<method>\w+)-s(?P<sigma_train>\d+)-e\d+"
MODELS = {"b": "rRCM B", "b_deep": "rRCM B-Deep"}
EXACT = {"down": (0.0, 1.0), "nearest": (-0.5, 0.5), "up": (-1.0, 0.0)}  # in last places


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--from", dest="logs", type=Path, help="the folder of the logs")
    if logs := parser.parse_args().logs:
        measure(logs, FIELD)
    write_text(PAGE, page(FIELD))
    print(claimed(pd.read_csv(FIELD / "logs.csv")))


def claimed(logs: pd.DataFrame) -> str:
    """What `rrcm audit` says of logs at a larger alpha if `ALPHA` is stated; for auditing.md."""
    lax = logs[logs["alpha"] > ALPHA]
    found = {name: [*lax[name].str.split(":").str[0]] for name in ("with_sigma", "without")}
    bad, also = (found[name].count("cannot be trusted") for name in found)
    rest = found["without"].count("cannot be checked")
    return (
        f"With `--alpha {ALPHA:g}` and their σ, {bad} of these {len(lax)} cannot be trusted; "
        f"without σ {also} cannot be trusted and {rest} cannot be checked."
    )


def measure(base: Path, field: Path) -> None:
    """Write ``logs.csv`` and ``pairs.csv`` from the logs below ``base``."""
    rows = pd.read_csv(field / "rows.csv")
    found = [log(row, base) for row in rows[rows["file"].notna()].to_dict("records")]
    pd.DataFrame([result for result, _ in found]).to_csv(field / "logs.csv", index=False)
    pd.concat(pairs(found)).to_csv(field / "pairs.csv", index=False)


def log(row: dict[str, Any], base: Path) -> tuple[dict[str, Any], pd.DataFrame | None]:
    """A row of ``logs.csv``, and the least radii at `ALPHA` unless n and alpha are unknown."""
    path, sigma = base / row["file"], row["sigma"]
    table, audited = tables.read(path), audit(path, sigma=sigma)
    known = audited.inferred[0] if audited.inferred else None
    result = {key: row[key] for key in (*ROW, "file")} | {"n": None, "alpha": None}
    if known:
        result |= {"sigma": known.sigma, "n": known.n, "alpha": known.alpha}
    result |= {"images": len(table), "verdict": audited.verdict}
    for name, stated in {"with_sigma": sigma, "without": None}.items():
        result[name] = audit(path, alpha=ALPHA, sigma=stated).verdict
    kinds = {"": table}
    if known:
        kinds |= dict(zip(("_low", "_high"), harmonised(table, sigma=sigma), strict=True))
    for kind, radii in kinds.items():
        result[f"acr{kind}"] = round(statistics.average_certified_radius(radii), 6)
        for r in RADII:
            result[f"r{r:g}{kind}"] = round(100 * statistics.certified(radii, r).mean(), 4)
    return result, kinds.get("_low")


def harmonised(table: pd.DataFrame, *, sigma: float) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The table at level `ALPHA`, with the least and the largest radii that its votes allow.

    A written radius leaves an interval of exact ones, these an interval of votes for the class, by
    Clopper–Pearson at the alpha of the table (eq. 11), and votes have a radius at `ALPHA`. Who
    abstains still does: all of them, unless `ALPHA` is the larger of the two.
    """
    rows = ((table["predict"] != ABSTAIN) & (table["radius"] > 0)).to_numpy()
    r = table["radius"].to_numpy()[rows]
    unit = written.units(r)
    origin = attainable_radii.infer(r, unit, usual.prior(sigma=sigma))[0]
    below, above = (r + places * unit for places in EXACT[origin.rounding])
    least = hits(below - written.SLIP, origin) + 1
    ends = []
    for votes in (least, np.maximum(hits(above + written.SLIP, origin), least)):
        radii = np.zeros(len(table))
        radii[rows] = origin.sigma * rung(np.minimum(votes, origin.n), origin.n, ALPHA)
        answers = {"predict": table["predict"].where(radii >= 0, ABSTAIN)}
        answers["correct"] = table["correct"].where(radii >= 0, 0)
        ends.append(table.assign(radius=radii.clip(0), **answers))
    return ends[0], ends[1]


def hits(radii: np.ndarray, origin: AttainableRadii) -> np.ndarray:
    """The most votes of which the radius is at most each of ``radii``."""
    z = np.maximum(radii, 0) / origin.sigma
    return around(z, np.zeros_like(z), origin.n, origin.alpha)[0]


def pairs(found: list[tuple[dict[str, Any], pd.DataFrame | None]]) -> Iterator[pd.DataFrame]:
    """Tests of all pairs of methods of a data set and sigma, corrected together (Holm).

    They are on the images that both have, if these are more than half of each. Copies of a log are
    left out, and networks that were trained for another sigma.
    """
    groups: dict[tuple[str, float], dict[str, tuple[str, pd.DataFrame]]] = {}
    for row, table in found:
        if table is not None and row["sigma"] == row["sigma_train"]:
            group = groups.setdefault((row["dataset"], row["sigma"]), {})
            group.setdefault(table.to_csv(), (row["method"], table))
    for (dataset, sigma), members in groups.items():
        tests = []
        for (first, a), (second, b) in itertools.combinations(members.values(), 2):
            one, other = a[a["idx"].isin(b["idx"])], b[b["idx"].isin(a["idx"])]
            if len(one) > max(len(a), len(b)) / 2 and paired.same_images(one, other):
                compared = paired.compare(one, other, radii=[*SHOWN[dataset]], confidence=0.95)
                names = {"dataset": dataset, "sigma": sigma, "first": first, "second": second}
                tests.append(compared.assign(images=len(one), **names))
        if tests:
            every = pd.concat(tests)
            every = every[every["only_first"] + every["only_second"] > 0]
            yield every.assign(p_holm=paired.holm(every["p"].to_numpy()))[PAIR]


def numbers(field: Path) -> pd.DataFrame:
    """All rows of the page: `NUMBERS`, and their upper ends ``_high``; ``alpha`` is text."""
    given, logs = pd.read_csv(field / "rows.csv"), pd.read_csv(field / "logs.csv")
    trusted = logs["verdict"].str.startswith("can be trusted")
    logs["from"] = np.where(trusted, "log ✓", "log ?")
    own = logs[logs["alpha"] != ALPHA][[*ROW, "from", "alpha", "images", *NUMBERS]]
    one = logs[logs["alpha"].notna()].drop(columns=NUMBERS).assign(alpha=ALPHA)
    one = one.rename(columns={f"{name}_low": name for name in NUMBERS})
    said = [given.dropna(how="all", subset=NUMBERS), *map(preset, PRESETS)]
    rest = pd.concat(said, ignore_index=True).assign(alpha="")
    rest["from"] = np.where(rest["source"] == "trained here", "here", "printed")
    for table in (own, one):
        table["alpha"] = [f"{a:g}" if a == a else "?" for a in table["alpha"]]
    every = pd.concat([rest, own, one], ignore_index=True)
    for name in NUMBERS:
        every[f"{name}_high"] = every[f"{name}_high"].fillna(every[name])
    every["other"] = every["sigma"] != every["sigma_train"]
    return every.sort_values(["sigma", "other", "source", "method"], kind="stable")


def preset(dataset: str) -> pd.DataFrame:
    """The rows of presets/published."""
    table = published.read(Path(f"presets/published/{dataset}.csv"))
    names = table.index.to_series().str.extract(ENTRY)
    table = table.join(names.assign(dataset=dataset))[names["method"] != "imported"]
    table["sigma_train"] = table["sigma_train"].astype(int) / 100
    method = table["model"].map(MODELS).fillna(table["method"])
    return table.assign(method=method, source="Jeong 2020" if dataset == "mnist" else "Lei 2025")


def cells(row: dict[str, Any], names: Iterable[str], places: int) -> Iterator[str]:
    """Printed numbers as they are, others rounded; intervals unless both ends look alike."""
    for name in names:
        form = "g" if row["from"] == "printed" else f".{places}f"
        low, high = (f"{row[key]:{form}}" for key in (name, f"{name}_high"))
        yield "" if low == "nan" else low if low == high else f"{low}–{high}"


def table(dataset: str, first: list[str], rows: Iterable[Iterable[str]]) -> str:
    """Markdown, with a column for each radius after the first ones."""
    head = [*first, *(f"r={r:g}" for r in SHOWN[dataset])]
    return "".join(f"|{'|'.join(row)}|\n" for row in [head, ["---"] * len(head), *rows])


def whole(every: pd.DataFrame, dataset: str) -> str:
    """All rows of a data set of a known sigma."""
    rows = []
    for row in every[(every["dataset"] == dataset) & every["sigma"].notna()].to_dict("records"):
        sigma = f"{row['sigma']:g}" + f" ({row['sigma_train']:g})" * row["other"]
        images = f"{row['images']:.0f}".replace("nan", "")
        start = [sigma, row["method"], row["source"], row["from"], row["alpha"], images]
        accuracy = cells(row, (f"r{r:g}" for r in SHOWN[dataset]), 1)
        rows.append([*start, *cells(row, ["acr"], 3), *accuracy])
    return table(dataset, ["σ", "method", "source", "from", "α", "images", "ACR"], rows)


def best(every: pd.DataFrame, dataset: str) -> str:
    """The best over sigma of each method: as Lei et al. print it, and of logs at `ALPHA`."""
    logs = ~every["other"] & (every["alpha"] == f"{ALPHA:g}")
    chosen = every[(every["dataset"] == dataset) & (logs | (every["source"] == "Lei 2025"))]
    keys = ["method", "source", "from"]
    most = chosen.groupby(keys)[[*NUMBERS, *(f"{name}_high" for name in NUMBERS)]].max()
    rows = most.reset_index().to_dict("records")
    names = [f"r{r:g}" for r in SHOWN[dataset]]
    return table(dataset, keys, [[*(r[k] for k in keys), *cells(r, names, 1)] for r in rows])


def leading(tests: pd.DataFrame, dataset: str) -> str:
    """For each sigma and radius, the methods that no other one beats."""
    rows = []
    for sigma, group in tests[tests["dataset"] == dataset].groupby("sigma"):
        rows.append([f"{sigma:g}"])
        for r in SHOWN[dataset]:
            part = group[group["radius"] == r]
            clear = part[part["p_holm"] <= LEVEL]
            beaten = clear["second"].where(clear["difference"] > 0, clear["first"])
            rows[-1].append(", ".join(sorted({*part["first"], *part["second"]} - {*beaten})))
    return table(dataset, ["σ"], rows)


def page(field: Path) -> str:
    """The page: ``page.md`` with the numbers of the other files and of presets/published."""
    logs, tests = pd.read_csv(field / "logs.csv"), pd.read_csv(field / "pairs.csv")
    every, lax = numbers(field), logs[logs["alpha"] > ALPHA]
    told = {"logs": len(logs), "untold": logs["alpha"].isna().sum(), "lax": len(lax)}
    told |= {"strict": (logs["alpha"] == ALPHA).sum(), "n": f"{logs['n'].max():,.0f}"}
    told["trusted"] = logs["verdict"].str.startswith("can be trusted").sum()
    told["copies"] = logs.duplicated(["images", *NUMBERS]).sum()
    drop = max((lax[name] - lax[f"{name}_low"]).max() for name in NUMBERS[1:])
    given = pd.read_csv(field / "rows.csv").set_index("file")[NUMBERS[1:]]
    apart = (given.loc[logs["file"]] - logs.set_index("file")[NUMBERS[1:]]).abs()
    told |= {"printed": apart.count().sum(), "agree": (apart <= 0.5).sum().sum()}
    told |= {"drop": f"{drop:.1f}", "tests": len(tests)}
    for dataset in SHOWN:
        key = dataset.split(", ")[-1].split()[0]
        told[f"{key}_all"] = whole(every, dataset)
        told |= {f"{key}_best": best(every, dataset), f"{key}_leading": leading(tests, dataset)}
    return Template((field / "page.md").read_text()).substitute(told)


if __name__ == "__main__":
    main()
