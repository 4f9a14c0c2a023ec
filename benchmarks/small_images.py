"""Training and certifying at 28 x 28 beside plain loops, in one run.

``python -m benchmarks.small_images`` prints, one table after the other, what `benchmarks.finetune`
prints for training LeNet and two ViTs from scratch, and what `benchmarks.engine`
prints for LeNet. Each table's rows are measured in turns.
"""

import argparse
from dataclasses import dataclass

import torch

from benchmarks import engine, finetune

BATCH = 256


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A network, how ours is trained, and the steps of a turn."""

    network: str
    precision: str
    compiled: bool
    steps: int


TRAINED = (
    Trained(network="lenet", precision="fp32", compiled=False, steps=40),
    Trained(network="vit7", precision="fp32", compiled=True, steps=20),
    Trained(network="vit7", precision="bf16", compiled=True, steps=20),
    Trained(network="vit4", precision="fp32", compiled=True, steps=6),
    Trained(network="vit4", precision="bf16", compiled=True, steps=6),
)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--repeats", type=int, default=5)
    options.add_argument("--seconds", type=float, default=4.0, help="of a turn of certifying")
    asked = options.parse_args()
    for one in TRAINED:
        way = f"{one.precision}{', compiled' if one.compiled else ''}"
        print(f"\ntraining {one.network}, ours in {way}\n", flush=True)
        found = finetune.measure(
            one.network,
            batch=BATCH,
            precision=one.precision,
            compiled=one.compiled,
            steps=one.steps,
            repeats=asked.repeats,
        )
        print(finetune.table(found, batch=BATCH), flush=True)
        torch.compiler.reset()
    print("\ncertifying\n", flush=True)
    print(
        engine.measure(
            "lenet", None, repeats=asked.repeats, seconds=asked.seconds, batches=[64, BATCH]
        )
    )


if __name__ == "__main__":
    main()
