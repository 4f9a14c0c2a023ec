"""Measures noisy images per second of the engine, by backend, precision and batch size.

``rrcm bench`` builds an untrained network (speed does not depend on the weights), exports it, and
has the engine draw its votes on all cores or the GPU, noise and counting included. In the same run,
in alternation, it times the usual loop (usual_loop.py), adversarial-robustness-toolbox if that is
installed, and matrix products, which give the peak of the machine. ``peak_fraction`` is the rate
times the operations of the plain network's matrix products, two to a multiply-add, over the peak of
the same precision: work that the engine avoids counts as done.
"""

import itertools
import os
import platform
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from onnx import helper, numpy_helper
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from rrcm.certification.sampling import batching, voting
from rrcm.certification.sampling.batching import Job, Piece
from rrcm.certification.sampling.procedure import BoundNoise
from rrcm.certification.speed import usual_loop
from rrcm.config.certification import Export
from rrcm.config.sections import Model
from rrcm.core import progress, registry
from rrcm.core.errors import ConfigError
from rrcm.core.files import sha256
from rrcm.core.registry import suggest
from rrcm.data.splits.shards import Split
from rrcm.inference.backends import lanes
from rrcm.inference.export import export
from rrcm.models.networks.vit import SIZES
from rrcm.models.trained.base import classifier
from rrcm.models.trained.base.classifier import Classifier

