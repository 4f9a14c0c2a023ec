"""How long the evaluations of a network take on 1, 8 and 64 GPUs, whole and in pieces.

``python -m benchmarks.makespan`` simulates the schedule on paper: no GPU is used. A draw takes the
operations of the network, counted, by the peak of the GPU, published, and the share of it that
`rrcm plan` assumes. Draws per image are those of the preset's rule `grid` on the simulated images
of `benchmarks.futility`, in random order, or all n.

A piece is every k-th image of an evaluation. A free GPU takes the next piece, and needs ``--start``
seconds before it draws: for each piece, or, where it keeps the network open, only after one of
another network. A host of eight GPUs fetches each network and the test images once, over one link.
No schedule ends before the lower bound: all draws divided by the GPUs, or the longest image.
"""

import argparse
import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import futility
from pipeline.planning import devices
from pipeline.planning.work import Planned
from rrcm.config import params
from rrcm.config.params import Params

HOST = 8  # GPUs
GPUS = (1, 8, 64)
PIECES = (1, 8, 64, 500)
GRID = "grid"


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """Some images of an evaluation: the network that they need, and the seconds of their draws."""

    network: str
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """When the last piece ends, the seconds that all GPUs drew, and the bytes that were fetched."""

    makespan: float
    drawing: float
    fetched: float


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--preset", default="imagenet")
    options.add_argument("--only", default="b-rrcm-*", help="evaluations")
    options.add_argument("--gpu", default="h100")
    options.add_argument("--start", type=float, default=20.0, help="seconds, assumed")
    options.add_argument("--link", type=float, default=10.0, help="Gbit/s, assumed")
    options.add_argument("--seed", type=int, default=0)
    arguments = options.parse_args()
    whole = params.load(Path(f"presets/{arguments.preset}.yaml"))
    planned = Planned(whole)
    names = [name for name in whole.evals if fnmatch(name, arguments.only)]
    work = planned.stage(f"sample@{names[0]}")
    each = (
        work.operations / work.images / work.draws / devices.named(arguments.gpu).rate(work).value
    )
    images = planned.stage("shard").disk * planned.images["test"] / sum(planned.images.values())
    sizes = {
        run: planned.stage(f"export@{run}").disk for run in {whole.evals[n].run for n in names}
    }
    rng = np.random.default_rng(arguments.seed)
    stopped = [draws(whole, whole.evals[n].sigma, images=work.images, rng=rng) for n in names]
    taken = {"all": [np.full(work.images, work.draws) for _ in names], GRID: stopped}
    print(
        f"{len(names)} evaluations ({arguments.only}) of {work.images} images, "
        f"n = {whole.sample.n:,}, on {arguments.gpu}: {1e3 * each:.2f} ms a draw; "
        f"{GRID}: {np.mean(stopped) / work.draws:.1%} of the draws\n"
    )
    print("| draws | GPUs | pieces | lower bound | time | idle | kept open | idle | fetched |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for label, rows in taken.items():
        for gpus in GPUS:
            bound = each * max(np.sum(rows) / gpus, np.max(rows))
            for count in PIECES:
                queue = [
                    Piece(network=whole.evals[name].run, seconds=each * float(row[i::count].sum()))
                    for name, row in zip(names, rows, strict=True)
                    for i in range(count)
                ]
                cells = []
                for kept in (False, True):
                    found = schedule(
                        queue,
                        gpus=gpus,
                        start=arguments.start,
                        kept=kept,
                        sizes=sizes,
                        images=images,
                        rate=arguments.link * 1e9 / 8,
                    )
                    idle = 1 - found.drawing / (gpus * found.makespan)
                    cells += [f"{found.makespan / 3600:.2f} h", f"{idle:.0%}"]
                cells += [f"{found.fetched / 1e9:.1f} GB"]
                print(
                    f"| {label} | {gpus} | {count} | {bound / 3600:.2f} h | {' | '.join(cells)} |"
                )


def draws(whole: Params, sigma: float, *, images: int, rng: np.random.Generator) -> np.ndarray:
    """The draws of each image with the preset's `grid`, those that select the class included."""
    constants: Any = whole.stopping[GRID]
    rule = futility.laid_out(
        constants["radii"],
        n=whole.sample.n,
        alpha=whole.sample.alpha,
        beta=constants["beta"],
        sigma=sigma,
    )
    votes = futility.simulated(rule.looks, images, seed=int(rng.integers(2**32)))
    taken = np.array([futility.until(rule, history) for history in votes])
    return whole.sample.n0 + rng.permutation(taken)


def schedule(
    queue: Sequence[Piece],
    *,
    gpus: int,
    start: float,
    kept: bool,
    sizes: dict[str, float],
    images: float,
    rate: float,
) -> Schedule:
    """Give each piece in turn to the GPU that is free first.

    It takes ``start`` seconds before it draws; with ``kept``, only if the piece before it was of
    another network. ``sizes`` are the bytes of networks, ``images`` those of the test images; a
    host fetches what it lacks at ``rate`` bytes per second, one thing at a time.
    """
    free = [(0.0, gpu) for gpu in range(gpus)]
    last: dict[int, str] = {}  # GPU -> network
    here: dict[tuple[int, str], float] = {}  # host, what -> since when
    link = [0.0] * -(-gpus // HOST)
    fetched = 0.0
    for piece in queue:
        began, gpu = heapq.heappop(free)
        host = gpu // HOST
        for what, size in (("images", images), (piece.network, sizes[piece.network])):
            if (host, what) not in here:
                link[host] = here[host, what] = max(link[host], began) + size / rate
                fetched += size
            began = max(began, here[host, what])
        if not (kept and last.get(gpu) == piece.network):
            began += start
        last[gpu] = piece.network
        heapq.heappush(free, (began + piece.seconds, gpu))
    return Schedule(
        makespan=max(end for end, _ in free),
        drawing=sum(piece.seconds for piece in queue),
        fetched=fetched,
    )


if __name__ == "__main__":
    main()
