"""docs/published.md: the ledger's frontier, verdicts and tests as Markdown."""

from collections.abc import Iterable
from pathlib import Path
from string import Template
from typing import Any

import pandas as pd

from benchmarks.field import chances, ledger
from benchmarks.field.paths import ALPHA, METHODS
from rrcm.analysis import published
from rrcm.analysis.estimation import intervals

SHOWN = {  # radii on the page
    "cifar10": (0, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 2, 2.5, 3),
    "imagenet": (0, 0.5, 1, 1.5, 2, 2.5, 3),
    "cifar100": (0, 0.25, 0.5, 0.75, 1, 1.5),
    "mnist": (0, 0.25, 0.5, 0.75, 1, 1.5, 2, 2.5),
}
PRESETS = ("cifar10", "imagenet", "mnist")  # of which presets/published has numbers
ENTRY = r"(?P<model>\w+)-(?P<method>\w+)-s(?P<sigma_train>\d+)-e\d+"
NAMES = METHODS | {"b": "rRCM B", "b_deep": "rRCM B-Deep", "Consistency": "consistency"}
NAMES["smoothadv_consistency"] = "consistency + SmoothAdv"
LEVEL, CONFIDENCE = 0.05, 0.95
OVER = "all"
COLUMNS = ["dataset", "sigma", "sigma_train", "method", "constants", "extra", "source", "network"]
COLUMNS += ["run", "images", "n", "alpha", "verdict", "found"]
KINDS = (ledger.CLEAN, ledger.PART, ledger.OTHER, ledger.FAULTY, ledger.UNCHECKED)


