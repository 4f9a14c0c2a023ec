"""Noisy images per second of one classifier, by backend and precision, beside the machine's peak.

``python -m benchmarks.throughput`` builds an untrained ViT (speed does not depend on the weights),
exports it, and runs the inner step of sampling, noise included, on every core. The peak is that of
a float32 matrix product in the same run on the same threads; a rate's share of it counts two
operations for each multiply-add of the network's matrix products.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch

from rrcm import classifier, sample
from rrcm.config import Export, Model, Sample
from rrcm.export import export
from rrcm.files import sha256
from rrcm.registry import load
from rrcm.shards import Split

SHAPES = {
    "tiny": {"size": "tiny", "image_size": 8, "channels": 1, "patch_size": 2},
    "b": {"size": "b", "image_size": 32, "channels": 3, "patch_size": 4},
}
VARIANTS = [("torch", "fp32"), ("torch", "bf16"), ("onnx", "fp32")]
CLASSES = [str(c) for c in range(10)]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--model", choices=SHAPES, default="tiny")
    options.add_argument("--batch-size", type=int, default=100)
    options.add_argument("--seconds", type=float, default=6.0, help="per variant and repeat")
    options.add_argument("--repeats", type=int, default=3)
    options.add_argument("--json", type=Path)
    arguments = options.parse_args()
    workers = 1 if torch.cuda.is_available() else torch.get_num_threads()
    with tempfile.TemporaryDirectory() as folder:
        flops = prepare(Path(folder), SHAPES[arguments.model])
        rows = {f"{backend} {precision}": [] for backend, precision in VARIANTS}
        peaks = []
        for _ in range(arguments.repeats):  # interleaved: a noisy neighbour hits all alike
            peaks.append(gemm_peak(workers))
            for backend, precision in VARIANTS:
                rate = throughput(
                    Path(folder),
                    backend,
                    precision,
                    arguments.batch_size,
                    workers,
                    arguments.seconds,
                )
                rows[f"{backend} {precision}"].append(rate)
    report(rows, peaks, flops, arguments, workers)


def prepare(root: Path, shape: dict[str, object]) -> float:
    """An untrained classifier, saved and exported under ``root``; its FLOPs per image."""
    torch.manual_seed(0)
    shape = shape | {"position_std": 0.5, "projector_width": 8, "projector_dim": 8}
    model = Model(architecture="vit", shape=shape)
    network = classifier.build(model, classes=len(CLASSES), condition="exact").eval()
    torch.nn.init.normal_(network.head.weight)
    config = {"classes": CLASSES, "condition": "exact"}
    classifier.save(root / "models/bench", network.state_dict(), model=model, config=config)
    metadata = {
        "classes": CLASSES,
        "sigma": 0.5,
        "run": "bench",
        "weights": sha256(root / "models/bench/model.safetensors"),
    }
    size, channels = shape["image_size"], shape["channels"]
    images = np.zeros((2, channels, size, size), dtype=np.uint8)
    labels = np.zeros(2, dtype=np.int64)
    split = Split(idx=labels, images=images, labels=labels, classes=tuple(CLASSES), white=255)
    settings = Export(opset=20, parity_images=2, tolerance=1e-3)
    export(network, root / "onnx/bench.onnx", split, metadata, settings)
    width, tokens = network.head.in_features, 2 + (size // shape["patch_size"]) ** 2
    linear = 12 * width**2 * tokens + 2 * width * tokens**2  # projections and MLP, attention
    return 2.0 * linear * len(network.encoder.blocks)


def throughput(
    root: Path, backend: str, precision: str, batch_size: int, workers: int, seconds: float
) -> float:
    """Noisy images per second of ``workers`` threads, each voting on images of its own."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    module = load("backends", backend)
    backends = [
        module.Backend(root, "bench", precision=precision, device=device) for _ in range(workers)
    ]
    cfg = Sample(
        backend=backend,
        precision=precision,
        batch_size=batch_size,
        n0=batch_size,
        n=batch_size,
        seed=0,
        subset="all",
    )
    header = sample.header(backends[0], backend, "bench", 0.5, cfg)
    shape = json.loads((root / "models/bench/config.json").read_text())["model"]["shape"]
    x = torch.rand(shape["channels"], shape["image_size"], shape["image_size"])

    def work(worker: int, until: float) -> int:
        done = 0
        while time.perf_counter() < until:
            sample.vote(backends[worker], x, worker, header)
            done += 2 * batch_size
        return done

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(work, range(workers), [0.0] * workers))  # start the threads
        list(pool.map(work, range(workers), [time.perf_counter() + 0.5] * workers))  # warm up
        began = time.perf_counter()
        done = sum(pool.map(work, range(workers), [began + seconds] * workers))
        return done / (time.perf_counter() - began)


def gemm_peak(workers: int, size: int = 1024) -> float:
    """FLOP/s of float32 matrix products on ``workers`` threads, or on the GPU."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_num_threads(workers)
    a, b = torch.rand(2, size, size, device=device)

    def once(n: int) -> float:
        began = time.perf_counter()
        for _ in range(n):
            c = a @ b
        c[0, 0].item()
        return n / (time.perf_counter() - began)

    once(5)
    return 2 * size**3 * max(once(20) for _ in range(5))


def report(rows: dict, peaks: list[float], flops: float, arguments, workers: int) -> None:
    """Print medians and their spread, and write them as JSON if asked."""
    peak = statistics.median(peaks)
    result = {
        "model": arguments.model,
        "batch_size": arguments.batch_size,
        "workers": workers,
        "cores": os.cpu_count(),
        "gemm_peak_gflops": round(peak / 1e9, 1),
        "mflop_per_image": round(flops / 1e6, 2),
        "variants": {
            name: {
                "images_per_second": round(statistics.median(rates)),
                "lowest": round(min(rates)),
                "highest": round(max(rates)),
                "share_of_peak": round(statistics.median(rates) * flops / peak, 3),
            }
            for name, rates in rows.items()
        },
    }
    print(
        f"{arguments.model}, batch {arguments.batch_size}, {workers} threads; "
        f"{result['mflop_per_image']} MFLOP an image; float32 GEMM peak "
        f"{result['gemm_peak_gflops']} GFLOP/s"
    )
    print(f"{'variant':12} {'noisy img/s':>12} {'lowest':>8} {'highest':>8} {'of peak':>8}")
    for name, row in result["variants"].items():
        print(
            f"{name:12} {row['images_per_second']:>12,} {row['lowest']:>8,} {row['highest']:>8,} "
            f"{100 * row['share_of_peak']:>7.1f}%"
        )
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
