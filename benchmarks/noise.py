"""Noisy images per second of each distribution, of its definition in PyTorch, and of torch.randn.

``python -m benchmarks.noise`` draws noise as a step of sampling does, many draws of one image, on
one thread. Repeats are interleaved, so that other load affects all alike; rates are medians.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from rrcm.core.registry import load, names
from rrcm.noise import streams

SHAPES = {"1x8x8": (1, 8, 8), "3x32x32": (3, 32, 32), "3x224x224": (3, 224, 224)}
SIGMA = 0.25
MAX_VALUE = 255
TORCH, RANDN = "rrcm.noise", "torch.randn"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--shapes", nargs="+", choices=SHAPES, default=["1x8x8", "3x32x32"])
    options.add_argument("--pixels", type=int, default=400_000, help="of a batch")
    options.add_argument("--seconds", type=float, default=0.3, help="per variant and repeat")
    options.add_argument("--repeats", type=int, default=7)
    options.add_argument("--json", type=Path)
    arguments = options.parse_args()
    torch.set_num_threads(1)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    result = {"device": device, "cores": os.cpu_count(), "sigma": SIGMA, "white": MAX_VALUE}
    result["shapes"] = {
        name: measure(SHAPES[name], device, arguments.pixels, arguments.seconds, arguments.repeats)
        for name in arguments.shapes
    }
    for name, rows in result["shapes"].items():
        report(name, rows)
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")


def variants(shape: tuple[int, ...], device: str, batch: int) -> dict[str, Callable[[], Tensor]]:
    """Name -> a function that draws one batch of noisy images."""
    pixels = torch.randint(0, MAX_VALUE + 1, (1, *shape), device=device).float()
    x = (pixels / torch.tensor(MAX_VALUE, device=device)).expand(batch, *shape)
    draws = torch.arange(batch, device=device)
    images = torch.full_like(draws, 7)

    def of(component: str) -> Callable[[], Tensor]:
        noisy = load("distributions", component).noisy
        return lambda: noisy(x, SIGMA, seed=0, images=images, draws=draws, max_value=MAX_VALUE)

    return {
        RANDN: lambda: x + SIGMA * torch.randn(batch, *shape, device=device),
        TORCH: lambda: x + SIGMA * streams.gaussian(0, images, draws, shape),
        **{component: of(component) for component in names("distributions")},
    }


def measure(
    shape: tuple[int, ...], device: str, pixels: int, seconds: float, repeats: int
) -> dict[str, dict[str, float]]:
    """Median, lowest and highest images per second of each variant, and their ratios."""
    batch = max(1, pixels // torch.Size(shape).numel())
    drawn = variants(shape, device, batch)
    for draw in drawn.values():  # compiles, and allocates the memory
        draw()
    rates: dict[str, list[float]] = {name: [] for name in drawn}
    for _ in range(repeats):
        for name, draw in drawn.items():
            rates[name].append(batch * rate(draw, device, seconds))
    medians = {name: statistics.median(row) for name, row in rates.items()}
    return {
        name: {
            "images_per_second": round(medians[name]),
            "lowest": round(min(row)),
            "highest": round(max(row)),
            "times_rrcm_noise": round(medians[name] / medians[TORCH], 2),
            "times_randn": round(medians[name] / medians[RANDN], 2),
            "cost_of_gaussian": round(medians["gaussian"] / medians[name], 2),
        }
        for name, row in rates.items()
    }


def rate(draw: Callable[[], Tensor], device: str, seconds: float) -> float:
    """Calls per second."""
    done, began = 0, time.perf_counter()
    while time.perf_counter() < began + seconds:
        draw()
        done += 1
    if device == "cuda":
        torch.cuda.synchronize()
    return done / (time.perf_counter() - began)


def report(shape: str, rows: dict[str, dict[str, float]]) -> None:
    print(f"{shape}, one thread, noisy images per second")
    print(
        f"{'noise':12} {'median':>11} {'lowest':>11} {'highest':>11} {'x rrcm.noise':>13} "
        f"{'x randn':>8} {'cost / gaussian':>16}"
    )
    for name, row in rows.items():
        print(
            f"{name:12} {row['images_per_second']:>11,} {row['lowest']:>11,} {row['highest']:>11,} "
            f"{row['times_rrcm_noise']:>13.2f} {row['times_randn']:>8.2f} "
            f"{row['cost_of_gaussian']:>16.2f}"
        )


if __name__ == "__main__":
    main()
