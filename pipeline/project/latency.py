"""``rrcm latency``: times each evaluation of params.yaml, beside its certified accuracy."""

import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from pipeline.project.differences import lines
from pipeline.project.stale import Present
from rrcm.analysis import latency
from rrcm.analysis.latency import Cost
from rrcm.analysis.presentation import results
from rrcm.certification.sampling import batching, procedure, session, voting
from rrcm.certification.sampling.batching import Job, Piece
from rrcm.config.certification import Eval
from rrcm.config.params import Params
from rrcm.config.sections import require
from rrcm.core import progress
from rrcm.core.errors import DataError
from rrcm.core.files import require_place
from rrcm.data.splits import shards
from rrcm.data.splits.shards import Split

ROUNDS = 5  # at least; the median over all is reported


def run(*, seconds: float, radius: float | None, reference: str, out: Path) -> str:
    """Time all evaluations in turns, for about ``seconds`` each; return the table to show.

    A turn is what the engine gives a worker at a time (`batching.TASK`): batches of noisy images,
    from pixels to votes, on one core or on the GPU. The table, its numbers and a figure at
    ``radius`` (by default the smallest of the report above 0) are written to ``out``.

    Raises:
        DataError: An evaluation has not been certified here.
        BackendError: A classifier was made with other values than params.yaml has.
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


Turn = Callable[[], float]  # classifies noisy images, and returns the seconds for one


def _turn(whole: Params, evaluation: Eval, split: Split) -> Turn:
    cfg = whole.sample
    backend = session.backend(evaluation, cfg)
    stopping = whole.stopping[cfg.stop]
    header = procedure.header(backend, split, evaluation.run, cfg, stopping)
    noise = procedure.noise(header, split)
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


def _measured(turns: dict[str, Turn], *, seconds: float) -> dict[str, float]:
    """Return seconds per noisy image: the median over rounds of one turn for each evaluation."""
    taken: dict[str, list[float]] = {name: [] for name in turns}
    total, began = seconds * len(turns), time.monotonic()
    with progress.bar(ROUNDS, 0, "latency", " rounds") as shown:
        while (done := len(next(iter(taken.values())))) < ROUNDS or (
            time.monotonic() - began < total
        ):
            for name, turn in turns.items():
                taken[name].append(turn())
            shown.update(done < ROUNDS)
    return {name: statistics.median(each) for name, each in taken.items()}
