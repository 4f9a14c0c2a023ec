"""Draws saved and certificates lost by early stopping, on real votes: two rules and a fixed n.

``python -m benchmarks.stopping`` needs the ONNX files and test images of the digits: `make demo`,
or `rrcm pull`. It draws votes for the same images under `spending`, under `grid` and with all n
draws, and resumes where it was stopped. Where the checkpoint of the network is here, too, it times
the usual loop (benchmarks/engine.py) on it; the loop's time for all n draws is
computed from its rate.

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

import pandas as pd
import torch

from benchmarks import engine, limit
from rrcm.analysis.estimation.statistics import certified
from rrcm.certification import certify
from rrcm.certification.sampling import procedure, session
from rrcm.certification.votes import records
from rrcm.certification.votes.records import Header, Row
from rrcm.config import params
from rrcm.config.certification import Eval, Sample
from rrcm.data.splits import shards
from rrcm.models.trained.base import classifier

KEPT = Path(".rrcm/benchmarks")
RULES = ("spending", "grid")
BETA = 0.01  # of `spending`: the share of images that it may give up, at all looks together


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
    """Measure draws, seconds and tables of the rules and of a fixed n, and the loop's rate."""
    whole, threads = params.load(), torch.get_num_threads()
    evaluation, grid, alpha = whole.evals[name], whole.stopping["grid"], whole.certify.alpha
    spending = {"radii": grid["radii"], "beta": BETA}
    ways = {
        "spending": ("spending", spending, alpha),
        "grid": ("grid", grid, alpha),
        "fixed": ("none", {}, alpha),
    }
    if arguments.beta:
        ways["fixed"] = ("grid", grid | {"beta": arguments.beta}, 2 * alpha)
    tables, votes, seconds, draws = {}, {}, {}, {}
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
        draws[way], votes[way] = drawn(header, rows), (header, rows)
        tables[way] = certify.certify(header, rows, certificates=["cohen"], alpha=level)
    torch.set_num_threads(threads)
    images = len(tables["grid"])
    every = images * (whole.sample.n0 + arguments.n)
    found = {
        "function": f"{arguments.backend} {arguments.precision}, batch {arguments.batch_size}",
        "images": images,
        "n": arguments.n,
        "draws": draws,
        "limit": least(*votes["spending"], tables["fixed"]),
        "draws_ratio": {way: round(every / draws[way], 2) for way in RULES},
        "certified": {
            way: {f"{r:g}": int(certified(table, r).sum()) for r in grid["radii"]}
            for way, table in tables.items()
        },
        "seconds": seconds,
    }
    if Path("models", evaluation.run, "model.safetensors").exists():
        found |= _beside_the_loop(evaluation, every, seconds)
    return found


def _beside_the_loop(
    evaluation: Eval, every: int, seconds: dict[str, float | None]
) -> dict[str, Any]:
    """The rate of the usual loop, its time for ``every`` draw, and how much sooner rules end."""
    network, _ = classifier.load(Path("models", evaluation.run))
    x = torch.from_numpy(shards.read(Path("shards"), "test").pixels(0))
    usual = statistics.median(
        engine.loop_rate(network, x, seconds=5.0, sigma=evaluation.sigma) for _ in range(5)
    )
    return {
        "reference_per_s": round(usual, 1),
        "reference_seconds": round(every / usual, 1),
        "speedup": {w: round(every / usual / s, 1) for w in RULES if (s := seconds[w])},
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


def least(header: Header, rows: list[Row], fixed: pd.DataFrame) -> int:
    """The limit of benchmarks/limit.py for these images, with n0 draws of each.

    For p it takes the shares of hits in the votes of the fixed n.
    """
    p = (fixed["n_A"] / fixed["n"]).to_numpy()
    return round(limit.of_a_table(header.rule(), p, lost=BETA).sum() + header.n0 * len(rows))


def text(result: dict[str, Any]) -> str:
    """The result as readable text."""
    fixed = result["certified"]["fixed"]
    lines = [
        f"{result['images']} images, n = {result['n']:,}, {result['function']}; "
        f"{result['draws']['fixed']:,} draws to know the fixed n's table; no rule of this power "
        f"needs fewer than {result['limit']:,}"
    ]
    for way in RULES:
        counts = result["certified"][way]
        lines.append(
            f"{way}: {result['draws'][way]:,} draws, {result['draws_ratio'][way]} times fewer than "
            f"a fixed n; {result['seconds'][way]} s; images certified, of the fixed n's: "
            + ", ".join(f"r = {r}: {counts[r]} of {fixed[r]}" for r in counts)
        )
    if "speedup" in result:
        lines.append(
            f"the usual loop, {result['reference_per_s']:,.0f} a second, would take "
            f"{result['reference_seconds']:,.0f} s: "
            + ", ".join(f"{x} times as long as {way}" for way, x in result["speedup"].items())
        )
    return "\n  ".join(lines)


if __name__ == "__main__":
    main()
