"""Counts votes that change with the batch size, where kernels round differently.

``python -m benchmarks.batch_size`` needs the results of `make demo`. Noise has the same bits for
every batch size (a test checks that), so a vote can change only where two scores nearly tie.
"""

import argparse
import dataclasses
from pathlib import Path

import numpy as np
import torch

from rrcm.certification.sampling import session
from rrcm.config import params
from rrcm.data.splits import shards
from rrcm.noise import streams

SIZES = (1, 7, 32, 64, 100, 256)
VARIANTS = (("torch", "fp32"), ("torch", "bf16"), ("onnx", "fp32"), ("onnx", "int8"))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--eval", default="tiny-rrcm-s050-e050")
    options.add_argument("--images", type=int, default=20)
    options.add_argument("--draws", type=int, default=500)
    arguments = options.parse_args()
    whole = params.load()
    evaluation = whole.evals[arguments.eval]
    split = shards.read(Path("shards"), "test")
    rows = np.arange(arguments.images)
    image = torch.from_numpy(split.idx[rows]).repeat_interleave(arguments.draws)
    draw = torch.arange(arguments.draws).repeat(arguments.images)
    x = torch.from_numpy(split.pixels(rows)).repeat_interleave(arguments.draws, dim=0)
    x = x + evaluation.sigma * streams.gaussian(0, image, draw, tuple(x.shape[1:]))

    print(f"{arguments.eval}: {len(x):,} draws; compared with batches of {SIZES[-1]}")
    print(f"{'variant':12} {'batch':>6} {'votes that differ':>18} {'largest difference':>19}")
    for name, precision in VARIANTS:
        cfg = dataclasses.replace(whole.sample, backend=name, precision=precision)
        backend = session.backend(evaluation, cfg)
        scores = {
            size: torch.cat([backend.scores(part) for part in x.split(size)]) for size in SIZES
        }
        reference = scores[SIZES[-1]]
        for size in SIZES[:-1]:
            changed = int((scores[size].argmax(1) != reference.argmax(1)).sum())
            largest = float((scores[size] - reference).abs().max())
            print(f"{name + ' ' + precision:12} {size:>6} {changed:>18} {largest:>19.2g}")


if __name__ == "__main__":
    main()
