"""The memory of sampling, which should not grow with the draws or the images.

``python -m benchmarks.memory`` draws votes of an untrained network in a process of its own for each
line, and prints the largest resident set.
"""

import json
import resource
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

CASES = ((20, 1_000), (20, 10_000), (20, 100_000), (200, 1_000), (2_000, 1_000))


def main() -> None:
    print(f"{'images':>8} {'n':>8} {'peak MiB':>9}")
    for images, n in CASES:
        command = [sys.executable, "-m", "benchmarks.memory", str(images), str(n)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        print(f"{images:>8,} {n:>8,} {json.loads(done.stdout):>9,.0f}", flush=True)


def peak(images: int, n: int) -> float:
    """Peak MiB after ``n`` draws of each of ``images`` images with a trivial network."""
    import torch

    from rrcm.certification.sampling import procedure, voting
    from rrcm.config.defaults import DRAWS
    from rrcm.data.splits.shards import Split

    class Null(voting.Backend):
        classes = [str(c) for c in range(10)]  # noqa: RUF012
        sigma = 0.5
        weights, provider, device = "0" * 64, "null", torch.device("cpu")

        def scores(self, x: torch.Tensor) -> torch.Tensor:
            return x.flatten(1)[:, :10]

    zero = np.zeros(images, dtype=np.int64)
    split = Split(
        idx=np.arange(images),
        images=np.full((images, 1, 8, 8), 8, dtype=np.uint8),
        labels=zero,
        classes=tuple(Null.classes),
        max_value=16,
    )
    cfg = replace(DRAWS, backend="null", batch_size=256, n=n, stop="none")
    header = procedure.header(Null(), split, "null", cfg, {})
    with tempfile.TemporaryDirectory() as folder:
        journal, path = Path(folder, "journal"), Path(folder, "votes")
        for _ in procedure.sample(Null(), split, header, journal, path, workers=2):
            pass
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(peak(*map(int, sys.argv[1:])))
    else:
        main()
