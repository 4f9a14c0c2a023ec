"""Measures the speed of training: images per second, device utilization (``mfu``), and memory.

``mfu`` is the share of the device's peak that goes into the network's matrix products: operations
of one image's forward pass (counted by torch, two per multiply-add), times the passes that a step
makes for each image (a backward pass counts as two), times images per second, over the rate of
large matrix products in the precision of the training, which is measured briefly beforehand. The
projector, recomputation to save memory, and augmentation do not count.
"""

import importlib.util
import json
import os
import resource
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from rrcm.core.errors import StageError
from rrcm.core.files import write_json
from rrcm.training.engine import distributed
from rrcm.training.engine.loop import Training

SPEED = "speed.json"  # the rows so far, in the scratch folder of a stage
TENSORBOARD = "RRCM_TENSORBOARD"  # a folder to which the same numbers are written for TensorBoard
PEAK_SIZE = {"cuda": 8192, "cpu": 1024}  # side of the matrices
TRIES = 20  # products: other work on the machine comes and goes


class Meter:
    """Adds a row of numbers whenever the training logs; a resumed training appends to them."""

    def __init__(self, scratch: Path, training: Training) -> None:
        """Measure the peak of one device; the rows are in ``scratch``, in ``speed.json``."""
        self._path, self._training, step = scratch / SPEED, training, training.state.step
        saved = json.loads(self._path.read_text()) if self._path.exists() else []
        self.rows = [row for row in saved if row["step"] <= step]
        size = training.split.images.shape[1:]  # (C, H, W)
        self._operations = operations(training.called[0].module, size)
        precision = training.compute.precision
        self._peak = distributed.world() * peak(precision, distributed.device())
        self._before = self.rows[-1]["seconds"] if self.rows else 0.0
        self._writer = _writer()
        self._began = self._last = time.monotonic()
        self._step = step

    def look(self) -> None:
        """Add a row with the speed since the last one, if the training has just logged a step."""
        state = self._training.state
        if not (state.log and state.log[-1]["step"] == state.step):
            return
        now = time.monotonic()
        rate = (state.step - self._step) * self._training.batch_size / (now - self._last)
        row = {
            "step": state.step,
            "images_per_second": rate,
            "mfu": rate * state.passes * self._operations / self._peak,
            "memory_gib": memory_gib(),
            "seconds": self._before + now - self._began,
        }
        self.rows.append(row)
        self._last, self._step = now, state.step
        if self._writer:
            for name, value in (state.log[-1] | row).items():
                self._writer.add_scalar(name, value, state.step)

    def save(self) -> None:
        """Save the rows, from which `__init__` resumes."""
        write_json(self._path, self.rows)


def operations(network: nn.Module, size: tuple[int, ...]) -> float:
    """Operations of the matrix products of one image's forward pass; a multiply-add is two."""
    was_training, weight = network.training, next(network.parameters())
    x = torch.zeros(1, *size, device=weight.device)
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), counter:  # fused attention is not counted
        network.eval().forward(x, torch.ones((), device=weight.device))
    network.train(was_training)
    return float(counter.get_total_flops())


def peak(precision: str, device: str) -> float:
    """Operations per second of large matrix products on one device, the best of a few."""
    kind = torch.device(device).type
    size, dtype = PEAK_SIZE[kind], {"fp32": torch.float32, "bf16": torch.bfloat16}[precision]
    a, b = torch.rand(2, size, size, device=device).to(dtype)
    fastest = float("inf")
    for _ in range(TRIES):
        began = time.perf_counter()
        (a @ b)[0, 0].item()  # waits for the device
        fastest = min(fastest, time.perf_counter() - began)
    return 2 * size**3 / fastest


def memory_gib() -> float:
    """The peak memory so far: of the GPU if there is one, else of this process."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**30
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30


def _writer():  # noqa: ANN202 (its package may be absent)
    folder = os.environ.get(TENSORBOARD)
    if not folder:
        return None
    if importlib.util.find_spec("tensorboard") is None:
        raise StageError(f"{TENSORBOARD} is set: install tensorboard, or unset it")
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(folder)
