"""What a certificate costs: seconds per image beside certified accuracy, for each evaluation.

``python -m benchmarks.latency``, in a checkout whose evaluations have been certified, prints a
table, and writes it to ``results/latency/latency.md``, where `benchmarks.results` finds it. Ratios
of seconds carry over to other machines, the seconds do not. Network calls follow from the kind of
classifier.
"""

import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pandas as pd

from benchmarks.results import LATENCY_TABLE, calls_of, up_to_date
from pipeline.project.stale import Present
from rrcm.analysis.presentation import markup, tables
from rrcm.certification.sampling import batching, drawing, store, voting
from rrcm.certification.sampling.batching import Job, Piece
from rrcm.config.certification import Eval
from rrcm.config.params import Params
from rrcm.core.files import write_text
from rrcm.data.splits import shards
from rrcm.data.splits.shards import Split

ROUNDS = 5  # at least; the median over all is reported


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="to time each evaluation for")
    parser.add_argument("--reference", default="rrcm", help="method that ratios are relative to")
    asked = parser.parse_args()
    present = Present()
    whole = present.params
    found = up_to_date(present)
    split = shards.read(Path("shards"), "test")
    turns = {name: turn(whole, evaluation, split) for name, evaluation in whole.evals.items()}
    seconds = pd.Series(measured(turns, seconds=asked.seconds), name="seconds_per_draw")
    draws = whole.sample.n0 + whole.sample.n
    base = {e.sigma: seconds[e.name] for e in found if e.method == asked.reference}
    shown = {"radii": whole.report.radii, "confidence": whole.report.confidence}
    certified = tables.accuracy_table(found, **shown)
    costs = pd.DataFrame(
        {f"{what} calls a draw": n for what, n in calls_of(whole, whole.evals[e.name].run).items()}
        | {"ms a draw": f"{1e3 * seconds[e.name]:.3f}"}
        | {"s an image": f"{draws * seconds[e.name]:.2f}"}
        | {f"× {asked.reference}": f"{seconds[e.name] / base.get(e.sigma, math.nan):.2f}"}
        for e in found
    )
    table = pd.concat([certified.iloc[:, :2], costs, certified.iloc[:, 2:]], axis=1)
    write_text(LATENCY_TABLE, markup.markdown(table))
    print(markup.plain(table, again=2))


def turn(whole: Params, evaluation: Eval, split: Split) -> Callable[[], float]:
    """What classifies noisy images, from pixels to votes, and returns the seconds for one.

    A turn is what the engine gives a worker at a time (`batching.TASK`), on one core or on the GPU.
    """
    cfg = whole.sampling
    backend = drawing.backend(evaluation, cfg)
    header = store.header(backend, split, evaluation.run, cfg)
    noise = voting.noise(header, split)
    count = voting.counter(backend, split, noise=noise, batch_size=cfg.batch_size)

    def seconds(rows: int) -> float:
        start = time.perf_counter()
        count([Piece(Job(row=0, bounds=(0, rows)), 0, 0, rows)])
        return time.perf_counter() - start

    rows = cfg.batch_size
    seconds(rows)  # compiles the network, where a backend does
    while seconds(rows) < batching.TASK / 2:
        rows *= 2
    return lambda: seconds(rows) / rows


def measured(turns: dict[str, Callable[[], float]], *, seconds: float) -> dict[str, float]:
    """Seconds per noisy image: the median over rounds of one turn for each evaluation.

    So what else the machine does falls on all alike.
    """
    taken: dict[str, list[float]] = {name: [] for name in turns}
    end = time.monotonic() + seconds * len(turns)
    for number in range(sys.maxsize):
        if number >= ROUNDS and time.monotonic() >= end:
            break
        for name, each in turns.items():
            taken[name].append(each())
    return {name: statistics.median(times) for name, times in taken.items()}


if __name__ == "__main__":
    main()