def page(field: Path) -> str:
    """The page: ``page.md`` with the numbers of the other files and of presets/published."""
    rows = ledger.read(field / "ledger.csv.gz")
    tests, best = (ledger.read(field / f"{name}.csv.gz") for name in ("pairs", "curse"))
    given = printed(field)
    told = {"logs": f"{len(rows):,}", "images": f"{rows['images'].sum():,}"}
    told |= {"told": f"{rows['told'].sum():,}", "verdicts": verdicts(rows)}
    told |= {"tests": f"{len(tests):,}", "recipes": spread(best["recipes"])}
    lax = rows[(rows["source"] == "Cohen 2019") & (rows["alpha"] > ALPHA)]
    lost = [((lax[f"r{r:g}"] - lax[f"r{r:g}_low"]) / lax["images"]).max() for r in ledger.RADII]
    told |= {"curse": curse(best), "drop": f"{100 * max(lost):.1f}", "gap": f"{gap(rows):.1f}"}
    for name, other in {"lost": "elsewhere", "lost_again": "again"}.items():
        told[name] = f"{100 * (best['chosen'] - best[other]).mean():.1f}"
    for dataset in SHOWN:
        told[f"{dataset}_frontier"] = frontier(rows, given, dataset)
        told[f"{dataset}_beside"] = beside(rows, given, dataset)
        told[f"{dataset}_leading"] = leading(tests, dataset)
    return Template((field / "page.md").read_text()).substitute(told)


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Markdown."""
    head = [*head]
    return "".join(f"|{'|'.join(row)}|\n" for row in [head, ["---"] * len(head), *rows])


def heads(dataset: str) -> list[str]:
    return [f"r={r:g}" for r in SHOWN[dataset]]


def spread(values: pd.Series) -> str:
    low, high = values.min(), values.max()
    return f"{low:,}" if low == high else f"{low:,}–{high:,}"


def verdicts(rows: pd.DataFrame) -> str:
    """How many logs of each source have which verdict."""
    counts = rows.groupby(["source", "verdict"]).size().unstack(fill_value=0)
    kinds = [kind for kind in KINDS if kind in counts]
    parts = [[source, *(f"{row[kind]:,}" for kind in kinds)] for source, row in counts.iterrows()]
    return table(["source", *kinds], parts)


def frontier(rows: pd.DataFrame, given: pd.DataFrame, dataset: str) -> str:
    """For each sigma and over all, without and with extra data, the best at each radius."""
    rows = chances.full(rows[rows["dataset"] == dataset])
    lines = []
    for sigma in [*sorted(rows["sigma"].unique()), OVER]:
        of_sigma = rows if sigma == OVER else rows[rows["sigma"] == sigma]
        for extra in ("none", "extra"):
            part = of_sigma[(of_sigma["extra"] == "none") == (extra == "none")]
            if len(part):
                first = [sigma if sigma == OVER else f"{sigma:g}", extra, "log ✓"]
                images = spread(part["images"])
                lines.append([*first, images, *(best(part, r) for r in SHOWN[dataset])])
    said = given[(given["dataset"] == dataset) & ~given["verified"]]
    if len(said):
        cells = [most(said, r) for r in SHOWN[dataset]]
        lines.append([OVER, "any", "printed", "", *cells])
    return table(["σ", "data", "from", "images", *heads(dataset)], lines)


def best(rows: pd.DataFrame, radius: float) -> str:
    """The largest certified accuracy in percent with its interval (eq. 13), and its method."""
    row = rows.loc[(rows[f"r{radius:g}_low"] / rows["images"]).idxmax()]
    hits, images = int(row[f"r{radius:g}_low"]), int(row["images"])
    if not hits:
        return ""
    share = intervals.wilson(hits, images, confidence=CONFIDENCE)
    value, low, high = (f"{100 * x:.1f}" for x in (share.value, share.low, share.high))
    return f"**{value}**<br>{low}–{high}<br>{row['method'].replace(' ', '')}"


def most(given: pd.DataFrame, radius: float) -> str:
    column = f"r{radius:g}"
    if column not in given or not given[column].max() > 0:
        return ""
    row = given.loc[given[column].idxmax()]
    return f"{row[column]:g}<br>{row['method']}"


def printed(field: Path) -> pd.DataFrame:
    """What papers print; ``verified`` where the ledger has logs of the same table."""
    given = pd.read_csv(field / "printed.csv")
    every = pd.concat([given, *map(preset, PRESETS)], ignore_index=True)
    every["method"] = every["method"].replace(NAMES)
    return every.assign(verified=every["source"].isin(["Cohen 2019", "Jeong 2020", "trained here"]))


def preset(dataset: str) -> pd.DataFrame:
    """The rows of presets/published."""
    found = published.read(Path(f"presets/published/{dataset}.csv"))
    names = found.index.to_series().str.extract(ENTRY)
    found = found.join(names.assign(dataset=dataset))[names["method"] != "imported"]
    found["sigma_train"] = found["sigma_train"].astype(int) / 100
    model = found["model"].where(found["model"].isin(NAMES))
    source = "Jeong 2020" if dataset == "mnist" else "Lei 2025"
    return found.assign(method=model.fillna(found["method"]), source=source)


def beside(rows: pd.DataFrame, given: pd.DataFrame, dataset: str) -> str:
    """Printed numbers, and those of the logs of the same method and sigma, or of the best sigma."""
    rows, given = (every[every["dataset"] == dataset] for every in (rows, given))
    full = chances.full(rows[rows["extra"] == "none"])
    lines = []
    for said in given[given["source"] != "trained here"].to_dict("records"):
        same = rows[rows["source"] == "Cohen 2019"] if said["source"] == "Cohen 2019" else full
        same = same[(same["method"] == said["method"]) & (same["sigma"] == same["sigma_train"])]
        over = said["sigma"] != said["sigma"]  # NaN: the best over sigma
        same = same if over else same[same["sigma"] == said["sigma"]]
        if same.empty or (said["sigma"] != said["sigma_train"] and not over):
            continue
        lines.append([OVER if over else f"{said['sigma']:g}", said["method"], said["source"]])
        for r in SHOWN[dataset]:
            value, shares = said.get(f"r{r:g}", 0), 100 * same[f"r{r:g}"] / same["images"]
            ends = [f"{x:.1f}" for x in ([] if over else [shares.min()]) + [shares.max()]]
            lines[-1].append(f"{value:g}/{'–'.join(dict.fromkeys(ends))}" if value > 0 else "")
    return table(["σ", "method", "printed by", *heads(dataset)], lines)


def leading(tests: pd.DataFrame, dataset: str) -> str:
    """For each sigma and radius, the methods that no other one beats."""
    lines = []
    for sigma, group in tests[tests["dataset"] == dataset].groupby("sigma"):
        lines.append([f"{sigma:g}"])
        for r in SHOWN[dataset]:
            part = group[group["radius"] == r]
            clear = part[part["p_holm"] <= LEVEL]
            beaten = clear["second"].where(clear["difference"] > 0, clear["first"])
            lines[-1].append(", ".join(sorted({*part["first"], *part["second"]} - {*beaten})))
    return table(["σ", *heads(dataset)], lines)


def gap(rows: pd.DataFrame) -> float:
    """Mean lead of the best method over the second, on CIFAR-10 without extra data, in points."""
    plain = chances.full(rows[(rows["dataset"] == "cifar10") & (rows["extra"] == "none")])
    leads = []
    for r in SHOWN["cifar10"]:
        shares = (plain[f"r{r:g}_low"] / plain["images"]).groupby([plain["sigma"], plain["method"]])
        for _, of_sigma in shares.max().groupby(level=0):
            first, second = of_sigma.nlargest(2)
            leads += [first - second] if first else []
    return 100 * sum(leads) / len(leads)


def curse(found: pd.DataFrame) -> str:
    """What the best of many recipes loses on images that did not choose it, in points."""
    lines = []
    for row in found.to_dict("records"):
        if row["radius"] not in SHOWN["cifar10"]:
            continue
        chosen, elsewhere, again = (100 * row[key] for key in ("chosen", "elsewhere", "again"))
        numbers = [f"{chosen:.1f}", f"{elsewhere:.1f}", f"**{chosen - elsewhere:.1f}**"]
        numbers.append("" if again != again else f"{again:.1f}")
        lines.append(
            [
                f"{row['sigma']:g}",
                f"{row['radius']:g}",
                row["best"].removeprefix("attack=").replace(" ", ""),
                *numbers,
            ]
        )
    head = ["σ", "r", "best recipe", "as chosen", "elsewhere", "too high by", "on 9,500 others"]
    return table(head, lines)


def browsed(field: Path) -> dict[str, Any]:
    """All rows for a page that searches and sorts: cells, then ACR and accuracies of each alpha."""
    rows = ledger.read(field / "ledger.csv.gz").astype(object)
    rows = rows.where(rows.notna(), None)

    def numbers(row: dict[str, Any], kind: str) -> list[float | None]:
        hits = [row[f"r{r:g}{kind}"] for r in ledger.RADII]
        shares = [None if n is None else round(100 * n / row["images"], 2) for n in hits]
        return [row[f"acr{kind}"], *shares]

    cells = [
        [*(row[name] for name in COLUMNS), numbers(row, ""), numbers(row, "_low")]
        for row in rows.to_dict("records")
    ]
    return {"columns": COLUMNS, "rows": cells, "radii": ledger.RADII}
