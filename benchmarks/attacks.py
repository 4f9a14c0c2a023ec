"""Attacks of two libraries beside `rrcm attack`'s own search: strength and seconds, in one run.

``python -m benchmarks.attacks --run resnet9-consistency-s025 --sigma 0.25 --images 50`` needs
torchattacks, foolbox, the run's ``onnx/`` and ``models/``, and ``shards/test``, of which it takes
so many images, evenly. All follow the gradients of the mean of the same number of copies, for
about as many steps, and all are judged alike, with fresh noise, against the same answers.
"""

import argparse
import math
import time
from collections.abc import Callable
from pathlib import Path

import foolbox
import numpy as np
import pandas as pd
import torch
import torchattacks
from torch import Tensor

from rrcm.analysis.presentation import markup
from rrcm.certification import openers
from rrcm.certification.answers import Answers
from rrcm.certification.attacking.library import LONGER
from rrcm.certification.attacking.search import WAY
from rrcm.certification.smoothed import Smoothed
from rrcm.data.splits import shards

Attack = Callable[[], Answers]


def attacks(smoothed: Smoothed, x: Tensor, answers: Answers, args) -> dict[str, Attack]:
    """Each attack by its name."""
    y = torch.tensor([row.label for row in answers.rows])
    radii, steps = [radius for radius in args.radii if radius > 0], args.steps
    shown = {"answers": answers, "progress": False}

    def pgd() -> Answers:
        model = smoothed.expected(copies=args.copies)
        found = [
            torchattacks.PGDL2(model, eps=radius, alpha=WAY * radius / steps, steps=steps)(x, y)
            for radius in radii
        ]
        return smoothed.judge(x, None, found, **shown)

    def ddn() -> Answers:
        model = foolbox.PyTorchModel(smoothed.expected(copies=args.copies), bounds=(0, 1))
        search = foolbox.attacks.DDNAttack(steps=steps * len(radii))
        found, _, _ = search(model, x, y, epsilons=None)
        longer = [(x + by * (found - x)).clamp(0, 1) for by in LONGER]
        return smoothed.judge(x, None, longer, **shown)

    def own() -> Answers:
        how = {"copies": args.copies, "steps": steps, "restarts": args.restarts}
        return smoothed.attack(x, radii=args.radii, **how, **shown)

    return {"torchattacks PGDL2": pgd, "foolbox DDNAttack": ddn, "rrcm attack": own}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", required=True)
    parser.add_argument("--sigma", type=float, required=True)
    parser.add_argument("--images", type=int, default=50)
    parser.add_argument("--radii", type=float, nargs="+", default=[0.0, 0.25, 0.5])
    parser.add_argument("--n", type=int, default=1000)
    parser.add_argument("--copies", type=int, default=8)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--restarts", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path(".rrcm/benchmarks/attacks.csv"))
    args = parser.parse_args()
    split = shards.read(Path("shards"), "test")
    chosen = np.arange(0, len(split.idx), math.ceil(len(split.idx) / args.images))
    x = torch.from_numpy(np.stack([split.pixels(int(place)) for place in chosen]))
    smoothed = openers.smooth(args.run, sigma=args.sigma)
    answers = smoothed.certify(
        x, labels=split.labels[chosen], n=args.n, radii=args.radii, seed=0, progress=False
    )
    certified = [
        np.mean([row.label == one.label and one.robust_at(radius) for row, one in zip(
            answers.rows, answers, strict=True)])
        for radius in args.radii
    ]  # fmt: skip
    rows = [{"attack": "(certified)"} | dict(zip(args.radii, certified, strict=True))]
    for name, attack in attacks(smoothed, x, answers, args).items():
        start = time.perf_counter()
        apart = np.array(attack().attacked["attacked"])
        seconds = round((time.perf_counter() - start) / len(x), 2)
        left = [float(np.mean(~(apart <= radius))) for radius in args.radii]
        assert all(a <= b for a, b in zip(certified, left, strict=True)), "a false certificate"
        rows.append(
            {"attack": name}
            | dict(zip(args.radii, left, strict=True))
            | {"found": float(np.isfinite(apart).mean()), "median l2": pd.Series(apart).median()}
            | {"seconds per image": seconds}
        )
        print(rows[-1], flush=True)
    table = pd.DataFrame(rows)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    table.to_csv(args.out, index=False)
    print(markup.markdown(table.map(lambda v: v if isinstance(v, str) else f"{v:.3g}")))


if __name__ == "__main__":
    main()
