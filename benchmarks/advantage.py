"""rRCM's advantage against the length of its pre-training and the share of labels.

``python -m benchmarks.advantage`` in a checkout where the preset `fashion-mnist` is up to date. An
advantage is certified accuracy minus that of another method with the same sigma, share of labels
and gradient evaluations of fine-tuning, as a mean over the radii of the report that the stopping
rule settled and that any of them reaches. Methods of several seeds enter with their mean; each seed
of rRCM is a row. Evaluations whose results are not here are named and left out.
"""

from pathlib import Path

import pandas as pd

from pipeline.project.stale import Present
from rrcm.analysis.entries import Entry
from rrcm.analysis.estimation import statistics
from rrcm.analysis.presentation import markup

METHOD = "rrcm"
SIGMA = 0.5  # the sigma at which the preset varies steps and labels
LONGER = "-total-"  # in names of runs that are trained longer than rRCM is fine-tuned
STEPS, LABELS = "pretrain.steps", "recipe.labels"


def main() -> None:
    present = Present()
    whole = present.params
    names = [name for name, one in whole.evals.items() if one.sigma == SIGMA and LONGER not in name]
    here = [name for name in names if Path(f"certificates/{name}.csv").exists()]
    numbers = advantages(present.evaluations(here), whole.report.radii)
    print(markup.markdown(numbers.round(4)))
    if absent := [name for name in names if name not in here]:
        print(f"not here: {', '.join(absent)}")


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


if __name__ == "__main__":
    main()
