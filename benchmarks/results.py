"""Results and costs of every method, after `dvc repro`: ``python -m benchmarks.results``.

Run it in a checkout whose params.yaml is a preset such as digits-all. It writes a chapter of a
Markdown page, replacing a chapter of the same title. Certified accuracy is the report's. Costs are
from the stages' ``provenance/``: seconds of stages that DVC restored are of the machine that ran
them. Latency is from `benchmarks.latency`, if it was run.
"""

import argparse
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from pipeline.project.differences import lines
from pipeline.project.stale import Present
from pipeline.project.work import Planned
from rrcm.analysis import entries
from rrcm.analysis.entries import Entry
from rrcm.analysis.estimation import paired
from rrcm.analysis.presentation import markup, tables
from rrcm.config.params import Params
from rrcm.core.files import write_text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="a markdown file of chapters")
    parser.add_argument("--title", required=True)
    parser.add_argument("--command", required=True, help="what made the results")
    parser.add_argument("--note", required=True, help="what else a reader has to know")
    parser.add_argument("--reference", default="rrcm", help="the method that is compared with each")
    asked = parser.parse_args()
    present = Present()
    whole = present.params
    found = up_to_date(present)
    missing = sorted(whole.evals.keys() - {entry.name for entry in found})
    shown = {"radii": whole.report.radii, "confidence": whole.report.confidence}
    chapter = CHAPTER.format(
        title=asked.title,
        command=asked.command,
        images=len(found[0].table),
        split=entries.split(found),
        draws=f"{whole.sample.n:,}",
        alpha=f"{whole.certify.alpha:g}",
        confidence=f"{100 * whole.report.confidence:g}",
        note=asked.note,
        missing=f"\n\nNot certified yet: {', '.join(missing)}." if missing else "",
        accuracy=markup.markdown(tables.accuracy_table(found, **shown)),
        costs=markup.markdown(costs(whole, found)),
        reference=asked.reference,
        compared=markup.markdown(against(found, asked.reference, **shown)),
        latency=LATENCY.format(table=LATENCY_TABLE.read_text()) if LATENCY_TABLE.exists() else "",
    )
    page = asked.out.read_text() if asked.out.exists() else ""
    write_text(asked.out, put(page, asked.title, chapter))


def up_to_date(present: Present) -> list[Entry]:
    """Return the certificates that are here; a stale one ends the program."""
    here = {path.stem for path in Path("certificates").glob("*.csv")}
    found = present.evaluations(name for name in present.params.evals if name in here)
    if stale := lines([(entry.name, entry.stale) for entry in found]):
        sys.exit("\n".join(stale))
    return found


LATENCY_TABLE = Path("results/latency/latency.md")
LATENCY = """
## What a certificate takes

Measured by `python -m benchmarks.latency` in one run, in turns, on one core: from pixels to the
vote of a noisy image, and for all draws of an image. × is how many times longer than the reference.

{table}"""
CHAPTER = """# {title}

Made by `{command}`, written down by `python -m benchmarks.results`.

{images} images{split}, up to {draws} noisy draws of each, α = {alpha}; certified accuracy in %
[{confidence} % Wilson interval]. {note}

{accuracy}
## What it cost

A gradient evaluation is a forward pass of the network for one image that is followed by a backward
one, of an attack too. A pre-training counts for each of the runs that start from it with its equal
share; a denoiser counts whole, with those that it starts from, and with the classifier behind it.
Operations are all of the training, the passes without a gradient too, two per multiply-add. Seconds
are those of the stages, beside other work, on the kind of device that is named; calls are of
networks, for one noisy draw.{missing}

{costs}
## {reference} against each

Difference of the shares that are certified at radius r, in points, over the same images; in
parentheses p of the exact McNemar test, corrected after Holm for all comparisons of one σ. It is
about these trained networks: another seed is another network. – is no disagreement at all.

{compared}{latency}"""


def put(page: str, title: str, chapter: str) -> str:
    """``page`` with a chapter, which replaces one of the same title or is appended."""
    chapters = re.split(r"^(?=# )", page, flags=re.MULTILINE)
    kept = [chapter if c.startswith(f"# {title}\n") else c for c in chapters if c]
    parts = kept if chapter in kept else [*kept, chapter]
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


def noted(stage: str) -> dict[str, Any]:
    """The provenance of a stage."""
    return json.loads(Path("provenance", f"{stage}.json").read_text())


