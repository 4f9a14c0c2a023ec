"""Does a longer pre-training help? The tests that docs/results-cifar10.md fixed beforehand.

``python -m benchmarks.trend [--figure FILE.png]`` in a checkout where the certificates of the
preset `cifar10-pretraining` are up to date. First, the certified accuracy of each length at each
rate, as a mean over networks. `CHOSEN` is what this said of the choice split: `sample.split` at
`choice`, `sample.subset` at `all`, and the networks of the first seed of fine-tuning. Then, where
all networks of a length are here: differences of lengths, and the trend.
"""

from argparse import ArgumentParser
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib import style
from matplotlib.figure import Figure
from scipy.stats import page_trend_test

from pipeline.project.stale import Present
from rrcm.analysis.estimation import statistics
from rrcm.analysis.estimation.intervals import Estimate, crossed_mean
from rrcm.analysis.presentation import figures, markup

SEEDS = 3  # of fine-tuning
LENGTHS = {  # epochs of pre-training -> the encoders of this length
    0: ("scratch",),
    5: ("e5-seed0", "e5-seed1"),
    20: ("e20-seed0", "e20-seed1"),
    78: ("e78-seed0", "e78-seed1"),
}
RATES = ("lr020", "lr005")
CHOSEN = dict.fromkeys(LENGTHS, "lr020")
PAIRS = ((78, 5), (78, 0), (20, 5), (20, 0), (5, 0))  # the first is that of the test
CONFIDENCE = 0.95


def read(length: int, rate: str) -> list[list[pd.DataFrame]]:
    """Certificates [encoders][seeds of fine-tuning]; none unless all encoders have as many."""
    paths = [
        [Path(f"certificates/resnet9-{one}-{rate}-f{seed}.csv") for seed in range(SEEDS)]
        for one in LENGTHS[length]
    ]
    here = [[path for path in each if path.exists()] for each in paths]
    if any(len(each) != len(here[0]) for each in here) or not here[0]:
        return []
    return [[pd.read_csv(path) for path in each] for each in here]


def hits(tables: list[list[pd.DataFrame]], radius: float) -> np.ndarray:
    """Who is certified, [encoders, seeds of fine-tuning, images]."""
    return np.array([[statistics.certified(table, radius) for table in each] for each in tables])


def main() -> None:
    asked = ArgumentParser(prog="benchmarks.trend")
    asked.add_argument("--figure", type=Path, help="draws what pre-training adds, at each radius")
    figure = asked.parse_args().figure
    radii = Present().params.report.radii
    found = {(length, rate): read(length, rate) for length in LENGTHS for rate in RATES}
    rows = []
    for (length, rate), tables in found.items():
        if tables:
            shares = [100 * hits(tables, radius).mean() for radius in radii]
            rows.append(
                {"epochs": length, "rate": rate, "networks": len(tables) * len(tables[0])}
                | {f"r = {r:g}": f"{share:.1f}" for r, share in zip(radii, shares, strict=True)}
                | {"mean": f"{np.mean(shares):.2f}"}
            )
    print(markup.markdown(pd.DataFrame(rows)))
    whole = {length: found[length, rate] for length, rate in CHOSEN.items()}
    whole = {length: of for length, of in whole.items() if of and len(of[0]) == SEEDS}
    for radius in radii:
        made = {length: hits(tables, radius) for length, tables in whole.items()}
        if rows := differences(made):
            print(f"\nr = {radius:g}, in points\n\n{markup.markdown(pd.DataFrame(rows))}")
        if made.keys() == LENGTHS.keys():
            blocks = np.array([made[length].mean(axis=(0, 2)) for length in LENGTHS]).T
            print(
                f"\nPage's trend: p = {page_trend_test(blocks).pvalue:.2g} (two-sided: twice that)"
            )
    if figure:
        figures.save(drawn(whole, radii), figure)


def drawn(whole: dict[int, list[list[pd.DataFrame]]], radii: list[float]) -> Figure:
    """Certified accuracy of each length minus that of training from scratch, with intervals."""
    lengths = [length for length in whole if length]
    with style.context(figures.STYLE):
        figure = Figure(figsize=(6.4, 3.6), layout="constrained")
        axis = figure.subplots()
        for number, radius in enumerate(radii):
            made = {length: hits(tables, radius) for length, tables in whole.items()}
            gains = [apart(made, length, 0)[0] for length in lengths]
            values = 100 * np.array([[gain.value, gain.low, gain.high] for gain in gains])
            axis.errorbar(
                np.arange(len(lengths)) + 0.12 * (number - (len(radii) - 1) / 2),
                values[:, 0],
                yerr=abs(values[:, 1:] - values[:, :1]).T,
                fmt=figures.MARKERS[number],
                color=figures.colour(number),
                capsize=3,
                label=f"r = {radius:g}",
            )
        axis.axhline(0, color="grey", linewidth=1)
        axis.set_xticks(range(len(lengths)), [str(length) for length in lengths])
        axis.set_xlabel("epochs of pre-training")
        axis.set_ylabel("certified accuracy minus\nthat from scratch, points")
        axis.grid(axis="y", alpha=0.25)
        axis.legend(frameon=False, loc="upper left")
    return figure


def apart(
    made: dict[int, np.ndarray], longer: int, shorter: int, *, of: str = "networks"
) -> tuple[Estimate, float]:
    """Mean and p of ``longer`` minus ``shorter``, over images and networks, or images and encoders.

    Networks from scratch stand beside several encoders, so that there are only as many as these.
    """
    values = made[longer].astype(float) - made[shorter]  # [encoders, seeds, images]
    if of == "encoders":
        values = values.mean(axis=1)
    else:
        values = values.reshape(-1, values.shape[-1]) if shorter else values.mean(axis=0)
    return crossed_mean(values, confidence=CONFIDENCE)


def differences(made: dict[int, np.ndarray]) -> list[dict[str, str]]:
    """A row for each of `PAIRS` whose lengths are here: longer minus shorter."""
    rows = []
    for longer, shorter in PAIRS:
        if longer in made and shorter in made:
            row = {"epochs": f"{longer} minus {shorter}"}
            for of in ("networks", "encoders"):
                mean, p = apart(made, longer, shorter, of=of)
                row[of] = f"{100 * mean.value:+.2f} [{100 * mean.low:.2f}, {100 * mean.high:.2f}]"
                row[f"p over {of}"] = f"{p:.2g}"
            rows.append(row)
    return rows


if __name__ == "__main__":
    main()
