"""The report: certificates of every evaluation -> metrics, tables, curves and one HTML page."""

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd

from rrcm import figures, statistics
from rrcm.files import atomic, write_text
from rrcm.params import Params

TEMPLATE = Path(__file__).with_name("report.html.jinja")


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One row of the report: a run at a sigma, and its certificates."""

    name: str
    model: str
    method: str
    sigma_train: float
    sigma: float
    seed: int
    table: pd.DataFrame


def entries(params: Params, tables: dict[str, pd.DataFrame]) -> list[Entry]:
    """What ``params`` evaluates, by model, sigma and training sigma, else in its order."""
    found = []
    for name, evaluation in params.evals.items():
        run = params.runs[evaluation.run]
        found.append(
            Entry(
                name=name,
                model=run.model,
                method=run.method,
                sigma_train=run.sigma,
                sigma=evaluation.sigma,
                seed=run.seed,
                table=tables[name],
            )
        )
    return sorted(found, key=lambda e: (e.model, e.sigma, e.sigma_train))


def metrics(found: list[Entry], *, radii: list[float], confidence: float) -> dict[str, Any]:
    """The numbers of every entry, for `dvc metrics`; shares in [0, 1], rounded to 6 digits."""
    numbers = {}
    for entry in found:
        accuracy = {}
        for radius in radii:
            share = statistics.certified_accuracy(entry.table, radius, confidence=confidence)
            accuracy[f"r{100 * radius:03.6g}"] = {
                "value": round(share.value, 6),
                "low": round(share.low, 6),
                "high": round(share.high, 6),
            }
        numbers[entry.name] = {
            "certified_accuracy": accuracy,
            "average_certified_radius": round(statistics.average_certified_radius(entry.table), 6),
            "abstention": round(statistics.abstention(entry.table), 6),
            "images": len(entry.table),
        }
    return numbers


def accuracy_table(found: list[Entry], *, radii: list[float], confidence: float) -> pd.DataFrame:
    """Certified accuracy in percent with its interval as text, one row per entry."""
    rows = []
    for entry in found:
        row = {"σ": f"{entry.sigma:g}", "method": _label(entry, found)}
        for radius in radii:
            share = statistics.certified_accuracy(entry.table, radius, confidence=confidence)
            low, high = f"{100 * share.low:.1f}", f"{100 * share.high:.1f}"
            row[f"r = {radius:g}"] = f"{100 * share.value:.1f} [{low}, {high}]"
        row["ACR"] = f"{statistics.average_certified_radius(entry.table):.3f}"
        row["abstain %"] = f"{100 * statistics.abstention(entry.table):.1f}"
        rows.append(row)
    return pd.DataFrame(rows)


def comparison_table(found: list[Entry], *, radii: list[float]) -> pd.DataFrame:
    """Exact McNemar tests between all entries that share model and sigma, radius by radius."""
    rows = []
    for first, second in itertools.combinations(found, 2):
        if (first.model, first.sigma) != (second.model, second.sigma):
            continue
        for radius in radii:
            test = statistics.mcnemar(first.table, second.table, radius)
            if test.only_first + test.only_second == 0:
                continue  # beyond what either can certify, or no difference at all
            rows.append(
                {
                    "σ": f"{first.sigma:g}",
                    "r": f"{radius:g}",
                    "A": _label(first, found),
                    "B": _label(second, found),
                    "only A": test.only_first,
                    "only B": test.only_second,
                    "p": f"{test.p:.2g}",
                }
            )
    return pd.DataFrame(rows)


def markdown(table: pd.DataFrame) -> str:
    """A table as GitHub markdown."""
    lines = [table.columns, ["---"] * len(table.columns), *table.astype(str).to_numpy().tolist()]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def write(found: list[Entry], params: Params, out: Path) -> None:
    """Write ``index.html``, ``table.md``, the curves as PNG, SVG and CSV to the folder ``out``."""
    radii, confidence = params.report.radii, params.report.confidence
    accuracy = accuracy_table(found, radii=radii, confidence=confidence)
    panels: dict[float, dict[str, pd.DataFrame]] = {}
    for entry in found:
        curve = statistics.curve(entry.table)
        panels.setdefault(entry.sigma, {})[_label(entry, found)] = curve
        with atomic(out / "curves" / f"{entry.name}.csv") as part:
            curve.to_csv(part, index=False, float_format="%.6f", lineterminator="\n")
    figure = figures.certified_accuracy(panels)
    for suffix in (".png", ".svg"):
        figures.save(figure, out / f"certified_accuracy{suffix}")
    write_text(out / "table.md", markdown(accuracy))
    svg = (out / "certified_accuracy.svg").read_text(encoding="utf-8")
    page = jinja2.Template(
        TEMPLATE.read_text(encoding="utf-8"), undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    write_text(
        out / "index.html",
        page.render(
            accuracy=accuracy,
            comparison=comparison_table(found, radii=radii),
            figure=svg[svg.index("<svg") :],
            images=max(len(entry.table) for entry in found),
            params=params,
        ),
    )


def _label(entry: Entry, found: list[Entry]) -> str:
    """The method, with whatever else is needed to tell entries of one sigma apart."""
    label = _short(entry, found)
    twins = [e for e in found if (e.sigma, _short(e, found)) == (entry.sigma, label)]
    return label if len(twins) == 1 else f"{label} ({entry.name})"


def _short(entry: Entry, found: list[Entry]) -> str:
    parts = [entry.method]
    if len({e.model for e in found}) > 1:
        parts.insert(0, entry.model)
    if entry.sigma_train != entry.sigma:
        parts.append(f"(trained at σ = {entry.sigma_train:g})")
    if len({e.seed for e in found}) > 1:
        parts.append(f"seed {entry.seed}")
    return " ".join(parts)
