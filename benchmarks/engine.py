"""Noisy images per second of the engine, by backend, precision and batch size.

``python -m benchmarks.engine`` builds an untrained network (speed does not depend on the weights),
exports it, and has the engine draw its votes on all cores or the GPU, noise and counting included.
In the same run, in turns, it times the usual loop, and matrix products, which give the peak of the
machine. "Of peak" is the rate times the operations of the plain network's matrix products, two to a
multiply-add, over the peak of the same precision: work that the engine avoids counts as done.
"""

import argparse
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from onnx import helper, numpy_helper
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from rrcm.certification import fastest
from rrcm.certification.sampling import drawing
from rrcm.config.certification import Export
from rrcm.config.sections import Model
from rrcm.core import registry
from rrcm.core.errors import BackendError
from rrcm.core.files import sha256
from rrcm.data.splits.shards import Split
from rrcm.inference.backend import Backend
from rrcm.inference.export import export
from rrcm.models.networks import vit
from rrcm.models.trained.base import classifier
from rrcm.models.trained.base.classifier import Classifier

SIGMA = 0.5
PATCHES = {8: 2, 28: 4, 32: 4, 224: 16}  # image size -> patch size of a ViT
SIDES = {"lenet": 28, "resnet9": 32, "resnet20": 32, "resnet110": 32, "resnet50": 224}
SIDES |= dict.fromkeys(vit.SIZES, 8)
GREY = (8, 28)  # image sizes of data in grey
LOOP_BATCH = 500  # of the usual loop
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
PRODUCTS = {  # ONNX Runtime's on a CPU: operator, types of its inputs and of the product
    "fp32": ("MatMul", (np.float32, np.float32, np.float32)),
    "int8": ("MatMulInteger", (np.uint8, np.int8, np.int32)),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """An untrained network, on disk under ``root`` and in memory."""

    root: Path
    network: Classifier
    split: Split
    flops: float  # of the forward pass of one image


def measure(
    model: str, image_size: int | None, *, repeats: int, seconds: float, batches: list[int]
) -> str:
    """Return a table of medians of ``repeats`` turns of ``seconds`` each.

    ``model`` is one of `SIDES`, which has the usual ``image_size`` of each. ``batches`` are batch
    sizes; if empty, the usual ones of the device.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    image_size, threads = image_size or SIDES[model], torch.get_num_threads()
    rates: dict[Any, list[float]] = defaultdict(list)
    peaks: dict[str, list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        subject = prepare(Path(folder), model, image_size)
        backends, missing = ready(subject, device)
        x = torch.from_numpy(subject.split.pixels(0))
        for _ in range(repeats):
            for (name, precision), backend in backends.items():
                for batch in batches or fastest.BATCHES[device]:
                    torch.set_num_threads(threads)  # backends on the CPU leave it at one
                    workers = drawing.workers()
                    rate = fastest.engine_rate(backend, subject.split, batch, workers, seconds)
                    rates[name, precision, batch].append(rate)
            torch.set_num_threads(threads)
            network = subject.network.to(device)
            rate = loop_rate(network, x, seconds=seconds)
            rates["the usual loop", "fp32", LOOP_BATCH].append(rate)
            for precision in {precision for _, precision in backends}:
                peaks[precision].append(machine_peak(precision, device))
    median_peaks = {name: statistics.median(turns) for name, turns in sorted(peaks.items())}
    head = (
        f"{model} at {image_size} x {image_size}, {subject.flops / 1e6:,.2f} MFLOP an image; "
        f"{torch.cuda.get_device_name() if device == 'cuda' else fastest.machine()}, {threads} "
        f"threads; torch {torch.__version__}, onnxruntime {onnxruntime.__version__}; medians of "
        f"{repeats}\nmatrix products, GFLOP/s: "
    )
    head += ", ".join(f"{name} {peak / 1e9:.1f}" for name, peak in median_peaks.items())
    head += "".join(f"\nnot here: {one}" for one in missing)
    return f"{head}\n\n{table(rates, median_peaks, subject.flops)}"


def ready(subject: Subject, device: str) -> tuple[dict[tuple[str, str], Backend], list[str]]:
    """The backends that run here by (name, precision), and what keeps the others from it."""
    running, missing = {}, []
    for name, precision in native(device):
        try:
            running[name, precision] = opened(subject, name, precision, device)
        except BackendError as error:
            missing.append(f"{name} {precision}: {error}")
    return running, missing


def table(rates: dict[Any, list[float]], peaks: dict[str, float], flops: float) -> str:
    """The rates of each function, precision and batch size, beside those of the usual loop."""
    usual = statistics.median(rates["the usual loop", "fp32", LOOP_BATCH])
    lines = [
        f"{'':20}{'batch':>6}{'noisy images/s':>16}{'lowest':>11}{'highest':>11}{'ratio':>7}"
        f"{'of peak':>9}"
    ]
    for (name, precision, batch), turns in rates.items():
        rate = statistics.median(turns)
        share = f"{100 * rate * flops / peaks[precision]:.1f} %" if precision in peaks else ""
        lines.append(
            f"{name + ' ' + precision:20}{batch:>6}{rate:>16,.1f}{min(turns):>11,.1f}"
            f"{max(turns):>11,.1f}{rate / usual:>7.2f}{share:>9}"
        )
    return "\n".join(lines)


def prepare(root: Path, model: str, image_size: int) -> Subject:
    """Save and export an untrained network under ``root``."""
    torch.manual_seed(0)
    channels = 1 if image_size in GREY else 3
    declared = _declared(model, image_size, channels)
    architecture, normed = declared.architecture, declared.architecture == "vit"
    classes = fastest.CLASSES
    network = classifier.build(
        declared, classes=len(classes), condition="exact", final_norm=normed
    ).eval()
    nn.init.normal_(network.head.weight)
    config = {"classes": classes, "condition": "exact", "final_norm": normed}
    classifier.save(root / "models/bench", network.state_dict(), model=declared, config=config)
    split = fastest.random_images((channels, image_size, image_size))
    weights = sha256(root / "models/bench/model.safetensors")
    metadata = {"classes": classes, "sigma": SIGMA, "run": "bench", "weights": weights}
    settings = Export(opset=20, parity_images=2, tolerance=1e-2)
    folded = registry.load("folding", architecture).fold(network)
    export(network, folded, root / "onnx/bench.onnx", split, metadata, settings)
    if architecture == "vit":
        flops = vit_operations(declared.shape)
    else:
        with FlopCounterMode(display=False) as counted, torch.no_grad():
            network(torch.from_numpy(split.pixels(slice(1))), torch.tensor(SIGMA))
        flops = float(counted.get_total_flops())
    return Subject(root=root, network=network, split=split, flops=flops)


def _declared(model: str, image_size: int, channels: int) -> Model:
    shape: dict[str, Any] = {"image_size": image_size, "channels": channels}
    shape |= {"projector_width": 8, "projector_dim": 8}
    if model in vit.SIZES:
        shape |= {"size": model, "patch_size": PATCHES[image_size]}
        return Model(architecture="vit", shape=shape | {"position_std": 0.5, "init": "pytorch"})
    if model == "lenet":
        return Model(architecture="lenet", shape=shape)
    if model == "resnet9":
        return Model(architecture="resnet9", shape=shape | {"stem": 32})
    shape |= {"size": model.removeprefix("resnet")}
    return Model(
        architecture="resnet", shape=shape | {"mean": [0.5] * channels, "std": [0.25] * channels}
    )


def vit_operations(shape: dict[str, Any]) -> float:
    """The operations of one image: for all tokens in all blocks, without a head."""
    (width, depth, _), patch = vit.SIZES[shape["size"]], shape["patch_size"]
    patches = (shape["image_size"] // patch) ** 2
    tokens = patches + 2  # and the class and the time
    block = 12 * width**2 * tokens + 2 * width * tokens**2  # projections and MLP, attention
    return 2.0 * (block * depth + shape["channels"] * patch**2 * width * patches)


def opened(subject: Subject, name: str, precision: str, device: str) -> Backend:
    """A backend with the weights of a subject."""
    pixels = torch.from_numpy(subject.split.pixels())
    return registry.load("backends", name).Backend(
        subject.root,
        "bench",
        sigma=SIGMA,
        precision=precision,
        device=device,
        calibration=lambda: pixels + SIGMA * torch.randn_like(pixels),
    )


def native(device: str) -> list[tuple[str, str]]:
    """Return the variants that the processor computes natively; emulation would take hours."""
    offered = fastest.variants(device)
    precisions = {precision for _, precision in offered} & {*DTYPES}
    peaks = {name: gemm_peak(DTYPES[name], device, size=256) for name in precisions}
    slow = {name for name, peak in peaks.items() if peak < peaks["fp32"] / 3}
    return [variant for variant in offered if variant[1] not in slow]


def gemm_peak(dtype: torch.dtype, device: str, size: int | None = None) -> float:
    """Return FLOP/s of matrix products, the best of a few, on all threads or the GPU.

    By default of a ``size`` at which the processor reaches its peak.
    """
    size = size or (2048 if device == "cpu" else 8192)
    a, b = torch.rand(2, size, size, device=device).to(dtype)

    def products(n: int) -> None:
        for _ in range(n):
            c = a @ b
        c[0, 0].item()  # a GPU is waited for once

    return best_rate(products, operations=2.0 * size**3)


def best_rate(compute: Callable[[int], None], *, operations: float) -> float:
    """Return operations/s of ``compute``, given how often; the best of a few turns."""
    compute(2)
    turns = []
    for _ in range(4):
        began = time.perf_counter()
        compute(5)
        turns.append(5 * operations / (time.perf_counter() - began))
    return max(turns)


def machine_peak(precision: str, device: str) -> float:
    """Return operations/s of matrix products, on all threads or the GPU, by the faster library.

    PyTorch has no products of int8 on a CPU, and on some AMD processors its products of fp32 reach
    less than half of the rate of ONNX Runtime's.
    """
    peaks = []
    if precision in DTYPES:
        peaks.append(gemm_peak(DTYPES[precision], device))
    if device == "cpu" and precision in PRODUCTS:
        peaks.append(onnx_peak(precision, torch.get_num_threads()))
    return max(peaks)


def onnx_peak(precision: str, threads: int, size: int = 2048) -> float:
    """Return operations/s of ONNX Runtime's products on the CPU, the best of a few."""
    operator, types = PRODUCTS[precision]
    given, _, made = (helper.np_dtype_to_tensor_dtype(np.dtype(of)) for of in types)
    a, b = np.random.default_rng(0).integers(0, 64, (2, size, size))
    a, b = a.astype(types[0]), b.astype(types[1])
    shape = (size, size)
    graph = helper.make_graph(
        [helper.make_node(operator, ["a", "b"], ["c"])],
        precision,
        [helper.make_tensor_value_info("a", given, shape)],
        [helper.make_tensor_value_info("c", made, shape)],
        [numpy_helper.from_array(b, "b")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )

    def products(n: int) -> None:
        for _ in range(n):
            session.run(None, {"a": a})

    return best_rate(products, operations=2.0 * size**3)


@torch.no_grad()
def loop_counts(network: nn.Module, x: Tensor, draws: int, *, sigma: float) -> np.ndarray:
    """Votes [K] of ``draws`` noisy copies of ``x`` [C, H, W], by the loop published with papers.

    One image at a time: repeat it, add torch.randn in float32, run the network, copy the argmax to
    the host and count there in Python.
    """
    device = next(network.parameters()).device
    level, x = torch.tensor(sigma, device=device), x.to(device)
    counts = np.zeros(len(fastest.CLASSES), dtype=int)
    while draws > 0:
        size = min(LOOP_BATCH, draws)
        draws -= size
        batch = x.repeat((size, 1, 1, 1))
        noise = torch.randn_like(batch) * sigma
        for label in network(batch + noise, level).argmax(1).cpu().numpy():
            counts[label] += 1
    return counts


def loop_rate(network: nn.Module, x: Tensor, *, seconds: float) -> float:
    """Noisy images per second of `loop_counts`."""
    loop_counts(network, x, 16, sigma=SIGMA)  # warm up
    done, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        loop_counts(network, x, LOOP_BATCH, sigma=SIGMA)
        done += LOOP_BATCH
    return done / (time.perf_counter() - began)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--model", choices=[*SIDES], default="tiny")
    options.add_argument("--image-size", type=int, choices=[*PATCHES])
    options.add_argument("--repeats", type=int, default=5)
    options.add_argument("--seconds", type=float, default=2.0, help="of a turn of each")
    options.add_argument("--batch-size", type=int, nargs="+", default=[], help="of the engine")
    asked = options.parse_args()
    print(
        measure(
            asked.model,
            asked.image_size,
            repeats=asked.repeats,
            seconds=asked.seconds,
            batches=asked.batch_size,
        )
    )


if __name__ == "__main__":
    main()
