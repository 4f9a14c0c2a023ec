"""Files of many votes: their size, and what the commands that read them take.

``python -m benchmarks.votes`` simulates the votes of images of known p (benchmarks/futility.py), of
n = 100,000 draws under `grid`, and runs `rrcm derive`, `report` and `audit` on them. Seconds and
memory should grow with the number of images and no faster.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import torch

from benchmarks import futility
from rrcm.certification.certificates import cohen
from rrcm.certification.sampling import procedure, voting
from rrcm.certification.stopping import grid
from rrcm.certification.votes import records
from rrcm.certification.votes.counts import Claim
from rrcm.certification.votes.records import Row
from rrcm.config.defaults import DRAWS
from rrcm.data.splits.shards import Split

N, N0, CLASSES, OTHERS = 100_000, 100, 1_000, 5  # others: classes that share the other votes
CONSTANTS = {"radii": futility.RADII, "beta": 5e-4}
# A report that draws nothing, and does not compute what one figure alone shows.
NO_FIGURES = """
import sys
from rrcm.analysis import report
from rrcm.analysis.estimation import fewer_draws
from rrcm.cli.commands import tables
fewer_draws.truncation.budgets = lambda header: [header.n]
report._saved = lambda drawn, out: dict.fromkeys(drawn, "")
from pathlib import Path
tables.report_files([Path(sys.argv[1])], out=Path(sys.argv[2]), alpha=None, sigma=None)
"""
DISTINCT = 1_000  # images that are simulated; more have the same votes again


class Named(voting.Backend):
    """Stands for the classifier that is named in the header."""

    classes = [f"class {c}" for c in range(CLASSES)]  # noqa: RUF012
    sigma = futility.SIGMA
    weights, provider, device = "0" * 64, "simulated", torch.device("cpu")

    def scores(self, x: torch.Tensor) -> torch.Tensor:
        """Not called: the votes are simulated."""
        raise NotImplementedError


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--images", type=int, nargs="+", default=[1_000, 10_000])
    asked = options.parse_args()
    print(
        "| images | votes, MB | command | seconds | peak MiB |\n| ---: | ---: | --- | ---: | ---: |"
    )
    histories = simulated()
    for images in asked.images:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            path = folder / "simulated.jsonl"
            write(path, images, histories)
            size = path.stat().st_size / 1e6
            table = str(folder / "table.csv")
            page = str(folder / "page")
            program = str(Path(sys.executable).with_name("rrcm"))
            for shown, command in {
                "`rrcm derive`": [program, "derive", str(path), "--out", table],
                "`rrcm report`": [program, "report", str(path), "--out", page],
                "the same without figures": [sys.executable, "-c", NO_FIGURES, str(path), page],
                "`rrcm audit`": [
                    *(program, "audit", table),
                    *("--n", str(N), "--alpha", "0.001", "--sigma", "0.5"),
                ],
            }.items():
                seconds, peak = measured(command, folder)
                print(
                    f"| {images:,} | {size:.1f} | {shown} | {seconds:.1f} | {peak:,.0f} |",
                    flush=True,
                )


def simulated() -> list[list[tuple[int, int]]]:
    """(draws, hits) of `DISTINCT` images at each look, until `grid` stops."""
    claim = Claim(certificate=cohen, sigma=futility.SIGMA, alpha=0.001)
    rule = grid.Rule(grid.Config(**CONSTANTS), n=N, claim=claim)
    votes = futility.simulated(rule.looks, DISTINCT, seed=0)
    ends = [futility.until(rule, history) for history in votes]
    return [[v for v in history if v[0] <= end] for history, end in zip(votes, ends, strict=True)]


def write(path: Path, images: int, histories: list[list[tuple[int, int]]]) -> None:
    """A votes file of so many images."""
    split = Split(
        idx=np.arange(images),
        images=np.zeros((images, 1, 1, 1), dtype=np.uint8),
        labels=np.arange(images) % CLASSES,
        classes=tuple(Named.classes),
        max_value=255,
    )
    cfg = replace(DRAWS, backend="onnx", batch_size=256, n0=N0, n=N, stop="grid")
    header = procedure.header(Named(), split, "simulated", cfg, CONSTANTS)
    records.write(path, header, rows(images, histories))


def rows(images: int, histories: list[list[tuple[int, int]]]) -> Iterator[Row]:
    """Rows of the votes file; the hits are those of the image's class."""
    for idx in range(images):
        label, history = idx % CLASSES, histories[idx % len(histories)]
        yield Row(
            idx=idx,
            label=label,
            n0=shared(N0, round(N0 * history[-1][1] / history[-1][0]), label),
            looks=[(draws, shared(draws, hits, label)) for draws, hits in history],
            stop="certified",
            soft=(0, 0),
            paired=(0, 0),
        )


def shared(draws: int, hits: int, label: int) -> dict[int, int]:
    """Votes of a class, and of `OTHERS` that take turns in the rest."""
    rest = {
        (label + i) % CLASSES: (draws - hits + OTHERS - i) // OTHERS for i in range(1, OTHERS + 1)
    }
    return {c: votes for c, votes in sorted((rest | {label: hits}).items()) if votes}


def measured(command: list[str], folder: Path) -> tuple[float, float]:
    """Seconds and peak MiB of a command."""
    began, peak = time.monotonic(), 0.0
    with (folder / "output").open("wb") as output:
        process = psutil.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        while process.poll() is None:
            try:
                peak = max(peak, process.memory_info().rss / 2**20)
            except psutil.Error:
                break
            time.sleep(0.02)
        code = process.wait()
    if code:
        sys.exit((folder / "output").read_text())
    return time.monotonic() - began, peak


if __name__ == "__main__":
    main()