CLASSES = 10
NAMES = tuple(map(str, range(CLASSES)))
SIGMA = 0.5
PATCHES = {8: 2, 28: 4, 32: 4, 224: 16}  # image size -> patch size of a ViT
SIDES = {"lenet": 28, "resnet20": 32, "resnet110": 32, "resnet50": 224} | dict.fromkeys(SIZES, 8)
GREY = (8, 28)  # image sizes of data in grey
BATCHES = {"cpu": (16, 64, 256), "cuda": (256, 1024, 2048)}
VARIANTS = {
    "cpu": (
        *(("lanes", "fp32"), ("torch", "fp32"), ("torch", "bf16")),
        *(("onnx", "fp32"), ("onnx", "int8")),
    ),
    "cuda": (("torch", "fp32"), ("torch", "bf16"), ("onnx", "fp32"), ("onnx", "fp16")),
}
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
    model: str, image_size: int | None, *, repeats: int, seconds: float, batches: tuple[int, ...]
) -> dict[str, Any]:
    """Return all rates, medians of ``repeats`` turns of ``seconds`` each, as `table` prints them.

    ``model`` is one of `SIDES`, which has the usual ``image_size`` of each. ``batches`` are batch
    sizes; if empty, the usual ones of the device.

    Raises:
        ConfigError: There is no such model or image size.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if model not in SIDES:
        raise ConfigError(f"--model {model}: only {', '.join(SIDES)}.{suggest(model, [*SIDES])}")
    if image_size is None:
        image_size = SIDES[model]
    if image_size not in PATCHES:
        raise ConfigError(f"--image-size {image_size}: only {', '.join(map(str, PATCHES))}")
    threads = torch.get_num_threads()
    rates: dict[str | tuple[str, str, int], list[float]] = defaultdict(list)
    peaks: dict[str, list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        subject = prepare(Path(folder), model, image_size)
        backends = {v: _backend(subject, *v, device) for v in native(device) if _runs(v[0], model)}
        variants = [*itertools.product(backends, batches or BATCHES[device])]
        x = torch.from_numpy(subject.split.pixels(0))
        with progress.bar(repeats * (len(variants) + 1), 0, f"bench {model}", " turns") as shown:
            for _ in range(repeats):
                for kind, batch in variants:
                    torch.set_num_threads(threads)  # backends on the CPU leave it at one
                    rate = engine_rate(backends[kind], subject.split, batch, threads, seconds)
                    rates[*kind, batch].append(rate)
                    shown.update()
                torch.set_num_threads(threads)
                network = subject.network.to(device)
                turn = max(seconds, 5.0)
                usual = usual_loop.rate(network, x, SIGMA, classes=CLASSES, seconds=turn)
                rates["reference"].append(usual)
                if toolbox := usual_loop.toolbox_rate(
                    network, x, SIGMA, classes=CLASSES, seconds=turn
                ):
                    rates["toolbox"].append(toolbox)
                for name in {precision for _, precision in backends}:
                    peaks[name].append(machine_peak(name, device))
                shown.update()
        return _result(model, image_size, subject.flops, rates, peaks, device, threads)


def native(device: str) -> list[tuple[str, str]]:
    """Return the variants that the processor computes natively; emulation would take hours."""
    precisions = {precision for _, precision in VARIANTS[device]} & {*DTYPES}
    peaks = {name: gemm_peak(DTYPES[name], device, size=256) for name in precisions}
    slow = {name for name, peak in peaks.items() if peak < peaks["fp32"] / 3}
    return [variant for variant in VARIANTS[device] if variant[1] not in slow]


def _runs(backend: str, model: str) -> bool:
    """Return whether a backend runs such a network; `lanes` does not run every kind."""
    return backend != "lanes" or model in SIZES or model in lanes.NETWORKS


def prepare(root: Path, model: str, image_size: int) -> Subject:
    """Save and export an untrained network under ``root``."""
    torch.manual_seed(0)
    channels = 1 if image_size in GREY else 3
    declared = _declared(model, image_size, channels)
    architecture, normed = declared.architecture, declared.architecture == "vit"
    network = classifier.build(
        declared, classes=CLASSES, condition="exact", final_norm=normed
    ).eval()
    torch.nn.init.normal_(network.head.weight)
    config = {"classes": NAMES, "condition": "exact", "final_norm": normed}
    classifier.save(root / "models/bench", network.state_dict(), model=declared, config=config)
    split = random_images((channels, image_size, image_size))
    weights = sha256(root / "models/bench/model.safetensors")
    metadata = {"classes": NAMES, "sigma": SIGMA, "run": "bench", "weights": weights}
    settings = Export(opset=20, parity_images=2, tolerance=1e-2)
    export(network, root / "onnx/bench.onnx", split, metadata, settings, architecture=architecture)
    x = torch.from_numpy(split.pixels(slice(1)))
    return Subject(root=root, network=network, split=split, flops=_operations(network, x, declared))


def random_images(shape: tuple[int, int, int]) -> Split:
    """Return 64 images of ``shape`` [C, H, W]: the speed does not depend on what they show."""
    images = np.random.default_rng(0).integers(0, 256, (64, *shape), dtype=np.uint8)
    zero = np.zeros(64, dtype=np.int64)
    return Split(idx=np.arange(64), images=images, labels=zero, classes=NAMES, max_value=255)


def _declared(model: str, image_size: int, channels: int) -> Model:
    shape: dict[str, Any] = {"image_size": image_size, "channels": channels}
    shape |= {"projector_width": 8, "projector_dim": 8}
    if model in SIZES:
        shape |= {"size": model, "patch_size": PATCHES[image_size]}
        return Model(architecture="vit", shape=shape | {"position_std": 0.5, "init": "pytorch"})
    if model == "lenet":
        return Model(architecture="lenet", shape=shape)
    shape |= {"size": model.removeprefix("resnet")}
    return Model(
        architecture="resnet", shape=shape | {"mean": [0.5] * channels, "std": [0.25] * channels}
    )


def _operations(network: Classifier, x: Tensor, declared: Model) -> float:
    """Return the operations of one image; of a ViT, for all tokens in all blocks."""
    if declared.architecture != "vit":
        with FlopCounterMode(display=False) as counted, torch.no_grad():
            network(x, torch.tensor(SIGMA))
        return float(counted.get_total_flops())
    shape = declared.shape
    (width, depth, _), patch = SIZES[shape["size"]], shape["patch_size"]
    tokens = 2 + (shape["image_size"] // patch) ** 2
    products = 12 * width**2 * tokens + 2 * width * tokens**2  # projections and MLP, attention
    return 2.0 * (products * depth + shape["channels"] * patch**2 * width * (tokens - 2))


def _backend(subject: Subject, name: str, precision: str, device: str) -> voting.Backend:
    pixels = torch.from_numpy(subject.split.pixels())
    return registry.load("backends", name).Backend(
        subject.root,
        "bench",
        sigma=SIGMA,
        precision=precision,
        device=device,
        calibration=lambda: pixels + SIGMA * torch.randn_like(pixels),
    )


def engine_rate(
    backend: voting.Backend, split: Split, batch_size: int, workers: int, seconds: float
) -> float:
    """Return noisy images per second of the engine, on as many images as it takes."""
    count = voting.counter(
        voting.hard(backend),
        split,
        noise=BoundNoise(registry.load("distributions", "gaussian"), SIGMA, 0, split.max_value),
        batch_size=batch_size,
        device=backend.device,
    )
    calls: list[tuple[float, int]] = []  # the end of each, and its rows

    def timed(pieces: list[Piece]) -> Sequence[voting.Counts]:
        counts = count(pieces)
        calls.append((time.perf_counter(), sum(piece.size for piece in pieces)))
        return counts

    first = 4 * workers  # compiled, warm, all workers busy
    bounds = tuple(range(0, 100 * batch_size + 1, batch_size))
    jobs = (Job(row=i % len(split.idx), bounds=bounds) for i in itertools.count())
    running = batching.run(jobs, timed, lambda job: True, batch_size=batch_size, workers=workers)
    for _ in running:
        if len(calls) > first and calls[-1][0] - calls[first - 1][0] >= seconds:
            break
    running.close()
    (began, _), *counted = calls[first - 1 :]
    return sum(rows for _, rows in counted) / (counted[-1][0] - began)


def gemm_peak(dtype: torch.dtype, device: str, size: int = 2048) -> float:
    """Return FLOP/s of matrix products, the best of a few, on all threads or the GPU."""
    a, b = torch.rand(2, size, size, device=device).to(dtype)

    def products(n: int) -> None:
        for _ in range(n):
            c = a @ b
        c[0, 0].item()  # a GPU is waited for once

    return _best(products, operations=2.0 * size**3)


def _best(compute: Callable[[int], None], *, operations: float) -> float:
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
    found = [gemm_peak(DTYPES[precision], device)] if precision in DTYPES else []
    if device == "cpu" and precision in PRODUCTS:
        found.append(onnx_peak(precision, torch.get_num_threads()))
    return max(found)


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

    return _best(products, operations=2.0 * size**3)


def _result(
    model: str,
    image_size: int,
    flops: float,
    rates: dict[Any, list[float]],
    peaks: dict[str, list[float]],
    device: str,
    threads: int,
) -> dict[str, Any]:
    peak = {name: statistics.median(found) for name, found in sorted(peaks.items())}
    others = {name: rates.pop(name) for name in ("reference", "toolbox") if name in rates}
    usual = statistics.median(others["reference"])
    rows = []
    for (backend, precision, batch), found in rates.items():
        rate = statistics.median(found)
        rows.append(
            {
                "backend": backend,
                "precision": precision,
                "batch_size": batch,
                "per_s": round(rate, 1),
                "lowest": round(min(found), 1),
                "highest": round(max(found), 1),
                "ratio": round(rate / usual, 2),
                "peak_fraction": round(rate * flops / peak[precision], 3)
                if precision in peak
                else None,
            }
        )
    best = max(rows, key=lambda row: row["per_s"])
    return {
        "model": model,
        "image_size": image_size,
        "mflop_per_image": round(flops / 1e6, 2),
        "machine": torch.cuda.get_device_name() if device == "cuda" else machine(),
        "threads": threads,
        "torch": torch.__version__,
        "onnxruntime": onnxruntime.__version__,
        "repeats": len(others["reference"]),
        "gemm_peak_gflops": {name: round(value / 1e9, 1) for name, value in peak.items()},
        "engine_per_s": best["per_s"],
        "engine": _named(best),
        "reference_per_s": round(usual, 1),
        "reference_peak_fraction": round(usual * flops / peak["fp32"], 3),
        "toolbox_per_s": round(statistics.median(others["toolbox"]), 1)
        if "toolbox" in others
        else None,
        "ratio": best["ratio"],
        "peak_fraction": best["peak_fraction"],
        "variants": rows,
    }


def machine() -> str:
    """Return the name of the processor, and how many cores there are."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next(line.partition(":")[2].strip() for line in lines if "model name" in line)
    except (OSError, StopIteration):
        name = platform.processor() or platform.machine()
    return f"{name}, {os.cpu_count()} cores"