def calls_of(whole: Params, name: str) -> dict[str, int]:
    """Network calls per noisy draw of a classifier, for ``classifier`` and ``denoiser``."""
    if name in whole.purified:
        cfg = whole.purified[name]
        each, behind = cfg.calls(), calls_of(whole, cfg.run)["classifier"]
        return {"denoiser": each["denoiser"], "classifier": behind * each["classifier"]}
    return {"denoiser": 0, "classifier": len(whole.runs_of(name)) or 1}


def costs(whole: Params, found: list[Entry]) -> pd.DataFrame:
    """The cost of training and certifying each entry."""
    rows, planned = [], Planned(whole)
    for entry in found:
        name = whole.evals[entry.name].run
        parts = trained(whole, planned, name)
        calls = calls_of(whole, name)
        sampled = noted(f"sample@{entry.name}")  # of its last run, if it was resumed
        drawn = whole.sample.n0 + entry.table["n"].mean()
        taken = 1e3 * drawn * sampled["seconds"] / sampled["draws"]
        rows.append(
            {
                "σ": entries.sigma(entry),
                "method": entries.label(entry, found),
                "gradient evaluations": f"{sum(part.gradients for part in parts):,.0f}",
                "training, TFLOP": f"{sum(part.operations for part in parts) / 1e12:,.0f}",
                "s": f"{sum(part.seconds for part in parts):.0f}",
                "on": ", ".join(sorted({part.device for part in parts})),
                "calls a draw": " + ".join(f"{n} {what}" for what, n in calls.items() if n),
                "draws an image": f"{drawn:,.0f}",
                "certification, ms an image": f"{taken:.0f}",
            }
        )
    return pd.DataFrame(rows)


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """What a stage took, or a ``share`` of it."""

    gradients: float
    operations: float
    seconds: float
    device: str


def cost(planned: Planned, stage: str, *, share: float = 1.0) -> Cost:
    """The cost of a stage, by its provenance."""
    note, work = noted(stage), planned.stage(stage)
    return Cost(
        gradients=share * note["gradient_evaluations"],
        operations=share * ((work and work.operations) or float("nan")),
        seconds=share * note["seconds"],
        device=note["device"],
    )


def trained(whole: Params, planned: Planned, name: str) -> list[Cost]:
    """The cost of training all runs of a classifier, and of its denoiser."""
    if name in whole.purified:
        cfg = whole.purified[name]
        return [*denoising(whole, planned, cfg.denoiser), *trained(whole, planned, cfg.run)]
    return [part for run in whole.runs_of(name) or [name] for part in training(whole, planned, run)]


def denoising(whole: Params, planned: Planned, folder: str) -> list[Cost]:
    """The cost of a denoiser and of those it started from; empty if it was imported."""
    kind, _, name = folder.partition("/")
    if kind != "denoisers":
        return []
    before = denoising(whole, planned, whole.denoisers[name].start)
    return [*before, cost(planned, f"denoise@{name}")]


def training(whole: Params, planned: Planned, name: str) -> list[Cost]:
    """The cost of a run, and its share of the pre-training."""
    kind, _, encoder = whole.runs[name].start.partition("/")
    own = cost(planned, f"train@{name}")
    if kind != "pretrained":
        return [own]
    sharers = sum(run.start == f"pretrained/{encoder}" for run in whole.runs.values())
    return [cost(planned, f"pretrain@{encoder}", share=1 / sharers), own]


def against(
    found: list[Entry], reference: str, *, radii: list[float], confidence: float
) -> pd.DataFrame:
    """Compare the entry of method ``reference`` with each other of its sigma, at each radius."""
    rows = []
    for first in [entry for entry in found if entry.method == reference]:
        others = [e for e in found if e.group == first.group and e is not first]
        compared = pd.concat(
            paired.compare(first.judged, other.judged, radii=radii, confidence=confidence).assign(
                against=entries.label(other, found)
            )
            for other in others
        ).reset_index()
        # Without disagreement the test can never reject (Tarone, 1990).
        tests = compared["only_first"] + compared["only_second"] > 0
        compared.loc[tests, "corrected"] = paired.holm(compared.loc[tests, "p"].to_numpy())
        for against, part in compared.groupby("against", sort=False):
            row = {"σ": entries.sigma(first), "against": against}
            for c in part.itertuples():
                text = f"{100 * c.difference:+.1f} ({c.corrected:.2g})"
                row[f"r = {c.radius:g}"] = "–" if pd.isna(c.corrected) else text
            rows.append(row)
    return pd.DataFrame(rows)


if __name__ == "__main__":
    main()
