"""What a consensus saves, and what certifying all prefixes in one pass saves, on trained runs.

``python -m benchmarks.ensembles --runs A B C`` needs these runs under models/, and the shards.
It makes ensembles of them in a temporary folder and draws the same noise of the same images for
each, on one thread: all members asked, a consensus of two, and all prefixes at once.
"""

import argparse
import dataclasses
import os
import tempfile
import time
from pathlib import Path

import torch

from rrcm import ensembles, prefixes, sample, shards, votes
from rrcm.backends.onnx import Backend
from rrcm.defaults import DRAWS
from rrcm.errors import ConfigError
from rrcm.export import export_ensemble
from rrcm.settings import Ensemble, Export, Sample
from rrcm.shards import Split
from rrcm.votes import Header, Row

RUNS = ["tiny-consistency-s025", "tiny-gaussian-s025", "tiny-rrcm-s025"]
CHECK = Export(opset=20, parity_images=64, tolerance=1e-3)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--runs", nargs="+", default=RUNS)
    options.add_argument("--sigma", type=float, default=0.25)
    options.add_argument("--subset", default="first:50")
    options.add_argument("--n", type=int, default=1000)
    options.add_argument("--batch-size", nargs="+", type=int, default=[16, 64])
    options.add_argument("--turns", type=int, default=3)
    arguments = options.parse_args()
    if len(arguments.runs) < 3:
        raise ConfigError("--runs: a consensus of two needs three or more")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        root, split = Path(folder), shards.read(Path("shards"), "test")
        count = len(arguments.runs)
        for j in range(1, count + 1):
            _make(root, f"first{j}", arguments.runs[:j], consensus=0)
        _make(root, "consensus", arguments.runs, consensus=2)
        print("| batch | all asked, s | consensus of 2, s | ratio | each prefix alone, s "
              "| all prefixes at once, s | ratio | votes that the consensus changed |")  # fmt: skip
        print("| ---: " * 8 + "|")
        for size in arguments.batch_size:
            cfg = dataclasses.replace(
                DRAWS, batch_size=size, n=arguments.n, subset=arguments.subset, stop="none"
            )
            turns = [
                _turn(root, split, count, arguments.sigma, cfg) for _ in range(arguments.turns)
            ]
            best = {way: min(turn[way] for turn in turns) for way in turns[0]}
            whole, early = best[f"first{count}"], best["consensus"]
            apart = sum(best[f"first{j}"] for j in range(1, count + 1))
            print(f"| {size} | {whole:.1f} | {early:.1f} | {whole / early:.2f} | {apart:.1f} | "
                  f"{best['prefixes']:.1f} | {apart / best['prefixes']:.2f} | "
                  f"{100 * best['changed']:.2f} % |")  # fmt: skip


def _make(root: Path, name: str, runs: list[str], *, consensus: int) -> None:
    """Export an ensemble of trained runs to ``root``."""
    cfg = Ensemble(members=len(runs), rule="mean_logits", consensus=consensus)
    for place, run in enumerate(runs, start=1):
        target = root / "in" / name / str(place)
        target.parent.mkdir(parents=True, exist_ok=True)
        os.symlink(Path("models", run).resolve(), target)
    members = ensembles.read(root / "in" / name, len(runs))
    made = ensembles.save(root / "models" / name, members, cfg, code={})
    export_ensemble(
        ensembles.Combined([network for network, _ in members], cfg),
        ensembles.load(root / "models" / name)[0],
        root / "onnx" / f"{name}.onnx",
        shards.read(Path("shards"), "validation"),
        {"run": name, "weights": name, **{k: made[k] for k in ("classes", "sigma", "ensemble")}},
        CHECK,
    )


def _turn(root: Path, split: Split, count: int, sigma: float, cfg: Sample) -> dict[str, float]:
    """Seconds of each way to draw, and the share of votes that the consensus changed."""
    seconds, drawn = {}, {}
    for name in (*(f"first{j}" for j in range(1, count + 1)), "consensus"):
        backend = _backend(root, name, sigma)
        header = sample.header(backend, split, name, sigma, cfg, {})
        path, began = root / "votes", time.monotonic()
        list(sample.sample(backend, split, header, root / "journal", path, workers=1))
        seconds[name], drawn[name] = time.monotonic() - began, votes.read(path)
    backend = _backend(root, f"first{count}", sigma, stacked=True)
    header = sample.header(backend, split, "all", sigma, cfg, {})
    heads, began = prefixes.headers(header, count), time.monotonic()
    paths = [root / f"prefix{j}" for j in range(1, count + 1)]
    list(prefixes.sample(backend, split, heads, paths, workers=1))
    seconds["prefixes"] = time.monotonic() - began
    for j, path in enumerate(paths, start=1):
        assert _said(votes.read(path)) == _said(drawn[f"first{j}"]), "one pass changed a vote"
    rows = zip(drawn["consensus"][1], drawn[f"first{count}"][1], strict=True)
    moved = sum(_moved(a, b) for a, b in rows)
    return seconds | {"changed": moved / (len(drawn["consensus"][1]) * cfg.n)}


def _backend(root: Path, name: str, sigma: float, *, stacked: bool = False) -> Backend:
    return Backend(
        root, name, sigma=sigma, precision="fp32", device="cpu", calibration=None, prefixes=stacked
    )


def _said(found: tuple[Header, list[Row]]) -> list[str]:
    return [votes.encode(row) for row in found[1]]


def _moved(a: Row, b: Row) -> int:
    """At least so many votes of the estimation went elsewhere."""
    (_, first), (_, second) = a.looks[-1], b.looks[-1]
    return sum(abs(first.get(c, 0) - second.get(c, 0)) for c in {*first, *second}) // 2


if __name__ == "__main__":
    main()
