"""The loop of the certifiers published with papers, as a yardstick for the engine.

One image at a time: repeat it, add torch.randn in float32, run the network, copy the argmax to the
host and count there in Python.
"""

import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

BATCH_SIZE = 500


@torch.no_grad()
def counts(
    network: nn.Module,
    x: Tensor,
    sigma: float,
    draws: int,
    *,
    classes: int,
    batch_size: int = BATCH_SIZE,
) -> np.ndarray:
    """Return the votes [K] of ``draws`` noisy copies of ``x`` [C, H, W]."""
    device = next(network.parameters()).device
    level = torch.tensor(sigma, device=device)
    found = np.zeros(classes, dtype=int)
    x = x.to(device)
    while draws > 0:
        size = min(batch_size, draws)
        draws -= size
        batch = x.repeat((size, 1, 1, 1))
        noise = torch.randn_like(batch) * sigma
        for label in network(batch + noise, level).argmax(1).cpu().numpy():
            found[label] += 1
    return found


def rate(network: nn.Module, x: Tensor, sigma: float, *, classes: int, seconds: float) -> float:
    """Return noisy images per second of `counts`."""
    return _rate(lambda n: counts(network, x, sigma, n, classes=classes), BATCH_SIZE, seconds)


def toolbox_rate(
    network: nn.Module, x: Tensor, sigma: float, *, classes: int, seconds: float
) -> float | None:
    """Return the rate of adversarial-robustness-toolbox; None if it is not installed."""
    try:
        from art.estimators.certification.randomized_smoothing import PyTorchRandomizedSmoothing
    except ImportError:
        return None
    level = torch.tensor(sigma)

    class OfPixels(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, x: Tensor) -> Tensor:
            return self.network(x, level.to(x.device))

    smoothed = PyTorchRandomizedSmoothing(
        OfPixels(),
        loss=nn.CrossEntropyLoss(),
        input_shape=tuple(x.shape),
        nb_classes=classes,
        sample_size=100,
        scale=sigma,
        alpha=0.001,
    )
    images = x.numpy()[None]
    return _rate(lambda n: smoothed.certify(images, n=n, batch_size=BATCH_SIZE), 500, seconds)


def _rate(draw: Callable[[int], object], size: int, seconds: float) -> float:
    draw(16)  # warm up
    done, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        draw(size)
        done += size
    return done / (time.perf_counter() - began)
