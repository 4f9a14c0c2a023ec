"""Noisy images per second of each distribution, of its definition in PyTorch, and of torch.randn.

``python -m benchmarks.noise`` draws noise as a step of sampling does, many draws of one image, on
one thread. Repeats are interleaved, so that other load affects all alike; rates are medians.
"""

import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from rrcm.core.registry import load, names
from rrcm.noise import streams

SHAPES = ((1, 8, 8), (3, 32, 32))
SIGMA, MAX_VALUE = 0.25, 255
PIXELS, SECONDS, REPEATS = 400_000, 0.3, 7  # of a batch; of a variant and repeat


def main() -> None:
    torch.set_num_threads(1)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for shape in SHAPES:
        batch = max(1, PIXELS // torch.Size(shape).numel())
        drawn = variants(shape, device, batch)
        for draw in drawn.values():  # compiles, and allocates the memory
            draw()
        rates: dict[str, list[float]] = {name: [] for name in drawn}
        for _ in range(REPEATS):
            for name, draw in drawn.items():
                rates[name].append(batch * rate(draw, device))
        usual = statistics.median(rates["torch.randn"])
        print(f"{shape}, one thread, noisy images per second: median, lowest, highest, x randn")
        for name, turns in rates.items():
            middle = statistics.median(turns)
            print(
                f"{name:12} {middle:>11,.0f} {min(turns):>11,.0f} {max(turns):>11,.0f} "
                f"{middle / usual:>8.2f}"
            )


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
        "torch.randn": lambda: x + SIGMA * torch.randn(batch, *shape, device=device),
        "rrcm.noise": lambda: x + SIGMA * streams.gaussian(0, images, draws, shape),
        **{component: of(component) for component in names("distributions")},
    }


def rate(draw: Callable[[], Tensor], device: str) -> float:
    """Calls per second."""
    done, began = 0, time.perf_counter()
    while time.perf_counter() < began + SECONDS:
        draw()
        done += 1
    if device == "cuda":
        torch.cuda.synchronize()
    return done / (time.perf_counter() - began)


if __name__ == "__main__":
    main()
