"""``rrcm latency``: what each evaluation of params.yaml costs here, beside what it certifies."""

import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from pipeline import progress, sampling
from pipeline.differences import lines
from pipeline.stale import Present
from rrcm import sample, shards, voters
from rrcm.analysis import latency, results
from rrcm.analysis.latency import Cost
from rrcm.config import require
from rrcm.drawing import Drawing, rows_at_once
from rrcm.engine import Job, Piece
from rrcm.errors import DataError
from rrcm.files import require_place
from rrcm.journal import Memory
from rrcm.params import Params
from rrcm.settings import Eval
from rrcm.shards import Split

ROUNDS = 5  # turns at least; the median of all is what counts


def run(*, seconds: float, radius: float | None, reference: str, out: Path) -> str:
    """Time all evaluations in turns, for about ``seconds`` each; returns the table to show.

    A turn is one batch of noisy images, from pixels to votes, on one core or on the GPU. The table,
    its numbers and a figure at ``radius`` (the least of the report that is above 0) go to ``out``.

    Raises:
        DataError: Something has not been certified here.
        BackendError: A classifier here is not the one of its name in params.yaml.
        ConfigError: ``radius`` is not one of the report's.
    """
    present = Present()
    whole = present.whole
    paths = {name: Path(f"certificates/{name}.csv") for name in whole.evals}
    if missing := [path for path in paths.values() if not path.exists()]:
        raise DataError(f"{missing[0]} is not here; `dvc repro` makes it, or `dvc pull` fetches it")
    radii = whole.report.radii
    at = min((r for r in radii if r > 0), default=radii[0]) if radius is None else radius
    require(at in radii, f"--radius: {at:g} is not in report.radii ({radii})")
    timed = {n: present.asked(e.run, backend=whole.sample.backend) for n, e in whole.evals.items()}
    found = [
        replace(entry, stale=tuple(dict.fromkeys([*entry.stale, *timed[entry.name].stale])))
        for entry in present.evaluations(whole.evals)
    ]
    require_place(out / "latency.csv")
    split = shards.read(Path("shards"), "test")
    turns = {name: _turn(whole, evaluation, split) for name, evaluation in whole.evals.items()}
    taken = _measured(turns, seconds=seconds)
    costs = {n: Cost(seconds=taken[n], calls=made.calls) for n, made in timed.items()}
    draws = whole.sample.n0 + whole.sample.n
    measured = latency.numbers(
        found, costs, draws=draws, radii=radii, confidence=whole.report.confidence
    )
    shown = latency.table(measured, reference=reference)
    drawn = latency.figure(measured, radius=at, what="certified accuracy")
    note = "\n\n".join(lines([(entry.name, entry.stale) for entry in found], stage="certify"))
    return results.write(out, shown, measured, drawn, table="latency", plot="latency", note=note)


Turn = Callable[[], int]  # one batch; how many noisy images it has


def _turn(whole: Params, evaluation: Eval, split: Split) -> Turn:
    cfg = whole.sample
    backend = sampling.backend(evaluation, cfg)
    stopping = whole.stopping[cfg.stop]
    header = sample.header(backend, split, evaluation.run, evaluation.sigma, cfg, stopping)
    drawing = Drawing(split, header, Memory(), workers=1, every=float("inf"))
    count = drawing.count(backend, voters.hard(backend))
    rows = rows_at_once(backend, cfg.batch_size)
    pieces = [Piece(Job(row=0, bounds=(0, rows)), 0, 0, rows)]

    def turn() -> int:
        count(pieces)
        return rows

    turn()  # which compiles what is compiled
    return turn


def _measured(turns: dict[str, Turn], *, seconds: float) -> dict[str, float]:
    """Seconds for a noisy image: the median over rounds, in each of which everyone has a turn."""
    taken: dict[str, list[float]] = {name: [] for name in turns}
    total, began = seconds * len(turns), time.monotonic()
    with progress.bar(ROUNDS, 0, "latency", " rounds") as shown:
        while (done := len(next(iter(taken.values())))) < ROUNDS or (
            time.monotonic() - began < total
        ):
            for name, turn in turns.items():
                start = time.perf_counter()
                rows = turn()
                taken[name].append((time.perf_counter() - start) / rows)
            shown.update(done < ROUNDS)
    return {name: statistics.median(each) for name, each in taken.items()}
