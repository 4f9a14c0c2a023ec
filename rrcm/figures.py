"""Figures of the report, as bytes that are the same for the same numbers."""

from pathlib import Path

import matplotlib
import pandas as pd
from matplotlib.figure import Figure

from rrcm.files import atomic

matplotlib.use("Agg")
COLOURS = ["#0b6e99", "#c8553d", "#6a994e", "#8e6c8a", "#b08900", "#444444"]
REPRODUCIBLE = {"svg.hashsalt": "rrcm", "svg.fonttype": "path", "font.size": 10}


def certified_accuracy(curves: dict[float, dict[str, pd.DataFrame]]) -> Figure:
    """One panel per sigma, one curve per method: certified accuracy against radius.

    Args:
        curves: sigma -> method -> a table from `statistics.curve`.
    """
    methods = list(dict.fromkeys(name for panel in curves.values() for name in panel))
    with matplotlib.rc_context(REPRODUCIBLE):
        figure = Figure(figsize=(4.2 * len(curves), 3.6), layout="constrained")
        axes = figure.subplots(1, len(curves), sharey=True, squeeze=False)[0]
        for axis, (sigma, panel) in zip(axes, sorted(curves.items()), strict=True):
            for method, curve in panel.items():
                axis.step(  # an accuracy holds up to its radius: the step is before the point
                    [*curve["radius"], curve["radius"].iloc[-1]],
                    [*(100 * curve["certified_accuracy"]), 0],
                    where="pre",
                    label=method,
                    color=COLOURS[methods.index(method) % len(COLOURS)],
                    linewidth=1.8,
                )
            axis.set_title(f"σ = {sigma:g}")
            axis.set_xlabel("ℓ₂ radius, pixels in [0, 1]")
            axis.set_xlim(left=0)
            axis.set_ylim(0, 100)
            axis.grid(alpha=0.25)
            axis.legend(frameon=False, loc="upper right")  # curves fall: it is free
        axes[0].set_ylabel("certified accuracy, %")
    return figure


def save(figure: Figure, path: Path) -> None:
    """Write ``figure`` in the format of the suffix, without dates."""
    metadata = {".svg": {"Date": None}, ".png": {"Software": None}}[path.suffix]
    with atomic(path) as part, matplotlib.rc_context(REPRODUCIBLE):
        figure.savefig(part, format=path.suffix[1:], dpi=160, metadata=metadata)
