"""Draws saved and certificates lost by early stopping, on real votes: `grid` and a fixed n.

``python -m benchmarks.stopping`` needs the results of `make demo`. It draws votes for the same
images twice, under `grid` and with all n draws, resumes where it was stopped, and times the usual
loop (rrcm/certification/speed/usual_loop.py) on the same network; the loop's time for all n draws
is computed from its rate.

``--beta 1e-6`` saves most draws of the fixed n, and bounds what it certifies: `grid` for twice
alpha claims after n draws what Clopper-Pearson does at alpha, and each earlier look gives up at
most a millionth of that.
"""

import argparse
import dataclasses
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from rrcm.analysis.estimation.statistics import certified
from rrcm.certification import certify
from rrcm.certification.sampling import procedure, session
from rrcm.certification.speed import usual_loop
from rrcm.certification.votes import records
from rrcm.certification.votes.records import Header, Row
from rrcm.config import params
from rrcm.config.certification import Eval, Sample
from rrcm.data.splits import shards
from rrcm.models.trained.base import classifier

KEPT = Path(".rrcm/benchmarks")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument(
        "--eval", nargs="+", default=["tiny-rrcm-s025-e025", "tiny-rrcm-s050-e050"]
    )
    options.add_argument("--n", type=int, default=100_000)
    options.add_argument("--subset", default="first:200")
    options.add_argument("--backend", default="onnx")
    options.add_argument("--precision", default="int8")
    options.add_argument("--batch-size", type=int, default=64)
    options.add_argument("--beta", type=float, help="what the fixed n may give up; nothing")
    options.add_argument("--json", type=Path)
    arguments = options.parse_args()
    found = {name: compare(name, arguments) for name in arguments.eval}
    for name, result in found.items():
        print(f"\n{name}: " + text(result))
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=2) + "\n")


def compare(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure draws, seconds and tables of a fixed n and of `grid`, and the usual loop's rate."""
    whole, threads = params.load(), torch.get_num_threads()
    evaluation, grid, alpha = whole.evals[name], whole.stopping["grid"], whole.certify.alpha
    ways = {"grid": ("grid", grid, alpha), "fixed": ("none", {}, alpha)}
    if arguments.beta:
        ways["fixed"] = ("grid", grid | {"beta": arguments.beta}, 2 * alpha)
    tables, seconds, draws = {}, {}, {}
    for way, (rule, constants, level) in ways.items():
        cfg = dataclasses.replace(
            whole.sample,
            n=arguments.n,
            stop=rule,
            alpha=level,
            subset=arguments.subset,
            backend=arguments.backend,
            precision=arguments.precision,
            batch_size=arguments.batch_size,
        )
        path = KEPT / f"{name}-{way}-n{arguments.n}-{cfg.precision}.jsonl"
        header, rows, seconds[way] = draw(evaluation, cfg, constants, path)
        draws[way] = drawn(header, rows)
        tables[way] = certify.certify(header, rows, certificates=["cohen"], alpha=level)
    torch.set_num_threads(threads)
    network, _ = classifier.load(Path("models", evaluation.run))
    split = shards.read(Path("shards"), "test")
    x, classes = torch.from_numpy(split.pixels(0)), len(split.classes)
    usual = statistics.median(
        usual_loop.rate(network, x, evaluation.sigma, classes=classes, seconds=5.0)
        for _ in range(5)
    )
    images = len(tables["grid"])
    every = images * (header.n0 + arguments.n)
    return {
        "function": f"{arguments.backend} {arguments.precision}, batch {arguments.batch_size}",
        "images": images,
        "n": arguments.n,
        "draws": draws,
        "draws_ratio": round(every / draws["grid"], 2),
        "certified": {
            way: {f"{r:g}": int(certified(table, r).sum()) for r in grid["radii"]}
            for way, table in tables.items()
        },
        "seconds": seconds,
        "reference_per_s": round(usual, 1),
        "reference_seconds": round(every / usual, 1),
        "speedup": round(every / usual / seconds["grid"], 1) if seconds["grid"] else None,
    }


def draw(
    evaluation: Eval, cfg: Sample, constants: dict[str, Any], path: Path
) -> tuple[Header, list[Row], float | None]:
    """Votes of an evaluation, kept in ``path``, and their seconds if drawn without interruption."""
    threads, split = torch.get_num_threads(), shards.read(Path("shards"), "test")
    function = session.backend(evaluation, cfg)
    torch.set_num_threads(threads)
    header = procedure.header(function, split, evaluation.run, cfg, constants)
    path.parent.mkdir(parents=True, exist_ok=True)
    journal, seconds = path.with_suffix(".journal"), None
    if not path.exists():
        began, fresh = time.monotonic(), not journal.exists()
        session.run(
            function,
            header,
            split,
            reference=None,
            journal=journal,
            path=path,
            title=path.stem,
        )
        seconds = round(time.monotonic() - began, 1) if fresh else None
    found, rows = records.read(path)
    records.same(path, found, header)
    return header, rows, seconds


def drawn(header: Header, rows: list[Row]) -> int:
    """The number of all draws of a votes file, including those that select a class."""
    return sum(header.n0 + (row.looks[-1][0] if row.looks else 0) for row in rows)


def text(result: dict[str, Any]) -> str:
    """The result as readable text."""
    grid, fixed = (result["certified"][way] for way in ("grid", "fixed"))
    lines = [
        f"{result['images']} images, n = {result['n']:,}, {result['function']}",
        f"draws: grid {result['draws']['grid']:,}, to know the fixed n's table "
        f"{result['draws']['fixed']:,}; a fixed n makes {result['draws_ratio']} times grid's",
        "images certified, grid of fixed: "
        + ", ".join(f"r = {r}: {grid[r]} of {fixed[r]}" for r in grid),
        f"seconds: {result['seconds']}; the usual loop, {result['reference_per_s']:,.0f} a second, "
        f"would take {result['reference_seconds']:,.0f}: {result['speedup']} times as long as grid",
    ]
    return "\n  ".join(lines)


if __name__ == "__main__":
    main()
