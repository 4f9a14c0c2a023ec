"""rRCM's advantage against the length of its pre-training and the share of labels, and the probes.

``python -m benchmarks.advantage --figure FILE`` in a checkout where the preset `fashion-mnist` is
up to date. An advantage is certified accuracy minus that of another method with the same sigma,
share of labels and gradient evaluations of fine-tuning, as a mean over the radii of the report that
the stopping rule settled and that any of them reaches. Methods of several seeds enter with their
mean; each seed of rRCM is a point. Evaluations and probes whose results are not here are named and
left out.
"""

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pipeline.project.stale import Present
from rrcm.analysis.entries import Entry
from rrcm.analysis.estimation import statistics
from rrcm.analysis.presentation import figures, markup
from rrcm.config.params import Params

METHOD = "rrcm"
SIGMA = 0.5  # the sigma at which the preset varies steps and labels
LONGER = "-total-"  # in names of runs that are trained longer than rRCM is fine-tuned
STEPS, LABELS = "pretrain.steps", "recipe.labels"
POINTS = 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--figure", type=Path, help="a PNG or SVG file")
    asked = parser.parse_args()
    present = Present()
    whole = present.params
    names = [name for name, one in whole.evals.items() if one.sigma == SIGMA and LONGER not in name]
    here = [name for name in names if Path(f"certificates/{name}.csv").exists()]
    found = present.evaluations(here)
    numbers, probes = advantages(found, whole.report.radii), probed(whole)
    for table in (numbers, probes):
        print(f"{markup.markdown(table.map(_text))}\n")
    probed_here = {*probes["encoder"]}
    absent = [name for name in names if name not in here]
    absent += [f"probe of {name}" for name in whole.representations if name not in probed_here]
    if absent:
        print(f"not here: {', '.join(absent)}")
    if asked.figure:
        figures.save(drawn(numbers, probes, usual=_usual(whole)), asked.figure)


def advantages(found: list[Entry], radii: list[float]) -> pd.DataFrame:
    """A row for each entry of rRCM and each other method with the same share of labels."""
    settled = [r for r in radii if not any(entry.undecided([r])[0] for entry in found)]
    settled = [r for r in settled if any((entry.table["radius"] >= r).any() for entry in found)]
    means = pd.DataFrame(
        {
            "method": entry.method,
            "seed": entry.seed,
            "labels": entry.settings[LABELS],
            "steps": entry.settings.get(STEPS, 0),
            "mean": sum(statistics.certified(entry.judged, r).mean() for r in settled)
            / len(settled),
        }
        for entry in found
    )
    ours, others = means[means["method"] == METHOD], means[means["method"] != METHOD]
    against = others.groupby(["method", "labels"], sort=False)["mean"].mean().rename("theirs")
    joined = ours.drop(columns="method").merge(against.reset_index(), on="labels")
    joined["advantage"] = joined["mean"] - joined.pop("theirs")
    return joined.rename(columns={"method": "against"}).sort_values(
        ["against", "labels", "steps", "seed"], ignore_index=True
    )


def probed(whole: Params) -> pd.DataFrame:
    """Accuracy of the linear probe of each encoder at each sigma."""
    rows: list[dict[str, Any]] = []
    for name, one in whole.representations.items():
        pretraining = whole.pretrain[Path(one.encoder).name]
        path = Path("represented", name, "metrics.json")
        if not path.exists():
            continue
        rows += [
            {
                "encoder": name,
                "steps": pretraining.steps,
                "seed": pretraining.seed,
                "sigma": sigma,
                "accuracy": share,
            }
            for sigma, share in json.loads(path.read_text())["probe"].items()
        ]
    columns = ["encoder", "steps", "seed", "sigma", "accuracy"]
    table = pd.DataFrame(rows, columns=columns)
    return table.sort_values(["sigma", "steps", "seed"], ignore_index=True)


def drawn(numbers: pd.DataFrame, probes: pd.DataFrame, *, usual: int) -> Figure:
    """Advantage against steps and against labels, and probe accuracy against steps."""
    with style.context(figures.STYLE):
        figure = Figure(figsize=(13, 3.8), layout="constrained")
        steps, labels, probe = figure.subplots(1, 3)
        lines = numbers.groupby(["against", "labels"], sort=False)
        several = ((name, line) for name, line in lines if line["steps"].nunique() > 1)
        for number, ((against, share), line) in enumerate(several):
            name = f"against {against}, {share:.0%} of labels"
            _line(steps, line["steps"], POINTS * line["advantage"], name, number)
        for number, (against, line) in enumerate(
            numbers[numbers["steps"] == usual].groupby("against", sort=False)
        ):
            shares, advantage = POINTS * line["labels"], POINTS * line["advantage"]
            _line(labels, shares, advantage, f"against {against}", number)
        for number, (sigma, line) in enumerate(probes.groupby("sigma", sort=False)):
            _line(probe, line["steps"], POINTS * line["accuracy"], f"σ = {sigma}", number)
        for axis in (steps, labels):
            axis.axhline(0, color="#444444", linewidth=0.8)
            axis.set_ylabel("rRCM ahead by, points of certified accuracy")
        steps.set_xlabel("steps of pre-training")
        labels.set_xlabel("labels used, %")
        probe.set_xlabel("steps of pre-training")
        probe.set_ylabel("accuracy of a linear probe under noise, %")
    return figure


def _line(axis: Axes, x: Iterable[float], y: pd.Series, label: str, number: int) -> None:
    """Points, and a line through the means of those that share an x."""
    look = {"color": figures.colour(number), "linestyle": figures.dash(number)}
    means = y.groupby([*x]).mean()
    axis.plot([*x], y, "o", color=look["color"], markersize=3, alpha=0.6)
    axis.plot(means.index, means, label=label, linewidth=1.4, **look)
    axis.set_xscale("log")
    axis.set_xticks([*means.index], [f"{tick:g}" for tick in means.index])
    axis.minorticks_off()
    axis.legend(frameon=False, fontsize=7)


def _usual(whole: Params) -> int:
    """The steps of pre-training that several seeds share."""
    steps = [one.steps for one in whole.pretrain.values()]
    return max(steps, key=steps.count)


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