def table(result: dict[str, Any]) -> str:
    """Return the result as text."""
    peaks = ", ".join(f"{name} {value:g}" for name, value in result["gemm_peak_gflops"].items())
    lines = [
        f"{result['model']} at {result['image_size']} x {result['image_size']}, "
        f"{result['mflop_per_image']:,} MFLOP an image; {result['machine']}, "
        f"{result['threads']} threads; medians of {result['repeats']}",
        f"matrix products, GFLOP/s: {peaks}",
        "",
        f"{'':22}{'batch':>6}{'noisy images/s':>16}{'lowest':>10}{'highest':>10}"
        f"{'ratio':>8}{'of peak':>9}",
    ]
    for row in result["variants"]:
        share = "" if row["peak_fraction"] is None else f"{100 * row['peak_fraction']:.1f} %"
        lines.append(
            f"engine, {row['backend'] + ' ' + row['precision']:14}{row['batch_size']:>6}"
            f"{row['per_s']:>16,.1f}{row['lowest']:>10,.1f}{row['highest']:>10,.1f}"
            f"{row['ratio']:>8.2f}{share:>9}"
        )
    usual, share = result["reference_per_s"], 100 * result["reference_peak_fraction"]
    lines.append(
        f"{'the usual loop, fp32':22}{usual_loop.BATCH_SIZE:>6}{usual:>16,.1f}"
        f"{'':28}{share:>7.1f} %"
    )
    if result["toolbox_per_s"] is not None:
        lines.append(
            f"{'ART, fp32':22}{usual_loop.BATCH_SIZE:>6}{result['toolbox_per_s']:>16,.1f}{'':20}"
            f"{result['toolbox_per_s'] / usual:>8.2f}"
        )
    lines += ["", f"best: {result['engine']}, {result['ratio']:g} times the usual loop"]
    return "\n".join([*lines, *_choices(result["variants"])])


def _choices(rows: list[dict[str, Any]]) -> list[str]:
    """Return lines on what ``--precision auto`` of `rrcm certify` would take, and why."""
    fastest: dict[str, dict[str, Any]] = {}
    for row in sorted(rows, key=lambda row: row["per_s"]):
        fastest[row["precision"]] = row
    same = fastest.pop("fp32")
    lines = [f"--precision auto: {_named(same)}, the fastest that is the network in fp32"]
    for precision, row in sorted(fastest.items()):
        times = row["per_s"] / same["per_s"]
        if times > 1:
            taken = f"{_named(row)}, {times:.3g} times that; another function, certified as such"
        else:
            taken = f"the same, as {_named(row)} has {times:.2f} of its rate"
        lines.append(f"  with --allow {precision}: {taken}")
    return lines


def _named(row: dict[str, Any]) -> str:
    return f"{row['backend']} {row['precision']}, batch {row['batch_size']}"
